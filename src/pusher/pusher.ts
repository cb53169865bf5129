/**
 * The pusher of one queue: claims what the free slots allow, pushes it, and settles what the parsers answer.
 *
 *   wake -> [claim round] -> push (not awaited) -> answer -> settle | note as accepted | leave in doubt
 *
 * Never two rounds at once in a process (the trigger sees to that); pushes of earlier rounds go on meanwhile, bounded by
 * MAX_PUSHES. Killed after a push was sent: the attempt is open and holds its slot; the parser's callback or the deadline
 * ends it. Nothing is sent after the deadline, counted on the monotonic clock from before the claim.
 */
import type { Db } from '../db.ts';
import { type Log, shortId } from '../log.ts';
import type { Queue } from '../queues.ts';
import type { Settlement, Settler } from '../receiver/settle.ts';
import { keyColumns } from '../task.ts';
import { startSpan } from '../trace.ts';
import { storable } from '../wire.ts';
import { type PushAnswer, readAnswer } from './answer.ts';
import type { ClaimedTask, ClaimRound } from './claim.ts';
import type { ParserClient } from './parser-client.ts';
import { createTarget } from './target.ts';

/** Pushes of one instance on their way at once. */
export const MAX_PUSHES = 256;
/** Tasks of one claim: enough to make the commit cheap, few enough that several instances share a backlog. */
const MAX_CLAIM = 128;
const MIN_CLAIM = 8;
/** Rounds in a row that find work but get none of it, all being claimed by others: then the next wake-up will do. */
const MAX_EMPTY_ROUNDS = 3;
/** Most attempts are settled before anyone needs to know that they were accepted: it is noted late, many at once. */
const ACCEPT_NOTE_MS = 500;
const SETTLE_RETRY_MAX_MS = 2_000;

export type PusherDeps = {
  db: Db;
  claim: (queue: Queue, target: string, room: number) => Promise<ClaimRound>;
  client: ParserClient;
  settler: Settler;
  /** The queue's settings now. */
  queue: () => Queue | undefined;
  callbackUrl: (attemptId: string) => string;
  /** Runs another round now. */
  wake: () => void;
  observePush: (queue: string, outcome: string, seconds: number) => void;
  observeDispatch: (queue: string, seconds: number) => void;
  log: Log;
};

export type Pusher = {
  /** One round; true when there is more to claim right away. */
  runOnce(): Promise<boolean>;
  /** Resolves when no push is on its way and every answer is settled. */
  idle(): Promise<void>;
  /** One sentence while the target is broken, as far as this instance knows; else null. */
  trouble(): string | null;
};

