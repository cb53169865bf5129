/**
 * One push: sends a task, or a batch of them, to its target, and reads what the answer means for each.
 *
 * An `async` target answers within its push time-out, a `sync` one at the latest by the attempt's deadline, which the
 * parser's progress moves. Nothing is sent after the deadline, counted on the monotonic clock from before the claim.
 */
import { randomBytes } from 'node:crypto';
import type { Db } from '../db.ts';
import { type Log, shortId } from '../log.ts';
import type { Queue } from '../queues.ts';
import { sign } from '../signature.ts';
import { ATTRIBUTE, type SpanError, startSpan, type TaskSpan, traceIdOf } from '../trace.ts';
import { type PushAnswer, type PushReply, readAnswer, readBatchAnswer, withoutWords } from './answer.ts';
import type { ClaimedTask } from './claim.ts';
import type { ParserClient } from './parser-client.ts';
import { batchBody, endOf, pushBody } from './request.ts';

/** Answers in the order of `tasks`: what intoRequests puts together, claimed at `claimedAt`. Never rejects. */
export type Push = (queue: Queue, tasks: readonly ClaimedTask[], claimedAt: number) => Promise<PushAnswer[]>;

export type PushDeps = {
  db: Db;
  client: ParserClient;
  callbackUrl: (attemptId: string) => string;
  observePush: (queue: string, outcome: string, seconds: number, traceparent: string) => void;
  log: Log;
};

/** Around the results of an answer: status_msg and the like. */
const ANSWER_ENVELOPE_BYTES = 65_536;
/** All results of a batch are held in memory together: what is longer does not fit one answer, and is called back. */
const MAX_BATCH_ANSWER_BYTES = 32 * 1024 * 1024;
/** While the database is away nobody can close an attempt either: a push is given up on after asking for a minute. */
const ASK_AGAIN_MS = 1_000;
const MAX_ASKED_IN_VAIN = 60;
/** As random as an attempt id. */
const KEY_BYTES = 24;
/** An attempt id has 22 of these characters at least. */
const MAY_HOLD_ID = /[\w-]{22}/;
/** The others are failures of the push. */
const EXPECTED = new Set<PushAnswer['kind']>(['accepted', 'done', 'busy']);

export function createPush({ db, client, callbackUrl, observePush, log }: PushDeps): Push {
  return push;

  async function push(queue: Queue, tasks: readonly ClaimedTask[], claimedAt: number): Promise<PushAnswer[]> {
    const began = performance.now();
    const spans = startSpans(queue, tasks);
    const reply = await send(queue, tasks, spans, claimedAt);
    if (tasks.length > 1 && reply.kind === 'response' && readAnswer(reply, Date.now()).kind === 'refused') {
      // Too large, or one document spoils it: none was taken, so each half is asked for by itself.
      for (const span of spans) span.end({ ...statusOf(reply), [ATTRIBUTE.pushOutcome]: 'split' });
      const half = Math.ceil(tasks.length / 2);
      const halves = [tasks.slice(0, half), tasks.slice(half)];
      return (await Promise.all(halves.map((part) => push(queue, part, claimedAt)))).flat();
    }
    const answers = read(tasks, reply).map((answer) => withoutIds(answer, tasks));
    const ms = performance.now() - began;
    for (const [i, answer] of answers.entries()) {
      const span = spans[i]!;
      observePush(queue.queue, answer.kind, ms / 1000, span.traceparent);
      span.end({ ...statusOf(reply), [ATTRIBUTE.pushOutcome]: answer.kind }, errorOf(answer));
      logAnswer(queue, tasks[i]!, span, reply, answer, ms);
    }
    return answers;
  }

  /** What cannot be put into a request (a secret that is none) was not sent. */
  function send(
    queue: Queue,
    tasks: readonly ClaimedTask[],
    spans: readonly TaskSpan[],
    claimedAt: number,
  ): Promise<PushReply> {
    try {
      return client.push(requestOf(queue, tasks, spans, claimedAt));
    } catch (error) {
      return Promise.resolve({ kind: 'failure', sent: false, error: (error as Error).message });
    }
  }

  function requestOf(queue: Queue, tasks: readonly ClaimedTask[], spans: readonly TaskSpan[], claimedAt: number) {
    const task = tasks[0]!;
    const { url, mode, batch, push_timeout_ms } = task.target;
    const traceparents = spans.map((span) => span.traceparent);
    const key = batch === 1 ? task.attempt_id : randomBytes(KEY_BYTES).toString('base64url');
    const body =
      batch === 1
        ? pushBody(queue.queue, task, callbackUrl(task.attempt_id))
        : batchBody(queue.queue, tasks, callbackUrl, traceparents);
    const headers = {
      'content-type': 'application/json',
      'idempotency-key': key,
      traceparent: traceparents[0]!,
      'user-agent': 'docsched',
    };
    const sendBefore = endOf(task, claimedAt);
    return {
      url,
      headers: queue.secrets.length === 0 ? headers : { ...headers, ...sign(queue.secrets, key, Date.now(), body) },
      body,
      sendBefore,
      maxAnswerBytes: answerBytes(queue.result_max_bytes, tasks.length),
      ...(mode === 'async'
        ? { timeoutMs: push_timeout_ms }
        : { timeoutMs: Math.max(1, sendBefore - performance.now()), moreTime: moreTimeFor(tasks) }),
    };
  }

  /** Until the last deadline of those still open, ms: the parser's progress may have moved it. */
  function moreTimeFor(tasks: readonly ClaimedTask[]): () => Promise<number> {
    const ids = tasks.map((task) => task.attempt_id);
    let failures = 0;
    return async () => {
      try {
        const [row] = await db.query<{ left_ms: number }>('find_time_left', [ids]);
        failures = 0;
        return row?.left_ms ?? 0;
      } catch (error) {
        failures += 1;
        if (failures === 1) log.warn({ event: 'find_time_left_failed', error: (error as Error).message });
        return failures > MAX_ASKED_IN_VAIN ? 0 : ASK_AGAIN_MS;
      }
    };
  }

  function logAnswer(
    queue: Queue,
    task: ClaimedTask,
    span: TaskSpan,
    reply: PushReply,
    answer: PushAnswer,
    ms: number,
  ): void {
    // Of a broken target it is told when it is left alone, not at each push.
    const level = EXPECTED.has(answer.kind) || answer.kind === 'broken' ? 'debug' : 'warn';
    if (!log.isLevelEnabled(level)) return;
    log[level]({
      event: 'push_answered',
      queue: queue.queue,
      task_id: task.task_id,
      task_version: task.task_version,
      attempt_id: shortId(task.attempt_id),
      attempt: task.attempt,
      trace_id: traceIdOf(span.traceparent),
      outcome: answer.kind,
      http_status: reply.kind === 'response' ? reply.status : undefined,
      error: 'message' in answer ? withoutWords(answer.message) : undefined,
      duration_ms: Math.round(ms),
    });
  }
}

