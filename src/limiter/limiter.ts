/**
 * The concurrency limiter: never more confirmed open attempts of a queue than its limit, of these never more retries
 * than their share, and over all queues never more than the global limit.
 *
 * The life of a slot, and whose word moves it:
 *   free -> held       acquire, before the claim: only while there is room (below)
 *   held -> confirmed  confirm, after the claim's commit: only while no bound is exceeded; then it is pushed
 *   -> free            release, after the commit that closed the attempt (or at once for an id no task was found for);
 *                      reconcile, when PostgreSQL knows no open attempt for it (reconcile.ts); a rebuild (opening.ts)
 * Slots never expire. The only clock is the store's, used to tell how long a slot was not touched, and a want's end.
 *
 * Marks. A retry's slot holds a mark, and there are Limits.retries of them. Which tasks are claimed is known only after
 * the acquire: it reserves as many marks as are free, on any of its slots, and says how many; the claim takes no more
 * retries than that; the confirmation moves the marks to them and frees the rest. A mark lives and goes with its slot.
 *
 * Room, when there is a global limit: the total is below it, and the queue is below its guaranteed part, or the slot is
 * not owed to others. An acquire that comes short leaves a want: to grow, within the guaranteed part, by what it asked
 * for. What a queue lacks of that is owed to it. So borrowers get nothing as their slots come back, until those to whom
 * they are owed have taken them; and a queue that is at its part and has more to do keeps it. A want ends when slots
 * come back unused (there was nothing to claim), and by itself: who stopped asking lends its part again. Nobody
 * is preempted.
 *
 * Why it holds. In the store in force every confirmed open attempt has a slot: a rebuild starts from all open
 * attempts, a release comes after the closing commit, and reconciliation drops nothing that is open or was touched
 * since it looked. A confirmation succeeds only when, its own slot counted, the value is at most the limit. So after
 * each confirmation the confirmed open attempts are at most the limit, whatever value stood there before.
 * The same argument, word for word, with the slots of all queues for the global limit, and with the marks for the
 * share: every confirmed open retry has a mark, because confirm sets it, and rebuild and reconciliation set it by
 * attempts.retry, which the claim wrote and nobody changes. Acquire alone would not do: what it counted can be lost
 * and come back (next).
 *   - Why confirm may refuse a slot that is there: an instance stopped between acquire and commit can lose its slot to
 *     somebody else; when it wakes and commits, its attempt is open, and reconciliation adds it above the limit, as it
 *     must, for the attempt is open. It must not be pushed, and is not: the value is above the limit. So with the total
 *     (whichever queue confirms then is refused, and its slot comes off the total) and with the marks.
 *   - Why a store no longer in force may still confirm: the new store counted every attempt claimed under the old epoch
 *     from its first moment, confirmed or not, and no more can be claimed. So each of its confirmations already left
 *     room for all that the old store may yet confirm; and those that only the old store makes are bounded by it.
 *   - Wants are about order, never about safety: losing them (a rebuild does) or reading old ones exceeds nothing.
 *
 * Crash after acquire: reconciliation drops the slot after ACQUIRE_TTL_MS. After the claim: the watcher closes the
 * attempt at its deadline and releases; reconciliation puts its mark right. After the closing commit: reconciliation
 * again. The store away: acquire and confirm throw, releases are kept in memory until it is back, and what is forgotten
 * there is reconciliation's.
 */
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';
import type { Limits } from '../queues.ts';
import type { Backend, Granted } from './backend.ts';
import { createOpening, type Look, MAX_BATCH } from './opening.ts';
import { reconcile } from './reconcile.ts';
import { createUndelivered } from './undelivered.ts';

/** While open: often enough to prove the store long before the proof is stale (opening.ts). */
const LOOK_EVERY_MS = 1_000;
/** While closed or degraded nothing is pushed, and a look is cheap. */
const LOOK_AGAIN_MS = 250;

export type LimiterState = {
  /** open: slots may be taken. closed: the store is away or being rebuilt. degraded: another store is in force. */
  status: 'open' | 'closed' | 'degraded';
  /** One sentence; null while open. */
  reason: string | null;
  /** Age of the last successful check of the store, in ms; null before the first. */
  lastOkAgeMs: number | null;
};

