/**
 * Steps (a) to (c) of the slot protocol (SPEC section 3): acquire slots, claim tasks, confirm.
 *
 * Killed after (a): slots without attempts; reconcile drops them once older than ACQUIRE_TTL_MS.
 * Killed after (b): the attempts are open and unsent; they hold their slots until the deadline, then count as in doubt.
 * Stopped for long after (b) and woken: the slots may be gone to others; (c) finds that out before anything is sent.
 */
import { randomBytes } from 'node:crypto';
import { type Db, wasRolledBack } from '../db.ts';
import type { Limiter } from '../limiter/limiter.ts';
import type { Log } from '../log.ts';
import type { Queue } from '../queues.ts';
import type { Chooser } from './chooser.ts';

/** A claimed row, as claim_tasks.sql returns it; bigints as decimal text. */
export type ClaimedTask = {
  attempt_id: string;
  task_id: string;
  task_version: string;
  priority: number;
  level: number;
  attempt: number;
  deadline: string;
  payload: string;
  traceparent: string;
  create_at: string;
  pending_since: string;
  started_at: string;
  has_blocked: boolean;
  /** Only after a look-up: the task was cancelled since, nothing is to be sent. */
  cancelled?: boolean;
};

type ClaimRow = Omit<ClaimedTask, 'attempt_id'> & {
  gate: 'open' | 'fenced' | 'waiting';
  attempt_id: string | null;
  wait_ms: number | null;
  failures: number;
  wanted: number;
};

export type ClaimRound = {
  /** To be pushed, in the order of the line. */
  tasks: ClaimedTask[];
  /** Claimed but not to be sent (the slot went to others, the task was cancelled): back to Pending. */
  lost: ClaimedTask[];
  /** performance.now() before the claim was sent: no deadline counts from later. */
  claimedAt: number;
  /** There is more to claim: call again. */
  more: boolean;
  /** How long the target is left alone from now, ms; null when it is not. */
  waitMs: number | null;
  /** The target has failures on record: the first answer of it clears them. */
  targetFailing: boolean;
};

export type ClaimerDeps = { db: Db; limiter: Limiter; chooser: Chooser; log: Log };

/** 192 random bits, 32 characters of text; the contract asks for 128 bits at least. */
const ATTEMPT_ID_BYTES = 24;
/** While a target fails, all instances together try one push in this time. */
const PROBE_MS = 1_000;
const LOOKUP_EVERY_MS = 500;

const NOTHING: ClaimRound = { tasks: [], lost: [], claimedAt: 0, more: false, waitMs: null, targetFailing: false };

export function createClaimer({ db, limiter, chooser, log }: ClaimerDeps) {
  return { claim };

  /** Up to `room` tasks of the queue. Throws when a store is away; what was taken by then is repaired (see above). */
  async function claim(queue: Queue, target: string, room: number): Promise<ClaimRound> {
    const epoch = limiter.epoch();
    if (epoch === null || room < 1) return NOTHING;
    const slots = await limiter.acquire(queue.queue, newAttemptIds(room), queue.concurrency_limit);
    if (slots.length === 0) return NOTHING;
    const claimedAt = performance.now();
    const rows = await claimRows(queue, target, slots, epoch);
    const tasks = rows.filter((row): row is ClaimRow & ClaimedTask => row.attempt_id !== null);
    const { gate, wait_ms, failures, wanted } = rows[0]!;
    chooser.record(tasks.map((task) => task.level));
    const ids = new Set(tasks.map((task) => task.attempt_id));
    const unused = slots.filter((id) => !ids.has(id));
    const lost = await confirm(queue, [...ids], unused);
    for (const task of tasks) if (task.cancelled) lost.add(task.attempt_id);
    return {
      tasks: tasks.filter((task) => !lost.has(task.attempt_id)),
      lost: tasks.filter((task) => lost.has(task.attempt_id)),
      claimedAt,
      more: gate === 'open' && (tasks.length === room || tasks.length < wanted),
      waitMs: gate === 'waiting' ? wait_ms : null,
      targetFailing: failures > 0,
    };
  }

  /** When the outcome of the COMMIT is unknown, the attempts are looked up before anything else is decided. */
  async function claimRows(queue: Queue, target: string, slots: string[], epoch: string): Promise<ClaimRow[]> {
    const { levels, starts, strides } = chooser.line(queue.priority_weights);
    try {
      return await db.query<ClaimRow>('claim_tasks', [
        queue.queue,
        slots,
        levels,
        starts,
        strides,
        epoch,
        target,
        PROBE_MS,
      ]);
    } catch (error) {
      if (wasRolledBack(error)) {
        await limiter.release(queue.queue, slots);
        throw error;
      }
      log.warn({
        event: 'claim_outcome_unknown',
        queue: queue.queue,
        slots: slots.length,
        error: (error as Error).message,
      });
      return await lookUp(slots, error);
    }
  }

  /**
   * The claim may still commit on the server after a look that finds nothing, so slots not found are never given back
   * here: reconcile drops them when they are old and still without an attempt.
   */
  async function lookUp(slots: string[], cause: unknown): Promise<ClaimRow[]> {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, LOOKUP_EVERY_MS));
      const found = await db.query<ClaimedTask>('find_attempts', [slots]).catch(() => null);
      if (found && found.length > 0)
        return found.map((task) => ({ ...task, gate: 'open', wait_ms: null, failures: 0, wanted: 0 }));
      if (found) throw cause;
    }
  }

  /** Ids that lost their slot. With the limiter away nothing may be pushed: all are lost. */
  async function confirm(queue: Queue, claimed: string[], unused: string[]): Promise<Set<string>> {
    try {
      return new Set(await limiter.confirm(queue.queue, claimed, unused, queue.concurrency_limit));
    } catch (error) {
      log.warn({
        event: 'confirm_failed',
        queue: queue.queue,
        claimed: claimed.length,
        error: (error as Error).message,
      });
      return new Set(claimed);
    }
  }
}

/** Opaque, URL-safe, 192 random bits each: knowing one is the right to report on that attempt. */
function newAttemptIds(count: number): string[] {
  const bytes = randomBytes(count * ATTEMPT_ID_BYTES);
  return Array.from({ length: count }, (_, i) =>
    bytes.toString('base64url', i * ATTEMPT_ID_BYTES, (i + 1) * ATTEMPT_ID_BYTES),
  );
}