/** A span a task, each in its task's trace; those of a batch name the first one, which the request's header carries. */
function startSpans(queue: Queue, tasks: readonly ClaimedTask[]): TaskSpan[] {
  const spans: TaskSpan[] = [];
  const server = serverOf(tasks[0]!.target.url);
  for (const task of tasks) {
    const key = { queue: queue.queue, taskId: task.task_id, taskVersion: task.task_version };
    const attributes = {
      ...server,
      [ATTRIBUTE.method]: 'POST',
      [ATTRIBUTE.priority]: task.priority,
      [ATTRIBUTE.attempt]: task.attempt,
      [ATTRIBUTE.waitedMs]: Math.max(0, Number(task.started_at) - Number(task.pending_since)),
      [ATTRIBUTE.ageMs]: Math.max(0, Number(task.started_at) - Number(task.create_at)),
      ...(tasks.length > 1 ? { [ATTRIBUTE.batchSize]: tasks.length } : {}),
    };
    const events = { due: Number(task.pending_since), claimed: Number(task.started_at) };
    const links = spans.length > 0 ? [spans[0]!.traceparent] : [];
    spans.push(startSpan('push', key, task.traceparent, { attributes, events, links }));
  }
  return spans;
}

function serverOf(target: string) {
  const url = URL.parse(target);
  if (!url) return {};
  const port = Number(url.port || (url.protocol === 'https:' ? 443 : 80));
  return { [ATTRIBUTE.serverAddress]: url.hostname, [ATTRIBUTE.serverPort]: port };
}

const statusOf = (reply: PushReply) => (reply.kind === 'response' ? { [ATTRIBUTE.httpStatus]: reply.status } : {});

const errorOf = (answer: PushAnswer): SpanError | undefined =>
  EXPECTED.has(answer.kind) || !('message' in answer)
    ? undefined
    : { type: answer.kind, message: withoutWords(answer.message) };

function answerBytes(resultMaxBytes: number, tasks: number): number {
  const all = tasks * (resultMaxBytes + ANSWER_ENVELOPE_BYTES);
  return Math.min(all, Math.max(MAX_BATCH_ANSWER_BYTES, resultMaxBytes + ANSWER_ENVELOPE_BYTES));
}

function read(tasks: readonly ClaimedTask[], reply: PushReply): PushAnswer[] {
  const now = Date.now();
  if (tasks[0]!.target.batch === 1) return [readAnswer(reply, now)];
  const ids = tasks.map((task) => task.attempt_id);
  return readBatchAnswer(reply, ids, now);
}

/** A parser may echo attempt ids in its own words; whoever reads them must not learn those. */
function withoutIds(answer: PushAnswer, tasks: readonly ClaimedTask[]): PushAnswer {
  const hide = (words: string) =>
    MAY_HOLD_ID.test(words)
      ? tasks.reduce((text, { attempt_id }) => text.replaceAll(attempt_id, shortId(attempt_id)), words)
      : words;
  if ('message' in answer) return { ...answer, message: hide(answer.message) };
  if (answer.kind === 'done' && answer.statusMsg !== null) return { ...answer, statusMsg: hide(answer.statusMsg) };
  return answer;
}