/**
 * What one reconciliation did in a queue. drift, as found: slots without an open attempt (positive) or open attempts
 * without a slot (negative); slots of claims under way do not count.
 */
export type QueueDrift = { queue: string; dropped: number; added: number; drift: number };

/** What became of the ids of an acquire. */
export type Batch = { claimed: readonly string[]; retries: readonly string[]; unused: readonly string[] };

export type Limiter = {
  /**
   * Takes up to ids.length (1..512) slots of the queue under these new attempt ids; never lifts the queue's value above
   * its limit, nor the total above the global one. Ask for what there is work for: what is not granted of it, others
   * may have to leave to this queue. Answers the granted ids, a prefix of `ids` ([] when full; an id already held counts
   * as granted, once), and how many of these slots may be used for retries, whichever.
   * Throws LimiterClosed when the store is closed, degraded or away: ids it may have taken all the same are released
   * when it is back, so they must not be used again.
   */
  acquire(queue: string, ids: readonly string[], limits: Limits): Promise<Granted>;
  /**
   * After the claim commit. A present id keeps its slot while no bound is exceeded, else the slot is given back and the
   * id is lost; an absent id takes a free slot, else is lost. `retries`, those of `claimed` that are retries, hold the
   * marks from now on. `unused` ids are released in the same call. At most 512 ids in all. Returns the lost ids: their
   * attempts must be closed unsent, and then released like any other (reconciliation may have given them a slot in
   * between). Throws LimiterClosed: then all of them are lost.
   */
  confirm(queue: string, batch: Batch, limits: Limits): Promise<string[]>;
  /** After the closing commit; any number. Idempotent. Never throws: what cannot be delivered now is kept for later. */
  release(queue: string, ids: readonly string[]): Promise<void>;
  /** Slots in use. Every queue asked for is in the answer. Throws LimiterClosed. */
  usage(queues: readonly string[]): Promise<Map<string, number>>;
  /** The epoch a claim must be guarded with; null while closed or degraded: then claim nothing. */
  epoch(): string | null;
  state(): LimiterState;
  /** Slots versus open attempts; one entry a queue that needed repair. Two at once are safe. Throws LimiterClosed. */
  reconcile(): Promise<QueueDrift[]>;
  /** One round of the opening protocol; resolves when the state is known. */
  runOnce(): Promise<LimiterState>;
  /** First round, then one a second. Resolves after the first round, whatever it found. */
  start(): Promise<void>;
  stop(): Promise<void>;
};

export type LimiterDeps = {
  backend: Backend;
  db: Db;
  log: Log;
  /** Names this process in limiter_state.seen_by; random, new at every start. */
  instanceId: string;
  /** A slot without an open attempt is dropped once it is older than this (ms). Above the longest claim. */
  acquireTtlMs: number;
  /** How long a queue that came short is waited for by borrowers (ms). Above the time after which pushers ask again. */
  wantTtlMs: number;
  /** Slots may be taken again: there may be work waiting. */
  onOpen: () => void;
};

/** The store is closed, degraded or away: no slot can be taken or confirmed now. */
export class LimiterClosed extends Error {
  constructor(reason: string, options?: ErrorOptions) {
    super(reason, options);
    this.name = 'LimiterClosed';
  }
}

