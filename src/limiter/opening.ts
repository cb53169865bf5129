/**
 * Which limiter store is in force, and how one comes into force.
 *
 * An epoch is a random name for one lifetime of the slots in one store. It is written in two places: in limiter_state
 * (PostgreSQL), where it says which slots count, and in the store itself, where it says which slots these are. An
 * instance works while both agree, and hands its epoch to every script (the store refuses any other) and to every
 * claim (which holds the limiter_state row FOR KEY SHARE until it commits, and finds nothing under any other epoch).
 * An epoch is put in force once and never comes back: a store whose data is gone, or that was out of force, starts a
 * new one. The store's epoch does not count when its data may be older than its last answer; see limiter_check.lua.
 *
 * A rebuild, by any instance that finds the two in disagreement:
 *   a. limiter_state: the epoch observed -> a new one. FOR UPDATE: claims in flight are over, later ones are fenced.
 *   b. Read the open attempts. As nothing can be claimed under an epoch that no store has yet, this list only shrinks.
 *   c. The store: all slots replaced by these, new epoch, in one script that does nothing if the store's own epoch is
 *      not the one observed: of two rebuilds only the first happens, and a late one cannot undo a later one.
 *   d. Release those that closed between b and c: their own releases named the old epoch and were refused.
 *   e. Look again from the start, because between a and c the next rebuild may have overtaken this one.
 * Crash after a: no store has the epoch, nobody pushes; this process's next look, or STALE_MS later anybody's,
 * rebuilds.
 * Crash after c: the store is right but for attempts of d, which reconciliation drops.
 *
 * Two stores (two URLs, two servers behind one URL, a change of backend): while an instance proves each second that
 * the store in force holds the epoch (seen_at, by PostgreSQL's clock), others are degraded and wait. When no proof has
 * come for STALE_MS they take over. That is about order, not safety: the bump fences the store that was in force at
 * once, however wrong the judgement was. What its instances had claimed before is among the open attempts of b, so the
 * new store counts it from its first moment on; see limiter.ts for why a confirmation in the old store does no harm.
 * The instance that gave the last proof does not wait: it knows that the store it saw is no longer what it was.
 */
import { randomBytes } from 'node:crypto';
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';
import type { Backend, Lanes, OpenAttempts } from './backend.ts';

/** A store not proven for this long is no longer in force; three missed proofs. */
const STALE_MS = 3_000;
/** Looks in one round: look, rebuild, look. More is another instance's rebuild in the way. */
const MAX_LOOKS = 3;
/** Ids to a release call, the store's bound. */
export const MAX_BATCH = 512;

export type Look = { status: 'open'; epoch: string } | { status: 'degraded'; reason: string };
export type OpeningDeps = { backend: Backend; db: Db; log: Log; instanceId: string };
type Held = { epoch: string | null; valid: boolean };
type StateRow = { backend: string; epoch: string; seen_by: string; age_ms: number };

/** What to do about the epoch the store holds and the one in force (undefined: there never was one). */
export function planOpening(held: Held, inForce: StateRow | undefined, instanceId: string): Look['status'] | 'rebuild' {
  if (inForce === undefined) return 'rebuild';
  if (held.valid && held.epoch === inForce.epoch) return 'open';
  if (inForce.seen_by === instanceId || inForce.age_ms >= STALE_MS) return 'rebuild';
  return 'degraded';
}

/** Open attempts as PostgreSQL has them now. */
export async function readOpenAttempts(db: Db): Promise<OpenAttempts> {
  const rows = await db.query<{ queue: string } & Lanes>('limiter_find_open', []);
  return new Map(rows.map(({ queue, fresh, retries }) => [queue, { fresh, retries }]));
}

/** Gives back those of the queue's ids whose attempts are closed by now. Returns how many, null when the epoch is lost. */
export async function releaseClosed(
  { db, backend }: Pick<OpeningDeps, 'db' | 'backend'>,
  epoch: string,
  queue: string,
  added: readonly string[],
): Promise<number | null> {
  if (added.length === 0) return 0;
  const rows = await db.query<{ attempt_id: string }>('limiter_find_closed', [added]);
  let released = 0;
  for (let i = 0; i < rows.length; i += MAX_BATCH) {
    const batch = rows.slice(i, i + MAX_BATCH).map((row) => row.attempt_id);
    const count = await backend.release(epoch, queue, batch);
    if (count === null) return null;
    released += count;
  }
  return released;
}

/** Looks at both sides, and rebuilds where that is due. Throws when either side cannot be reached. */
export function createOpening({ backend, db, log, instanceId }: OpeningDeps): { look(): Promise<Look> } {
  return {
    look: async () => {
      for (let looks = 1; ; looks++) {
        const held = await backend.check();
        const params = [held.valid ? held.epoch : null, instanceId];
        const [inForce] = await db.query<StateRow>('limiter_see_store', params);
        const plan = planOpening(held, inForce, instanceId);
        if (plan === 'open') return { status: 'open', epoch: held.epoch! };
        if (plan === 'degraded' || looks === MAX_LOOKS)
          return { status: 'degraded', reason: `another limiter store (${inForce?.backend}) is in force` };
        await rebuild(held, inForce);
      }
    },
  };

  async function rebuild(held: Held, inForce: StateRow | undefined): Promise<void> {
    const startedAt = performance.now();
    const epoch = randomBytes(16).toString('base64url');
    const params = [inForce?.epoch ?? null, epoch, backend.name, instanceId, STALE_MS];
    const bumped = await db.query('limiter_bump_epoch', params);
    if (bumped.length === 0) return;
    const open = await readOpenAttempts(db);
    if (!(await backend.rebuild(held.epoch, epoch, open))) return;
    let openAttempts = 0;
    for (const [queue, { fresh, retries }] of open) {
      const ids = [...fresh, ...retries];
      openAttempts += ids.length - ((await releaseClosed({ db, backend }, epoch, queue, ids)) ?? 0);
    }
    log.info({
      event: 'limiter_rebuilt',
      backend: backend.name,
      replaced: inForce?.backend ?? null,
      open_attempts: openAttempts,
      duration_ms: Math.round(performance.now() - startedAt),
    });
  }
}
