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
 * A task that somebody else's transaction holds is passed over: its attempt leaves the group and is tried again apart
 * from it, so that nobody waits for a key that is not theirs.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Db } from '../db.ts';
import { AppError } from '../errors.ts';
import { createGroupCommit } from '../group-commit.ts';
import type { Limiter } from '../limiter/limiter.ts';
import { keyOf, PENDING, STATUS } from '../task.ts';
import { ATTRIBUTE, settleParent, startSpan } from '../trace.ts';

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
 * locked: another transaction holds the task; nothing changed, say it again.
 */
export type SettleOutcome = 'applied' | 'duplicate' | 'stale' | 'unknown' | 'locked';

/** A closed attempt, as settle_attempts.sql returns it; times in ms as decimal text. */
export type ClosedAttempt = {
  attempt_id: string;
  queue: string;
  task_id: string;
  task_version: string;
  number: number;
  /** The parser's URL it was claimed for. */
  target: string;
  verdict: string;
  applied: boolean;
  /** The task's new status; null when it was not applied. */
  status: number | null;
  /** Retries its task had before; null when it was not applied. */
  retry_count: number | null;
  create_at: string | null;
  claimed_at: string;
  closed_at: string;
  traceparent: string | null;
};

export type Settled = { outcome: SettleOutcome; closed: ClosedAttempt | null };

/** An attempt that was open; when it is locked, it still is. */
type HeldAttempt = ClosedAttempt & { locked: boolean };
type Explained = { attempt_id: string; outcome: string | null; queue: string };

