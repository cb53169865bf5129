/**
 * POST /v1/tasks and /v1/tasks/batch (SPEC section 8).
 */
import { Router } from 'express';
import { AppError, toAppError, toProblem } from '../errors.ts';
import { bodyOf, ENVELOPE_BYTES, readBytes, sendJson } from '../http.ts';
import { elementStarts, memberText, parseBody } from '../json.ts';
import type { Queues } from '../queues.ts';
import { startSpan, traceparentOf } from '../trace.ts';
import { batchRequest, check, submitRequest } from '../wire.ts';
import type { Inserter, Submit, SubmitOutcome } from './inserter.ts';

export type InserterRouteDeps = {
  inserter: Inserter;
  queues: Queues;
  /** Largest body of one submit and of a batch, bytes. */
  payloadMaxBytes: number;
  batchMaxBytes: number;
};

export function createInserterRoutes({ inserter, queues, payloadMaxBytes, batchMaxBytes }: InserterRouteDeps): Router {
  const router = Router();

  router.post('/v1/tasks', readBytes(payloadMaxBytes + ENVELOPE_BYTES, 'payload_too_large'), async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    const parent = traceparentOf(req.get('traceparent'));
    const submit = readSubmit(value, text, 0, '', parent);
    const outcome = await traced(submit, () => inserter.submit(submit));
    if (outcome.outcome === 'stale') throw staleVersion(submit, outcome.latest);
    if (outcome.outcome === 'unknown_queue') throw unknownQueue(submit.queue, '');
    res.set('location', `/v1/tasks/${submit.taskId}/versions/${submit.taskVersion}?queue=${submit.queue}`);
    sendJson(res, outcome.outcome === 'existing' ? 200 : 202, JSON.stringify(outcome));
  });

  router.post('/v1/tasks/batch', readBytes(batchMaxBytes, 'body_too_large'), async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    const { tasks } = check(batchRequest, value);
    const starts = elementStarts(text, 'tasks');
    const parent = traceparentOf(req.get('traceparent'));
    const entries = tasks.map((task, index) => readEntry(task, text, starts[index]!, index, parent));
    const submits = entries.filter((entry): entry is Submit => !(entry instanceof AppError));
    const outcomes = submits.length === 0 ? [] : await inserter.submitBatch(submits);
    let next = 0;
    const results = entries.map((entry, index) => {
      if (entry instanceof AppError) return { error: toProblem(entry) };
      const outcome = outcomes[next++]!;
      if (outcome.outcome !== 'unknown_queue') return outcome;
      return { error: toProblem(unknownQueue(entry.queue, `/tasks/${index}`)) };
    });
    sendJson(res, 200, JSON.stringify({ results }));
  });

  return router;

  function readEntry(task: unknown, text: string, start: number, index: number, parent: string): Submit | AppError {
    try {
      return readSubmit(task, text, start, `/tasks/${index}`, parent);
    } catch (error) {
      return toAppError(error);
    }
  }

  /** `start`: where the submit's object begins in `text`; `at`: its JSON pointer. */
  function readSubmit(value: unknown, text: string, start: number, at: string, traceparent: string): Submit {
    const request = check(submitRequest, value, at);
    const queue = queues.get(request.queue);
    if (!queue) throw unknownQueue(request.queue, at);
    const payload = memberText(text, 'payload', start);
    if (payload === undefined)
      throw new AppError('missing_field', "'payload' is required; null is allowed", { pointer: `${at}/payload` });
    if (Buffer.byteLength(payload) > queue.payload_max_bytes)
      throw new AppError('payload_too_large', `The payload is larger than ${queue.payload_max_bytes} bytes`, {
        pointer: `${at}/payload`,
      });
    return {
      queue: request.queue,
      taskId: request.task_id,
      taskVersion: request.task_version,
      priority: request.priority,
      payload,
      runAt: request.run_at ?? null,
      maxRetries: request.max_retries ?? null,
      traceparent,
    };
  }
}

/** The task keeps the insert span as its parent, so that pushes hang under it. */
async function traced(submit: Submit, run: () => Promise<SubmitOutcome>): Promise<SubmitOutcome> {
  const span = startSpan(`insert ${submit.queue}`, 'PRODUCER', submit.traceparent, {
    'messaging.system': 'docsched',
    'messaging.destination.name': submit.queue,
    'messaging.operation.type': 'send',
    'docsched.task.id': submit.taskId,
    'docsched.task.version': submit.taskVersion,
  });
  submit.traceparent = span.traceparent;
  try {
    const outcome = await run();
    span.end();
    return outcome;
  } catch (error) {
    span.end((error as Error).message);
    throw error;
  }
}

const unknownQueue = (queue: string, at: string): AppError =>
  new AppError('unknown_queue', `There is no queue '${queue}'`, { pointer: `${at}/queue` });

function staleVersion(submit: Submit, latest: { task_version: string; status: string | null }): AppError {
  const detail = `Version ${latest.task_version} of task ${submit.taskId} was accepted before; version ${submit.taskVersion} is not stored`;
  return new AppError('stale_version', detail, { pointer: '/task_version', members: { outcome: 'stale', latest } });
}
