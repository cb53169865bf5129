/**
 * Steps (a) to (c) of the slot protocol (docs/design.md): acquire slots, claim tasks, confirm.
 *
 * Killed after (a): slots without attempts; reconcile drops them once older than ACQUIRE_TTL_MS.
 * Killed after (b): the attempts are open and unsent; they hold their slots until the deadline, then count as in doubt.
 * Stopped for long after (b) and woken: the slots may be gone to others; (c) finds that out before anything is sent.
 */
import { randomBytes } from 'node:crypto';
import { type Db, wasRolledBack } from '../db.ts';
import type { Limiter } from '../limiter/limiter.ts';
import type { Log } from '../log.ts';
import type { Limits, Queue, Target } from '../queues.ts';
import type { Chooser } from './chooser.ts';
import type { TargetRecord } from './circuits.ts';
import { BEGINNING } from './front.ts';
import type { Targets } from './targets.ts';

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
  /** Null when it was submitted in SQL without one. */
  traceparent: string | null;
  create_at: string;
  pending_since: string;
  started_at: string;
  has_blocked: boolean;
  /** Where it stood in its level. */
  place: string;
  /** Holds a slot of the retries' share. */
  retry: boolean;
  /** Where this attempt is pushed. */
  target: Target;
  /** Only after a look-up: the task was cancelled since, nothing is to be sent. */
  cancelled?: boolean;
};

type ClaimRow = Omit<ClaimedTask, 'attempt_id' | 'target'> & {
  gate: 'open' | 'fenced' | 'waiting';
  attempt_id: string | null;
  url: string;
  /** Slots that the targets took. */
  slots: number;
  /** Tasks that the line offered for them. */
  wanted: number;
  /** Of the targets that may not take all now; null when nothing was learned of any. */
  records: TargetRecord[] | null;
};
type Slots = Awaited<ReturnType<Limiter['acquire']>>;

export type ClaimRound = {
  /** To be pushed, in the order of the line. */
  tasks: ClaimedTask[];
  /** Claimed but not to be sent (the slot went to others, the task was cancelled): back to Pending. */
  lost: ClaimedTask[];
  /** performance.now() before the claim was sent: no deadline counts from later. */
  claimedAt: number;
  /** There is more to claim: call again. */
  more: boolean;
  /** All that may be claimed was, and slots were left: one that is freed changes nothing. */
  drained: boolean;
};

export type ClaimerDeps = {
  db: Db;
  limiter: Limiter;
  chooser: Chooser;
  targets: Targets;
  limits: (queue: Queue) => Limits;
  /** Slots under the global limit came back unused: they may be what another queue is short of. */
  onUnused: () => void;
  log: Log;
};

/** 168 random bits, 28 characters of text; the contract asks for 128 bits at least. */
const ATTEMPT_ID_BYTES = 21;
/** Seconds in base 36, repeating after some weeks. */
const ID_TIME_CHARACTERS = 4;
const LOOKUP_EVERY_MS = 500;

export const NOTHING: ClaimRound = { tasks: [], lost: [], claimedAt: 0, more: false, drained: false };