export type Settler = {
  /**
   * Resolves after the commit; rejects when the store is away or overloaded, or with `task_locked` when the task has
   * been locked for LOCKED_PATIENCE_MS (nothing is lost: say it again).
   */
  settle(settlement: Settlement): Promise<Settled>;
  /**
   * All in one commit; outcomes in order, `locked` among them. Of several for one attempt the first counts. For reports
   * of parsers only (`success`, `parser_failed`).
   */
  settleBatch(settlements: Settlement[]): Promise<Settled[]>;
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
/** A locked task is tried again at intervals that grow from the first to the second, and given up after the third. */
const LOCKED_FIRST_MS = 25;
const LOCKED_LAST_MS = 250;
const LOCKED_PATIENCE_MS = 2_000;

export function createSettler({ db, limiter, onClosed }: SettlerDeps): Settler {
  const grouping = {
    run: settleGroup,
    keyOf: (settlement: Settlement) => settlement.attemptId,
    sizeOf: (settlement: Settlement) => 500 + (settlement.result?.length ?? 0),
  };
  const group = createGroupCommit<Settlement, Settled>(grouping);
  const lockedGroup = createGroupCommit<Settlement, Settled>(grouping);
  const finishing = new Set<Promise<void>>();
  return { settle, settleBatch, idle };

  async function settle(settlement: Settlement): Promise<Settled> {
    const settled = await whenFree(settlement, await group.add(settlement));
    if (settled.outcome === 'locked') throw taskLocked();
    return settled;
  }

  async function settleBatch(settlements: Settlement[]): Promise<Settled[]> {
    if (settlements.length === 0) return [];
    const seen = new Set<string>();
    const firsts = settlements.filter(({ attemptId }) => !seen.has(attemptId) && seen.add(attemptId));
    const settled = await settleGroup(firsts);
    const freed = await Promise.all(firsts.map((first, index) => whenFree(first, settled[index]!)));
    const byAttempt = new Map(firsts.map((first, index) => [first.attemptId, { first, settled: freed[index]! }]));
    return settlements.map((settlement) => {
      const { first, settled } = byAttempt.get(settlement.attemptId)!;
      return settlement === first ? settled : repeated(settled);
    });
  }

  /** Tries a locked task again, together with other locked ones only. */
  async function whenFree(settlement: Settlement, first: Settled): Promise<Settled> {
    const until = performance.now() + LOCKED_PATIENCE_MS;
    let settled = first;
    for (let delayMs = LOCKED_FIRST_MS; settled.outcome === 'locked' && performance.now() < until; ) {
      await sleep(delayMs);
      delayMs = Math.min(delayMs * 2, LOCKED_LAST_MS);
      settled = await lockedGroup.add(settlement);
    }
    return settled;
  }

  async function idle(): Promise<void> {
    await Promise.all([group.idle(), lockedGroup.idle()]);
    await Promise.all(finishing);
  }

  async function settleGroup(settlements: Settlement[]): Promise<Settled[]> {
    const startMs = Date.now();
    const rows = await db.query<HeldAttempt>('settle_attempts', [
      settlements.map((s) => s.attemptId),
      settlements.map((s) => s.verdict),
      settlements.map((s) => s.statusCode ?? null),
      settlements.map((s) => s.statusMsg ?? null),
      settlements.map((s) => s.result ?? null),
      settlements.map((s) => s.afterMs ?? 0),
    ]);
    const held = new Map(rows.map((row) => [row.attempt_id, row]));
    track(finish(rows.filter((row) => !row.locked)));
    for (const s of settlements) traceSettled(held.get(s.attemptId), startMs, s.traceparent);
    const missed = settlements.filter((s) => !held.has(s.attemptId)).map((s) => s.attemptId);
    const explained = missed.length === 0 ? [] : await db.query<Explained>('explain_attempts', [missed]);
    // Released again: the process that closed them may have died before it came to that.
    track(release(explained.filter((row) => row.outcome !== null)));
    const why = new Map(explained.map((row) => [row.attempt_id, row]));
    return settlements.map((s) => outcomeOf(s.verdict, held.get(s.attemptId), why.get(s.attemptId)));
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

/** Of these verdicts no push tells. */
const SPAN_ERRORS: Record<string, string> = {
  parser_failed: 'the parser reported a failure',
  processing_expired: 'the parser accepted the task but did not report before the deadline',
  in_doubt_expired: 'the push got no clear answer and no callback came before the deadline',
};

/** The settle span of an attempt that this call closed. */
function traceSettled(held: HeldAttempt | undefined, startMs: number, header: string | undefined): void {
  if (!held?.traceparent || held.locked) return;
  const { verdict, applied, number, status, retry_count, create_at, claimed_at, closed_at } = held;
  const attributes = {
    [ATTRIBUTE.attempt]: number,
    [ATTRIBUTE.openMs]: Number(closed_at) - Number(claimed_at),
    [ATTRIBUTE.verdict]: verdict,
    [ATTRIBUTE.applied]: applied,
    ...(status === null ? {} : { [ATTRIBUTE.taskStatus]: STATUS[status]! }),
    ...(retry_count === null ? {} : { [ATTRIBUTE.retryCount]: retry_count }),
    ...(create_at === null ? {} : { [ATTRIBUTE.ageMs]: Number(closed_at) - Number(create_at) }),
  };
  const parent = settleParent(held.traceparent, header);
  const message = SPAN_ERRORS[verdict];
  const error = message === undefined ? undefined : { type: verdict, message };
  startSpan('settle', keyOf(held), parent, { attributes, startMs, events: { claimed: Number(claimed_at) } }).end(
    {},
    error,
  );
}

function outcomeOf(verdict: Verdict, held: HeldAttempt | undefined, explained: Explained | undefined): Settled {
  // A time-out is not tried again here: the watcher finds the attempt again at its next run.
  if (held?.locked) return { outcome: verdict === 'expired' ? 'stale' : 'locked', closed: null };
  if (held) return { outcome: held.applied ? 'applied' : 'stale', closed: held };
  if (!explained) return { outcome: 'unknown', closed: null };
  return { outcome: REPORTED.has(explained.outcome ?? '') ? 'duplicate' : 'stale', closed: null };
}

/** A second report of the same batch, by what became of the first. */
const repeated = ({ outcome }: Settled): Settled => ({
  outcome: outcome === 'applied' ? 'duplicate' : outcome,
  closed: null,
});

export const taskLocked = () =>
  new AppError('task_locked', 'Another transaction holds the task; nothing was changed', { retryAfterS: 1 });

/** Whether the attempt's task ended with it. */
export const isFinished = (closed: ClosedAttempt): boolean => closed.applied && closed.status !== PENDING;
/** Whether the attempt's task is Pending again: it may be due at once. */
export const isReturned = (closed: ClosedAttempt): boolean => closed.applied && closed.status === PENDING;