export function createLimiter(deps: LimiterDeps): Limiter {
  const { backend, db, log, instanceId, acquireTtlMs, wantTtlMs, onOpen } = deps;
  const opening = createOpening({ backend, db, log, instanceId });
  const undelivered = createUndelivered();
  let status: LimiterState['status'] = 'closed';
  let reason: string | null = 'the limiter store was not looked at yet';
  let epoch: string | null = null;
  let lastOkAt: number | null = null;
  let told = false;
  let looking: Promise<LimiterState> | null = null;
  let timer: NodeJS.Timeout | undefined;
  let started = false;

  return {
    acquire: (queue, ids, limits) =>
      call(
        (inForce) => backend.acquire(inForce, queue, ids, limits, wantTtlMs),
        () => undelivered.add(queue, ids),
      ),
    confirm: (queue, { claimed, retries, unused }, limits) => {
      const isRetry = new Set(retries);
      const fresh = claimed.filter((id) => !isRetry.has(id));
      return call((inForce) => backend.confirm(inForce, queue, { fresh, retries, unused }, limits)).catch((error) => {
        // Also when it was closed by then, and nothing was called: the unused ones may still hold their slots.
        undelivered.add(queue, unused);
        throw error;
      });
    },
    release,
    usage: async (queues) => {
      const values = await call((inForce) => backend.usage(inForce, queues));
      return new Map(queues.map((queue, i) => [queue, values[i]!]));
    },
    reconcile: async () => {
      const inForce = demandEpoch();
      return (await reconcile({ backend, db, acquireTtlMs }, inForce)) ?? lose(inForce);
    },
    epoch: () => epoch,
    state,
    runOnce,
    start: () => {
      started = true;
      return round();
    },
    stop: async () => {
      started = false;
      clearTimeout(timer);
      await looking;
    },
  };

  function state(): LimiterState {
    return { status, reason, lastOkAgeMs: lastOkAt === null ? null : Math.round(performance.now() - lastOkAt) };
  }

  function demandEpoch(): string {
    if (epoch === null) throw new LimiterClosed(reason ?? status);
    return epoch;
  }

  /** Runs a store call under the epoch in force. `unknown` runs when it may or may not have been done. */
  async function call<T>(run: (inForce: string) => Promise<T | null>, unknown?: () => void): Promise<T> {
    const inForce = demandEpoch();
    let answer: T | null;
    try {
      answer = await run(inForce);
    } catch (error) {
      unknown?.();
      throw fail(inForce, error);
    }
    return answer ?? lose(inForce);
  }

  async function release(queue: string, ids: readonly string[]): Promise<void> {
    for (let i = 0; i < ids.length; i += MAX_BATCH) {
      const batch = ids.slice(i, i + MAX_BATCH);
      await call((inForce) => backend.release(inForce, queue, batch)).catch(() => {
        if (undelivered.count() === 0) log.warn({ event: 'limiter_release_deferred', queue, reason });
        undelivered.add(queue, batch);
      });
    }
  }

  /** The store did not answer, or not as it should. */
  function fail(inForce: string, error: unknown): LimiterClosed {
    const closed = new LimiterClosed(unusable(error), { cause: error });
    if (epoch === inForce) enter({ status: 'closed', reason: closed.message });
    lookIn(LOOK_AGAIN_MS);
    return closed;
  }

  /** The store refused the epoch: its slots were lost, or another store is in force. */
  function lose(inForce: string): never {
    const closed = new LimiterClosed('the slots were lost, or another epoch is in force');
    if (epoch === inForce) enter({ status: 'closed', reason: closed.message });
    lookIn(0);
    throw closed;
  }

  function unusable(error: unknown): string {
    return `the limiter store (${backend.name}) cannot be used: ${error instanceof Error ? error.message : error}`;
  }

  function enter(next: Look | { status: 'closed'; reason: string }): void {
    const changed = next.status !== status || !told;
    told = true;
    status = next.status;
    reason = next.status === 'open' ? null : next.reason;
    epoch = next.status === 'open' ? next.epoch : null;
    if (!changed) return;
    if (status === 'open') {
      log.info({ event: 'limiter_open', backend: backend.name });
      onOpen();
    } else log.warn({ event: 'limiter_closed', status, backend: backend.name, reason });
  }

  function runOnce(): Promise<LimiterState> {
    looking ??= look().finally(() => {
      looking = null;
    });
    return looking;
  }

  async function look(): Promise<LimiterState> {
    try {
      enter(await opening.look());
    } catch (error) {
      enter({ status: 'closed', reason: unusable(error) });
    }
    if (status === 'open') {
      lastOkAt = performance.now();
      for (const [queue, ids] of undelivered.takeAll()) await release(queue, ids);
    }
    return state();
  }

  async function round(): Promise<void> {
    await runOnce();
    clearTimeout(timer);
    if (started) timer = setTimeout(round, status === 'open' ? LOOK_EVERY_MS : LOOK_AGAIN_MS);
  }

  function lookIn(ms: number): void {
    clearTimeout(timer);
    if (started) timer = setTimeout(round, ms);
  }
}