export function createClaimer({ db, limiter, chooser, targets, limits: limitsOf, onUnused, log }: ClaimerDeps) {
  return { claim };

  /**
   * Up to `room` tasks of the queue, of each level those from a place on. Throws when a store is away; what was taken by
   * then is repaired (see above).
   */
  async function claim(queue: Queue, room: number, from = BEGINNING): Promise<ClaimRound> {
    const epoch = limiter.epoch();
    if (epoch === null || room < 1) return NOTHING;
    await targets.look(queue.targets);
    const asked = targets.ask(queue.targets);
    if (asked.urls.length === 0) return NOTHING;
    const limits = limitsOf(queue);
    const slots = await limiter.acquire(queue.queue, newAttemptIds(room), limits);
    if (slots.ids.length === 0) return NOTHING;
    const claimedAt = performance.now();
    const rows = await claimRows(queue, slots, limits, epoch, asked, from);
    const tasks = rows.filter(isTask).map((row) => taskOf(queue, row));
    const { gate, wanted, records, slots: filled } = rows[0]!;
    chooser.record(tasks);
    const short = gate !== 'fenced' && filled < slots.ids.length;
    targets.seen({
      at: claimedAt,
      urls: asked.urls,
      records: gate === 'fenced' ? null : records,
      claimed: tasks,
      short,
    });
    const lost = await confirm(queue, slots.ids, tasks, limits);
    if (limits.global > 0 && tasks.length > 0 && tasks.length < slots.ids.length) onUnused();
    return {
      tasks: tasks.filter((task) => !lost.has(task.attempt_id)),
      lost: tasks.filter((task) => lost.has(task.attempt_id)),
      claimedAt,
      more: gate === 'open' && (tasks.length === room || tasks.length < wanted),
      drained: gate === 'open' && !short && isDrained(slots, tasks, wanted),
    };
  }

  /** When the outcome of the COMMIT is unknown, the attempts are looked up before anything else is decided. */
  async function claimRows(
    queue: Queue,
    slots: Slots,
    limits: Limits,
    epoch: string,
    { urls, outstanding }: ReturnType<Targets['ask']>,
    from: number[],
  ): Promise<ClaimRow[]> {
    const { levels, starts, retryStarts, strides, retryFirst, retryTurn } = chooser.line(
      queue.priority_weights,
      limits.retries >= limits.limit,
    );
    const line = [levels, starts, retryStarts, strides, retryFirst, retryTurn];
    try {
      const params = [queue.queue, slots.ids, slots.retries, ...line, epoch, urls, outstanding, from];
      return await db.query<ClaimRow>('claim_tasks', params);
    } catch (error) {
      if (wasRolledBack(error)) {
        await limiter.release(queue.queue, slots.ids);
        throw error;
      }
      log.warn({
        event: 'claim_outcome_unknown',
        queue: queue.queue,
        slots: slots.ids.length,
        error: (error as Error).message,
      });
      return await lookUp(slots.ids, error);
    }
  }

  /**
   * The claim may still commit on the server after a look that finds nothing, so slots not found are never given back
   * here: reconcile drops them when they are old and still without an attempt.
   */
  async function lookUp(ids: string[], cause: unknown): Promise<ClaimRow[]> {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, LOOKUP_EVERY_MS));
      const found = await db.query<ClaimRow>('find_attempts', [ids]).catch(() => null);
      if (found && found.length > 0)
        return found.map((row) => ({ ...row, gate: 'open', slots: ids.length, wanted: 0, records: null }));
      if (found) throw cause;
    }
  }

  /** Ids of tasks not to be sent. With the limiter away nothing may be pushed: all are lost. */
  async function confirm(queue: Queue, ids: string[], tasks: ClaimedTask[], limits: Limits): Promise<Set<string>> {
    const claimed = tasks.map((task) => task.attempt_id);
    const retries = tasks.filter((task) => task.retry).map((task) => task.attempt_id);
    const cancelled = tasks.filter((task) => task.cancelled).map((task) => task.attempt_id);
    const taken = new Set(claimed);
    const unused = ids.filter((id) => !taken.has(id));
    try {
      const lost = await limiter.confirm(queue.queue, { claimed, retries, unused }, limits);
      return new Set([...lost, ...cancelled]);
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

/** Neither the slots nor the retries' share of them held anything back. */
function isDrained({ ids, retries }: Slots, tasks: readonly ClaimedTask[], wanted: number): boolean {
  return tasks.length < ids.length && tasks.length >= wanted && tasks.filter((task) => task.retry).length < retries;
}

const isTask = (row: ClaimRow): row is ClaimRow & { attempt_id: string } => row.attempt_id !== null;

const taskOf = (queue: Queue, row: ClaimRow & { attempt_id: string }): ClaimedTask => ({
  ...row,
  target: queue.targets.find(({ url }) => url === row.url)!,
});

/**
 * Opaque and URL-safe: knowing one is the right to report on that attempt. Those of one second begin alike, so that they
 * stand together in the index of all attempts, which stays quick when it is larger than memory.
 */
function newAttemptIds(count: number): string[] {
  const bytes = randomBytes(count * ATTEMPT_ID_BYTES);
  const time = Math.floor(Date.now() / 1000)
    .toString(36)
    .slice(-ID_TIME_CHARACTERS);
  return Array.from(
    { length: count },
    (_, i) => time + bytes.toString('base64url', i * ATTEMPT_ID_BYTES, (i + 1) * ATTEMPT_ID_BYTES),
  );
}
