/**
 * What parsers report: callbacks in both forms and in batches, and progress.
 */
import { type ErrorRequestHandler, type Request, type Response, Router } from 'express';
import { createAdmission } from '../admission.ts';
import type { Db } from '../db.ts';
import { AppError, type ErrorCode, toAppError, toProblem } from '../errors.ts';
import { bodyOf, ENVELOPE_BYTES, readBytes, readUpTo, sendJson } from '../http.ts';
import type { Journal } from '../journal.ts';
import { elementStarts, parseBody } from '../json.ts';
import type { Queues } from '../queues.ts';
import { callbackBatchRequest, check, isAttemptId, progressRequest } from '../wire.ts';
import { type Report, readEntry, readPlainReport, readReport, storableWords } from './report.ts';
import { createResolver, type Resolved, type Sender, staleAttempt, unknownAttempt } from './resolve.ts';
import { type Settlement, type SettleOutcome, type Settler, taskLocked } from './settle.ts';

export type ReceiverRouteDeps = {
  db: Db;
  queues: Queues;
  settler: Settler;
  /** Largest body of a batch, bytes; one with a single result of the largest size is taken in any case. */
  batchMaxBytes: number;
  count: (outcome: Counted) => void;
  journal: Pick<Journal, 'reported'>;
};

/** What became of a callback. Not counted: those that are to be said again, because docsched could not take them. */
export type Counted = 'applied' | 'duplicate' | 'stale' | 'unknown' | 'unauthorized' | 'invalid';

type Answer = 'applied' | 'duplicate' | AppError;
/** Of all callbacks on their way; apart from those of submits, which thus never keep a callback out. */
const MOST_HELD = { maxBytes: 128 * 1024 * 1024, maxRequests: 4_000 };

type Progress = { closed: boolean; cancel_requested: boolean; deadline: string };