export function createPusher(deps: PusherDeps): Pusher {
  const { db, claim, client, settler, wake, log } = deps;
  let want = MIN_CLAIM;
  let emptyRounds = 0;
  let fruitless = true;
  let warned = false;
  const target = createTarget({ db, wake, log });
  let accepted: string[] = [];
  let acceptTimer: NodeJS.Timeout | undefined;
  const onTheWay = new Set<Promise<void>>();

  return { runOnce, idle, trouble: target.trouble };

  async function runOnce(): Promise<boolean> {
    const queue = deps.queue();
    const url = queue?.targets[0]?.url;
    if (!queue || !url || queue.paused) return false;
    // An idle queue takes no slots only to give them back.
    if (fruitless && !(await hasClaimable(queue))) return false;
    const room = Math.min(want, MAX_PUSHES - onTheWay.size);
    const round = await claim(queue, url, room);
    for (const task of round.lost) start(giveBack(task, round.claimedAt, 'unsent', 'its slot was taken by others'));
    for (const task of round.tasks) start(push(queue, url, task, round.claimedAt));
    start(freeBlocked(queue, [...round.tasks, ...round.lost]));
    target.seen(round.waitMs, round.targetFailing);
    const claimed = round.tasks.length + round.lost.length;
    fruitless = claimed === 0;
    emptyRounds = claimed > 0 || !round.more ? 0 : emptyRounds + 1;
    want = claimed >= want ? Math.min(want * 2, MAX_CLAIM) : Math.max(MIN_CLAIM, claimed * 2);
    return round.more && emptyRounds <= MAX_EMPTY_ROUNDS;
  }

  async function hasClaimable(queue: Queue): Promise<boolean> {
    return (await db.query('find_claimable', [queue.queue])).length > 0;
  }

  function start(work: Promise<void>): void {
    const tracked = work.finally(() => {
      onTheWay.delete(tracked);
      if (onTheWay.size === MAX_PUSHES - 1) wake();
    });
    onTheWay.add(tracked);
  }

  async function idle(): Promise<void> {
    while (onTheWay.size > 0) await Promise.all(onTheWay);
    target.stop();
    clearTimeout(acceptTimer);
    await noteAccepted();
  }

  /** What waited behind the claimed versions moves up. A crash before this leaves it to the clean-up job. */
  async function freeBlocked(queue: Queue, tasks: ClaimedTask[]): Promise<void> {
    const heads = tasks.filter((task) => task.has_blocked);
    if (heads.length === 0) return;
    try {
      await db.query('order_versions', keyColumns(heads.map((task) => ({ ...task, queue: queue.queue }))));
      wake();
    } catch (error) {
      log.warn({ event: 'order_versions_failed', queue: queue.queue, error: (error as Error).message });
    }
  }

  async function push(queue: Queue, url: string, task: ClaimedTask, claimedAt: number): Promise<void> {
    const began = performance.now();
    deps.observeDispatch(queue.queue, (Number(task.started_at) - Number(task.pending_since)) / 1000);
    const span = startSpan(`push ${queue.queue}`, 'PRODUCER', task.traceparent, {
      'messaging.system': 'docsched',
      'messaging.destination.name': queue.queue,
      'messaging.operation.type': 'send',
      'docsched.task.id': task.task_id,
      'docsched.task.version': task.task_version,
      'docsched.attempt.number': task.attempt,
    });
    const reply = await client.push({
      url: new URL(url),
      headers: {
        'content-type': 'application/json',
        'idempotency-key': task.attempt_id,
        traceparent: span.traceparent,
        'user-agent': 'docsched',
      },
      body: pushBody(queue, task),
      timeoutMs: queue.targets[0]!.push_timeout_ms,
      sendBefore: claimedAt + Number(task.deadline) - Number(task.started_at),
      maxAnswerBytes: queue.result_max_bytes + 65_536,
    });
    const answer = withoutId(readAnswer(reply, Date.now()), task.attempt_id);
    deps.observePush(queue.queue, answer.kind, (performance.now() - began) / 1000);
    const failure = 'message' in answer ? answer.message : undefined;
    span.end(answer.kind === 'busy' ? undefined : failure);
    if (failure !== undefined) logAnswer(task, answer.kind, failure, performance.now() - began);
    await act(queue, url, task, claimedAt, answer);
  }

  /** The right-hand column of the parser-answer table. */
  async function act(
    queue: Queue,
    url: string,
    task: ClaimedTask,
    claimedAt: number,
    answer: PushAnswer,
  ): Promise<void> {
    switch (answer.kind) {
      case 'accepted':
        target.answered(url, task.started_at);
        if (answer.unclear) warnUnclear(url);
        return accept(task);
      case 'done':
        target.answered(url, task.started_at);
        return settleDone(queue, task, claimedAt, answer);
      case 'busy':
        await target.busy(url, task.started_at, answer.afterMs);
        return settle(task, claimedAt, { verdict: 'busy', statusMsg: answer.message, afterMs: answer.afterMs });
      case 'broken':
        await target.broken(url, task.started_at, answer.message);
        return giveBack(task, claimedAt, 'broken', answer.message);
      case 'unsent':
        return giveBack(task, claimedAt, 'unsent', answer.message);
      case 'in_doubt':
        return;
      case 'try_failed':
      case 'refused':
      case 'result_too_large':
        target.answered(url, task.started_at);
        return settle(task, claimedAt, { verdict: answer.kind, statusMsg: answer.message });
      default:
        answer satisfies never;
    }
  }

  function settleDone(
    queue: Queue,
    task: ClaimedTask,
    claimedAt: number,
    answer: PushAnswer & { kind: 'done' },
  ): Promise<void> {
    const { statusCode, statusMsg, result } = answer;
    if (statusCode === '0' && result !== null && Buffer.byteLength(result) > queue.result_max_bytes)
      return settle(task, claimedAt, {
        verdict: 'result_too_large',
        statusMsg: 'the result is larger than result_max_bytes',
      });
    return settle(task, claimedAt, {
      verdict: statusCode === '0' ? 'success' : 'parser_failed',
      statusCode,
      statusMsg,
      result,
    });
  }

  function giveBack(
    task: ClaimedTask,
    claimedAt: number,
    verdict: 'broken' | 'unsent',
    statusMsg: string,
  ): Promise<void> {
    return settle(task, claimedAt, { verdict, statusMsg });
  }

  /** Until PostgreSQL takes it or the deadline makes it the watcher's. */
  async function settle(task: ClaimedTask, claimedAt: number, what: Omit<Settlement, 'attemptId'>): Promise<void> {
    const until = claimedAt + Number(task.deadline) - Number(task.started_at);
    const statusMsg = what.statusMsg == null ? null : storable(what.statusMsg, 2_000);
    for (let delayMs = 50; ; delayMs = Math.min(delayMs * 2, SETTLE_RETRY_MAX_MS)) {
      try {
        await settler.settle({ ...what, statusMsg, attemptId: task.attempt_id });
        return;
      } catch (error) {
        if (performance.now() > until) {
          log.error({
            event: 'settle_failed',
            attempt_id: shortId(task.attempt_id),
            error: (error as Error).message,
          });
          return;
        }
        await new Promise((resolve) => setTimeout(resolve, delayMs));
      }
    }
  }

  /** Once: a parser that means `done` by a plain 200 would otherwise hold its slots until the deadlines, in silence. */
  function warnUnclear(url: string): void {
    if (warned) return;
    warned = true;
    log.warn({
      event: 'push_answer_unclear',
      target: new URL(url).origin,
      msg: '2xx without a status_code is taken as accepted: answer 202, or 200 {"status_code": ...} when done',
    });
  }

  function accept(task: ClaimedTask): void {
    accepted.push(task.attempt_id);
    acceptTimer ??= setTimeout(noteAccepted, ACCEPT_NOTE_MS);
  }

  /** A failure only makes a later time-out say `in_doubt_expired` instead of `processing_expired`. */
  async function noteAccepted(): Promise<void> {
    acceptTimer = undefined;
    const ids = accepted;
    accepted = [];
    if (ids.length === 0) return;
    await db.query('accept_attempts', [ids]).catch((error) => {
      log.warn({ event: 'accept_note_failed', attempts: ids.length, error: (error as Error).message });
    });
  }

  function logAnswer(task: ClaimedTask, kind: string, message: string, ms: number): void {
    log[kind === 'busy' || kind === 'broken' ? 'debug' : 'warn']({
      event: `push_${kind}`,
      queue: deps.queue()?.queue,
      task_id: task.task_id,
      task_version: task.task_version,
      attempt_id: shortId(task.attempt_id),
      trace_id: task.traceparent.slice(3, 35),
      duration_ms: Math.round(ms),
      error: message,
    });
  }

  /** The payload goes as the text it came in. */
  function pushBody(queue: Queue, task: ClaimedTask): string {
    const callbackUrl = deps.callbackUrl(task.attempt_id);
    return (
      `{"queue":"${queue.queue}","task_id":"${task.task_id}","task_version":"${task.task_version}",` +
      `"priority":${task.priority},"payload":${task.payload},"attempt":${task.attempt},` +
      `"attempt_id":"${task.attempt_id}","deadline":${task.deadline},"callback_url":${JSON.stringify(callbackUrl)},` +
      `"progress_url":${JSON.stringify(`${callbackUrl}/progress`)}}`
    );
  }
}

/** A parser may echo the attempt id in its own words; whoever reads them must not learn it. */
function withoutId(answer: PushAnswer, attemptId: string): PushAnswer {
  return 'message' in answer
    ? { ...answer, message: answer.message.replaceAll(attemptId, shortId(attemptId)) }
    : answer;
}
