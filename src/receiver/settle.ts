/**
 * Settle: closes attempts and moves their tasks, for callbacks, push answers and time-outs alike.
 *
 * Order, and who repairs a crash:
 *   1. one guarded statement for a group of attempts (settle_attempts.sql); its commit is the truth.
 *      Killed before: nothing happened; the parser calls back again, or the deadline closes the attempt.
 *   2. slots released. Killed between 1 and 2: the slots have no open attempt, and reconcile drops them once they are
 *      older than ACQUIRE_TTL_MS. A repeated callback releases again (idempotent).
 *   3. waiters told, pushers triggered, the answer sent. Killed before the answer: the parser repeats and gets
 *      `duplicate`. A lost wake-up is made good by the periodic trigger.
 * The fence: an attempt can be closed once; a task moves only while it is Processing under that very attempt.
 */
import type { Db } from '../db.ts';
import { createGroupCommit } from '../group-commit.ts';
import type { Limiter } from '../limiter/limiter.ts';
import { PENDING } from '../task.ts';
import { readTraceparent, startSpan } from '../trace.ts';

export type Verdict =
  | 'success'
  | 'parser_failed'
  | 'result_too_large'
  | 'refused'
  | 'try_failed'
  | 'busy'
  | 'broken'
  | 'unsent'
  | 'expired'
  | 'cancel_done';

export type Settlement = {
  attemptId: string;
  verdict: Verdict;
  /** The parser's, as decimal text. */
  statusCode?: string | null;
  statusMsg?: string | null;
  /** Raw JSON text; kept with `success` only. */
  result?: string | null;
  /** With `busy`: not claimable before now + afterMs. */
  afterMs?: number;
  /** The traceparent header the parser reported with. */
  traceparent?: string | undefined;
};

/**
 * applied: this call closed the attempt and moved the task. duplicate: an earlier callback of this attempt was applied.
 * stale: closed any other way, or its task was cancelled (this call may have closed it). unknown: no such attempt.
 */
export type SettleOutcome = 'applied' | 'duplicate' | 'stale' | 'unknown';

/** A closed attempt, as settle_attempts.sql returns it; times in ms as decimal text. */
export type ClosedAttempt = {
  attempt_id: string;
  queue: string;
  task_id: string;
  task_version: string;
  number: number;
  verdict: string;
  applied: boolean;
  /** The task's new status; null when it was not applied. */
  status: number | null;
  create_at: string | null;
  claimed_at: string;
  closed_at: string;
  traceparent: string | null;
};

export type Settled = { outcome: SettleOutcome; closed: ClosedAttempt | null };

type Explained = { attempt_id: string; outcome: string | null; queue: string };

export type Settler = {
  /** Resolves after the commit; rejects when the store is away or overloaded (nothing is lost: say it again). */
  settle(settlement: Settlement): Promise<Settled>;
  idle(): Promise<void>;
};

export type SettlerDeps = {
  db: Db;
  limiter: Limiter;
  /** After the commit and the release: attempts closed, some of their tasks perhaps claimable again. */
  onClosed: (closed: ClosedAttempt[]) => void;
};

/** What a parser can have reported about itself: a second report is a duplicate. */
const REPORTED = new Set(['success', 'parser_failed', 'result_too_large']);

export function createSettler({ db, limiter, onClosed }: SettlerDeps): Settler {
  const group = createGroupCommit<Settlement, Settled>({
    run: settleGroup,
    keyOf: (settlement) => settlement.attemptId,
    sizeOf: (settlement) => 500 + (settlement.result?.length ?? 0),
  });
  const finishing = new Set<Promise<void>>();
  return { settle: group.add, idle };

  async function idle(): Promise<void> {
    await group.idle();
    await Promise.all(finishing);
  }

  async function settleGroup(settlements: Settlement[]): Promise<Settled[]> {
    const startMs = Date.now();
    const rows = await db.query<ClosedAttempt>('settle_attempts', [
      settlements.map((s) => s.attemptId),
      settlements.map((s) => s.verdict),
      settlements.map((s) => s.statusCode ?? null),
      settlements.map((s) => s.statusMsg ?? null),
      settlements.map((s) => s.result ?? null),
      settlements.map((s) => s.afterMs ?? 0),
    ]);
    const closed = new Map(rows.map((row) => [row.attempt_id, row]));
    track(finish(rows));
    for (const s of settlements) traceSettled(closed.get(s.attemptId), startMs, s.traceparent);
    const missed = settlements.filter((s) => !closed.has(s.attemptId)).map((s) => s.attemptId);
    const explained = missed.length === 0 ? [] : await db.query<Explained>('explain_attempts', [missed]);
    // Released again: the process that closed them may have died before it came to that.
    track(release(explained.filter((row) => row.outcome !== null)));
    const why = new Map(explained.map((row) => [row.attempt_id, row]));
    return settlements.map((s) => outcomeOf(closed.get(s.attemptId), why.get(s.attemptId)));
  }

  /** Steps 2 and 3. */
  async function finish(rows: ClosedAttempt[]): Promise<void> {
    await release(rows);
    if (rows.length > 0) onClosed(rows);
  }

  async function release(closed: { queue: string; attempt_id: string }[]): Promise<void> {
    const queues = [...Map.groupBy(closed, (row) => row.queue)];
    const releases = queues.map(([queue, rows]) =>
      limiter.release(
        queue,
        rows.map((row) => row.attempt_id),
      ),
    );
    await Promise.all(releases);
  }

  function track(work: Promise<void>): void {
    finishing.add(work);
    void work.finally(() => finishing.delete(work));
  }
}

/** The settle span: under the parser's span when it sent one of the same trace, else under what the task carries. */
function traceSettled(closed: ClosedAttempt | undefined, startMs: number, header: string | undefined): void {
  if (!closed?.traceparent) return;
  const sameTrace = header?.slice(0, 35) === closed.traceparent.slice(0, 35);
  const attributes = {
    'messaging.system': 'docsched',
    'messaging.destination.name': closed.queue,
    'messaging.operation.type': 'process',
    'docsched.task.id': closed.task_id,
    'docsched.task.version': closed.task_version,
    'docsched.settle.verdict': closed.verdict,
  };
  const parent = (sameTrace ? readTraceparent(header) : null) ?? closed.traceparent;
  startSpan(`settle ${closed.queue}`, 'CONSUMER', parent, attributes, startMs).end();
}

function outcomeOf(closed: ClosedAttempt | undefined, explained: Explained | undefined): Settled {
  if (closed) return { outcome: closed.applied ? 'applied' : 'stale', closed };
  if (!explained) return { outcome: 'unknown', closed: null };
  return { outcome: REPORTED.has(explained.outcome ?? '') ? 'duplicate' : 'stale', closed: null };
}

/** Whether the attempt's task ended with it. */
export const isFinished = (closed: ClosedAttempt): boolean => closed.applied && closed.status !== PENDING;
/** Whether the attempt's task is Pending again: it may be due at once. */
export const isReturned = (closed: ClosedAttempt): boolean => closed.applied && closed.status === PENDING;
