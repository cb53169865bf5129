/**
 * What the log says of tasks: a line a change of state, at debug, and at warn where one failed or timed out. While the
 * level is higher nothing is built. Never payloads, results, words of parsers; of attempt ids the first 8 characters.
 */
import { type Log, shortId } from './log.ts';
import type { ClaimedTask } from './pusher/claim.ts';
import type { ClosedAttempt } from './receiver/settle.ts';
import { FAILED, type KeyRow, STATUS, type TaskKey } from './task.ts';
import { traceIdOf } from './trace.ts';
import type { ExpiredRow } from './watcher/expire-pending.ts';

export type Journal = ReturnType<typeof createJournal>;

/** Failures that no answer to a push told of. */
const hasFailed = ({ verdict, status }: ClosedAttempt): boolean =>
  verdict.endsWith('expired') || (verdict === 'parser_failed' && status === FAILED);

/** What tells a task in a line. */
const task = ({ queue, taskId, taskVersion }: TaskKey, traceparent: string | null | undefined) => ({
  queue,
  task_id: taskId,
  task_version: taskVersion,
  trace_id: traceparent ? traceIdOf(traceparent) : undefined,
});
const row = ({ queue, task_id, task_version }: KeyRow, traceparent: string | null) =>
  task({ queue, taskId: task_id, taskVersion: task_version }, traceparent);

export function createJournal(log: Log) {
  const speaks = () => log.isLevelEnabled('debug');
  return {
    /** `sinceMs`: performance.now() when the submit had been read. */
    submitted(key: TaskKey, outcome: string, traceparent: string, sinceMs: number): void {
      if (!speaks()) return;
      log.debug({ event: 'task_submitted', ...task(key, traceparent), outcome, duration_ms: since(sinceMs) });
    },
    claimed(queue: string, tasks: readonly ClaimedTask[]): void {
      if (!speaks()) return;
      for (const one of tasks)
        log.debug({
          event: 'task_claimed',
          ...row({ ...one, queue }, one.traceparent),
          attempt_id: shortId(one.attempt_id),
          attempt: one.attempt,
          waited_ms: Math.max(0, Number(one.started_at) - Number(one.pending_since)),
        });
    },
    /** duration_ms: from the claim to the end of the attempt. */
    settled(closed: readonly ClosedAttempt[]): void {
      for (const one of closed) {
        const level = hasFailed(one) ? 'warn' : 'debug';
        if (!log.isLevelEnabled(level)) continue;
        log[level]({
          event: 'attempt_settled',
          ...row(one, one.traceparent),
          attempt_id: shortId(one.attempt_id),
          attempt: one.number,
          verdict: one.verdict,
          applied: one.applied,
          status: one.status === null ? undefined : STATUS[one.status],
          retry_count: one.retry_count ?? undefined,
          duration_ms: Number(one.closed_at) - Number(one.claimed_at),
        });
      }
    },
    /** `applied` and, with that, what it came to: attempt_settled. */
    reported(outcome: string, attemptId: string | undefined): void {
      if (!speaks()) return;
      log.debug({ event: 'callback_answered', outcome, attempt_id: attemptId && shortId(attemptId) });
    },
    /** Tasks of one queue that nobody pushed in time. Answers their keys. */
    expired(keys: TaskKey[], tasks: readonly ExpiredRow[]): TaskKey[] {
      if (tasks.length > 0) log.warn({ event: 'tasks_expired', queue: tasks[0]!.queue, count: tasks.length });
      for (const one of speaks() ? tasks : [])
        log.debug({ event: 'task_expired', ...row(one, one.traceparent), waited_ms: Number(one.waited_ms) });
      return keys;
    },
    /** A higher version was accepted before they were Pending again. Answers the keys. */
    superseded(keys: TaskKey[]): TaskKey[] {
      for (const key of speaks() ? keys : []) log.debug({ event: 'task_superseded', ...task(key, null) });
      return keys;
    },
    cancelled(key: TaskKey, traceparent: string | null): void {
      if (speaks()) log.debug({ event: 'task_cancelled', ...task(key, traceparent) });
    },
    /** By hand. */
    retried(key: TaskKey, traceparent: string | null): void {
      if (speaks()) log.debug({ event: 'task_retried', ...task(key, traceparent) });
    },
  };
}

const since = (ms: number): number => Math.round(performance.now() - ms);
