/**
 * POST /v1/tasks and /v1/tasks/batch.
 */
import { Router } from 'express';
import { createAdmission } from '../admission.ts';
import { AppError, toAppError, toProblem } from '../errors.ts';
import { bodyOf, ENVELOPE_BYTES, readBytes, readUpTo, sendJson } from '../http.ts';
import type { Journal } from '../journal.ts';
import { elementStarts, memberText, parseBody } from '../json.ts';
import type { Queues } from '../queues.ts';
import { ATTRIBUTE, readTraceparent, startSpan, type TaskSpan } from '../trace.ts';
import { batchRequest, check, submitRequest } from '../wire.ts';
import type { Accepted, Inserter, Submit, SubmitOutcome } from './inserter.ts';

export type InserterRouteDeps = {
  inserter: Inserter;
  queues: Queues;
  /** Largest body of a batch, bytes. */
  batchMaxBytes: number;
  journal: Pick<Journal, 'submitted'>;
};

/** Of all submits on their way. A group commit takes a few hundred: more wait for seconds, and are better off elsewhere. */
const MOST_HELD = { maxBytes: 64 * 1024 * 1024, maxRequests: 2_000 };

/** A submit that has no trace yet. */
type Checked = Omit<Submit, 'traceparent'>;

export function createInserterRoutes({ inserter, queues, batchMaxBytes, journal }: InserterRouteDeps): Router {
  const router = Router();
  const admission = createAdmission(MOST_HELD);
  // The queue is known only once the body is read.
  const maxBytes = () => Math.max(...queues.all().map((queue) => queue.payload_max_bytes)) + ENVELOPE_BYTES;

  router.post('/v1/tasks', readUpTo(maxBytes, 'payload_too_large', admission), async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    const submit = readSubmit(value, text, 0, '');
    const submitOnly = async ([only]: Submit[]) => [await inserter.submit(only!)];
    const [outcome] = await traced([submit], req.get('traceparent'), submitOnly, wordsOf);
    if (!isAccepted(outcome!)) throw refusalOf(submit, outcome!, '');
    res.set('location', `/v1/tasks/${submit.taskId}/versions/${submit.taskVersion}?queue=${submit.queue}`);
    sendJson(res, outcome.outcome === 'existing' ? 200 : 202, JSON.stringify(outcome));
  });

  router.post('/v1/tasks/batch', readBytes(batchMaxBytes, 'body_too_large', admission), async (req, res) => {
    const { value, text } = parseBody(bodyOf(req));
    const { tasks, atomic } = check(batchRequest, value);
    const starts = elementStarts(text, 'tasks');
    const entries = tasks.map((task, index) => readEntry(task, text, starts[index]!, index));
    const results = await (atomic ? storeAll : storeEach)(entries, req.get('traceparent'));
    sendJson(res, 200, JSON.stringify({ results }));
  });

  return router;

  /** One result an entry; a bad one sinks no other. */
  async function storeEach(entries: (Checked | AppError)[], header: string | undefined): Promise<unknown[]> {
    const submits = entries.filter((entry): entry is Checked => !(entry instanceof AppError));
    const outcomes = submits.length === 0 ? [] : await traced(submits, header, inserter.submitBatch, wordsOf);
    let next = 0;
    return entries.map((entry, index) => {
      if (entry instanceof AppError) return { error: toProblem(entry) };
      const outcome = outcomes[next++]!;
      if (isAccepted(outcome) || outcome.outcome === 'stale') return outcome;
      return { error: toProblem(refusalOf(entry, outcome, pointerTo(index))) };
    });
  }

  /** Throws the problem of the first entry that is malformed, else of the first that is refused; nothing is stored then. */
  async function storeAll(entries: (Checked | AppError)[], header: string | undefined): Promise<Accepted[]> {
    const submits = entries.map((entry) => {
      if (entry instanceof AppError) throw entry;
      return entry;
    });
    const stored = await traced(submits, header, inserter.submitAtomic, (stored) =>
      'accepted' in stored
        ? wordsOf(stored.accepted)
        : submits.map((_, index) => (index === stored.index ? stored.refused.outcome : 'not_stored')),
    );
    if ('accepted' in stored) return stored.accepted;
    const { refused, index } = stored;
    throw refusalOf(submits[index]!, refused, pointerTo(index));
  }

  function readEntry(task: unknown, text: string, start: number, index: number): Checked | AppError {
    try {
      return readSubmit(task, text, start, pointerTo(index));
    } catch (error) {
      return toAppError(error);
    }
  }

  /** `start`: where the submit's object begins in `text`; `at`: its JSON pointer. */
  function readSubmit(value: unknown, text: string, start: number, at: string): Checked {
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
    };
  }

  /**
   * Runs it with an insert span for each task, which is what the task keeps: its pushes hang under it. `wordsOf`: what
   * became of each.
   */
  async function traced<T>(
    entries: Checked[],
    header: string | undefined,
    run: (submits: Submit[]) => Promise<T>,
    wordsOf: (result: T) => string[],
  ): Promise<T> {
    const sinceMs = performance.now();
    const parent = readTraceparent(header);
    const spans = entries.map((entry) =>
      startSpan('insert', entry, parent, { attributes: { [ATTRIBUTE.priority]: entry.priority } }),
    );
    try {
      const result = await run(entries.map((entry, index) => ({ ...entry, traceparent: spans[index]!.traceparent })));
      for (const [index, word] of wordsOf(result).entries()) {
        endSpan(spans[index]!, word);
        journal.submitted(entries[index]!, word, spans[index]!.traceparent, sinceMs);
      }
      return result;
    } catch (error) {
      const { code, message } = toAppError(error);
      for (const span of spans) span.end({}, { type: code, message });
      throw error;
    }
  }
}

const wordsOf = (outcomes: readonly SubmitOutcome[]): string[] => outcomes.map(({ outcome }) => outcome);

/** A submit that is refused for good reason is no error; one that docsched could not decide is. */
function endSpan(span: TaskSpan, outcome: string): void {
  const message = UNDECIDED[outcome];
  const error = message === undefined ? undefined : { type: outcome, message };
  span.end({ [ATTRIBUTE.insertOutcome]: outcome }, error);
}

const UNDECIDED: Record<string, string> = {
  locked: 'another transaction holds the task',
  failed: 'the database failed while the submit waited',
};

const pointerTo = (index: number): string => `/tasks/${index}`;

const isAccepted = (outcome: SubmitOutcome): outcome is Accepted => 'task' in outcome;

/** `at`: JSON pointer of the submit. */
function refusalOf(submit: Checked, outcome: Exclude<SubmitOutcome, Accepted>, at: string): AppError {
  const { queue, taskId, taskVersion } = submit;
  switch (outcome.outcome) {
    case 'stale': {
      const { latest } = outcome;
      const detail = `Version ${latest.task_version} of task ${taskId} was accepted before; version ${taskVersion} is not stored`;
      const members = { outcome: 'stale', latest };
      return new AppError('stale_version', detail, { pointer: `${at}/task_version`, members });
    }
    case 'unknown_queue':
      return unknownQueue(queue, at);
    case 'locked':
      return new AppError('task_locked', `Another transaction holds task ${taskId} of queue '${queue}'`, {
        pointer: `${at}/task_id`,
        retryAfterS: 1,
      });
    case 'failed':
      return toAppError(outcome.error);
    default:
      return outcome satisfies never;
  }
}

const unknownQueue = (queue: string, at: string): AppError =>
  new AppError('unknown_queue', `There is no queue '${queue}'`, { pointer: `${at}/queue` });