export function createReceiverRoutes(deps: ReceiverRouteDeps): Router {
  const { db, queues, settler, batchMaxBytes, count, journal } = deps;
  const router = Router();
  const admission = createAdmission(MOST_HELD);
  const resolver = createResolver({ db, queues });
  const maxBytes = () => Math.max(...queues.all().map((queue) => queue.result_max_bytes)) + ENVELOPE_BYTES;
  const readCallback = readUpTo(maxBytes, 'result_too_large', admission);
  const readBatch = readUpTo(() => Math.max(batchMaxBytes, maxBytes()), 'body_too_large', admission);

  router.post('/v1/callbacks/batch', readBatch, async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    const { callbacks } = check(callbackBatchRequest, value);
    const starts = elementStarts(text, 'callbacks');
    const entries = callbacks.map((entry, index) =>
      attempt(() => readEntry(entry, text, { start: starts[index]!, at: `/callbacks/${index}` })),
    );
    const answers = await settleAll(req, entries);
    for (const [index, answer] of answers.entries()) countAnswer(answer, attemptIdOf(callbacks[index]).attempt_id);
    const results = answers.map((answer, index) => ({
      ...attemptIdOf(callbacks[index]),
      ...(answer instanceof AppError ? { error: toProblem(answer) } : { outcome: answer }),
    }));
    sendJson(res, 200, JSON.stringify({ results }));
  });

  router.post('/v1/callbacks/:attempt_id', readCallback, async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    await settleOne(req, res, readReport(value, text, knownForm(req.params.attempt_id)));
  });

  router.post('/v1/callbacks', readCallback, async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    await settleOne(req, res, readPlainReport(value, text));
  });

  router.post('/v1/callbacks/:attempt_id/progress', readBytes(ENVELOPE_BYTES, 'body_too_large'), async (req, res) => {
    const attemptId = knownForm(req.params.attempt_id);
    const { percent, message, done } = check(progressRequest, parseBody(bodyOf(req)).value);
    await resolver.authorize(attemptId, senderOf(req));
    const words = message == null ? null : storableWords(message, attemptId);
    const [progress] = await db.query<Progress>('report_progress', [attemptId, percent ?? null, words]);
    if (!progress) throw unknownAttempt();
    if (progress.closed) throw staleAttempt();
    if (done && progress.cancel_requested) await settler.settle({ attemptId, verdict: 'cancel_done' });
    const { cancel_requested, deadline } = progress;
    sendJson(res, 200, JSON.stringify({ outcome: 'applied', cancel_requested, deadline: Number(deadline) }));
  });

  const countRefused: ErrorRequestHandler = (error, req, _res, next) => {
    if (!req.path.endsWith('/progress')) countAnswer(toAppError(error), named(req.path.slice(1)));
    next(error);
  };
  router.use('/v1/callbacks', countRefused);

  return router;

  function countAnswer(answer: Answer, attemptId?: string): void {
    const counted = answer instanceof AppError ? countedAs(answer) : answer;
    if (!counted) return;
    count(counted);
    journal.reported(counted, attemptId);
  }

  async function settleOne(req: Request, res: Response, report: Report): Promise<void> {
    const [resolved] = (await resolver.resolve([report], senderOf(req))) as [Resolved];
    if (resolved instanceof AppError) throw resolved;
    const settled = resolved === 'duplicate' ? null : await settler.settle(traced(resolved, req));
    const answer = answerOf(settled?.outcome ?? 'duplicate');
    if (answer instanceof AppError) throw answer;
    countAnswer(answer, report.attemptId);
    sendJson(res, 200, JSON.stringify({ outcome: answer }));
  }

  /** An answer an entry; what is to be settled is settled in one commit. */
  async function settleAll(req: Request, entries: (Report | AppError)[]): Promise<Answer[]> {
    const reports = entries.filter((entry): entry is Report => !(entry instanceof AppError));
    const found = (await resolver.resolve(reports, senderOf(req))).values();
    const resolved = entries.map((entry) => (entry instanceof AppError ? entry : found.next().value!));
    const settlements = resolved.filter((one): one is Settlement => one !== 'duplicate' && !(one instanceof AppError));
    const settled = (await settler.settleBatch(settlements.map((one) => traced(one, req)))).values();
    return resolved.map((one) => {
      if (one instanceof AppError) return one;
      return answerOf(one === 'duplicate' ? one : settled.next().value!.outcome);
    });
  }

  function answerOf(outcome: SettleOutcome): Answer {
    switch (outcome) {
      case 'applied':
      case 'duplicate':
        return outcome;
      case 'stale':
        return staleAttempt();
      case 'unknown':
        return unknownAttempt();
      case 'locked':
        return taskLocked();
      default:
        return outcome satisfies never;
    }
  }
}

const UNKNOWN: readonly ErrorCode[] = ['unknown_attempt', 'unknown_task', 'unknown_queue'];

function countedAs({ code, status }: AppError): Counted | null {
  if (code === 'stale_attempt') return 'stale';
  if (code === 'bad_signature') return 'unauthorized';
  if (UNKNOWN.includes(code)) return 'unknown';
  return status < 500 ? 'invalid' : null;
}

const traced = (settlement: Settlement, req: Request): Settlement => ({
  ...settlement,
  traceparent: req.get('traceparent'),
});

const senderOf = (req: Request): Sender => ({
  headers: {
    id: req.get('webhook-id'),
    timestamp: req.get('webhook-timestamp'),
    signature: req.get('webhook-signature'),
  },
  body: bodyOf(req),
});

function knownForm(attemptId: unknown): string {
  if (typeof attemptId !== 'string' || !isAttemptId(attemptId)) throw unknownAttempt();
  return attemptId;
}

/** As the entry names it, when it does. */
function attemptIdOf(entry: unknown): { attempt_id?: string } {
  const { attempt_id } = Object(entry);
  return typeof attempt_id === 'string' && isAttemptId(attempt_id) ? { attempt_id } : {};
}

const named = (text: string): string | undefined => (isAttemptId(text) ? text : undefined);

function attempt<T>(read: () => T): T | AppError {
  try {
    return read();
  } catch (error) {
    return toAppError(error);
  }
}
