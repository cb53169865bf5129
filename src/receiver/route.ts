/**
 * What parsers report: callbacks in both forms, and progress (SPEC section 4).
 */
import { type Response, Router } from 'express';
import type { Db } from '../db.ts';
import { AppError } from '../errors.ts';
import { bodyOf, ENVELOPE_BYTES, readBytes, sendJson } from '../http.ts';
import { memberText, parseBody } from '../json.ts';
import { shortId } from '../log.ts';
import { callbackRequest, check, isAttemptId, plainCallbackRequest, progressRequest, storable } from '../wire.ts';
import type { Settlement, Settler } from './settle.ts';

export type ReceiverRouteDeps = {
  db: Db;
  settler: Settler;
  /** Largest result, bytes. */
  resultMaxBytes: number;
  count: (outcome: string) => void;
};

type Callback = { status_code: string; status_msg?: string | null | undefined };
type Progress = { closed: boolean; cancel_requested: boolean; deadline: string };

const MAX_MESSAGE_CHARACTERS = 2_000;
const STOP = 'stop working on it and do not report it again';

export function createReceiverRoutes({ db, settler, resultMaxBytes, count }: ReceiverRouteDeps): Router {
  const router = Router();
  const readCallback = readBytes(resultMaxBytes + ENVELOPE_BYTES, 'result_too_large');

  router.post('/v1/callbacks/:attempt_id', readCallback, async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    await answer(res, settlementOf(knownForm(req.params.attempt_id), check(callbackRequest, value), text));
  });

  router.post('/v1/callbacks', readCallback, async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    const request = check(plainCallbackRequest, value);
    const [known] = await db.query('explain_attempts', [[request.attempt_id]]);
    const same =
      known?.queue === request.queue &&
      known.task_id === request.task_id &&
      known.task_version === request.task_version;
    if (!same) throw unknownAttempt();
    await answer(res, settlementOf(request.attempt_id, request, text));
  });

  router.post('/v1/callbacks/:attempt_id/progress', readBytes(ENVELOPE_BYTES, 'body_too_large'), async (req, res) => {
    const attemptId = knownForm(req.params.attempt_id);
    const { percent, message, done } = check(progressRequest, parseBody(bodyOf(req)).value);
    const words = message == null ? null : storable(withoutId(message, attemptId), MAX_MESSAGE_CHARACTERS);
    const [progress] = await db.query<Progress>('report_progress', [attemptId, percent ?? null, words]);
    if (!progress) throw unknownAttempt();
    if (progress.closed) throw staleAttempt();
    if (done && progress.cancel_requested) await settler.settle({ attemptId, verdict: 'cancel_done' });
    const { cancel_requested, deadline } = progress;
    sendJson(res, 200, JSON.stringify({ outcome: 'applied', cancel_requested, deadline: Number(deadline) }));
  });

  return router;

  async function answer(res: Response, settlement: Settlement): Promise<void> {
    const settled = await settler.settle({ ...settlement, traceparent: res.req.get('traceparent') });
    count(settled.outcome);
    if (settled.outcome === 'unknown') throw unknownAttempt();
    if (settled.outcome === 'stale') throw staleAttempt();
    sendJson(res, 200, JSON.stringify({ outcome: settled.outcome }));
  }

  function settlementOf(attemptId: string, callback: Callback, text: string): Settlement {
    const success = callback.status_code === '0';
    const result = success ? (memberText(text, 'result') ?? null) : null;
    if (result !== null && Buffer.byteLength(result) > resultMaxBytes)
      throw new AppError(
        'result_too_large',
        `The result is larger than ${resultMaxBytes} bytes; report a failure instead`,
        { pointer: '/result' },
      );
    return {
      attemptId,
      verdict: success ? 'success' : 'parser_failed',
      statusCode: callback.status_code,
      statusMsg:
        callback.status_msg == null
          ? null
          : storable(withoutId(callback.status_msg, attemptId), MAX_MESSAGE_CHARACTERS),
      result,
    };
  }
}

/** A parser may put the attempt id into its words; whoever reads the task must not learn it. */
const withoutId = (text: string, attemptId: string): string => text.replaceAll(attemptId, shortId(attemptId));

function knownForm(attemptId: unknown): string {
  if (typeof attemptId !== 'string' || !isAttemptId(attemptId)) throw unknownAttempt();
  return attemptId;
}

const unknownAttempt = () => new AppError('unknown_attempt', `There is no such attempt: ${STOP}`);
const staleAttempt = () => new AppError('stale_attempt', `The attempt is closed: ${STOP}`);
