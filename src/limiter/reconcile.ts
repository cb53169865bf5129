/**
 * Slots versus open attempts, the three ways they can differ:
 *
 * A slot without an open attempt: somebody crashed, or lost the store, between acquire and claim or between closing
 * commit and release. It is dropped, but only when it was not touched for ACQUIRE_TTL_MS, because a claim may still be
 * on its way. The age is the store's, by the store's clock, and judged again in the script that drops: the plan may be
 * stale by then, and a confirmation in between, which touches the slot, protects it. A claim that commits only after
 * its slot was dropped finds out at its confirmation.
 *
 * An open attempt without a slot: its slot was dropped while its instance was stopped before the commit. It is added,
 * even above the limit, so that every open attempt is counted. It may have closed since it was read; so the added ones
 * are looked up again, and what is closed is released. A crash in between leaves a slot to be dropped next time.
 *
 * A mark on the wrong slot: an instance that crashed between claim and confirmation left the marks it had reserved where
 * they were, maybe more than it needed, maybe not on the retries. What the attempt says is the truth and never changes,
 * so it may be set at any time; it waits for ACQUIRE_TTL_MS only because most confirmations do come. Not reported: no
 * slot was too many or too few.
 *
 * Order: list the slots, then read the attempts, then repair. A slot acquired after the listing is not in the plan, or
 * is found present when it is to be added. Nothing here needs a lock: two at once each find the other's work done.
 */
import type { Db } from '../db.ts';
import type { Backend, Lanes, OpenAttempts, Slot, Slots } from './backend.ts';
import type { QueueDrift } from './limiter.ts';
import { readOpenAttempts, releaseClosed } from './opening.ts';

export type ReconcileDeps = { backend: Backend; db: Db; acquireTtlMs: number };
/** hold: open attempts without a slot, or whose slot has the wrong mark. missing: how many are without a slot. */
export type RepairPlan = { queue: string; drop: string[]; hold: Lanes; missing: number };

/** One entry a queue that needs repair; `cutoff` is the youngest touch that may be dropped. */
export function planReconcile(slots: Slots, open: OpenAttempts, cutoff: number): RepairPlan[] {
  const queues = [...new Set([...slots.keys(), ...open.keys()])].sort();
  return queues.flatMap((queue) => {
    const held = slots.get(queue) ?? new Map<string, Slot>();
    const { fresh, retries } = open.get(queue) ?? { fresh: [], retries: [] };
    const isOpen = new Set([...fresh, ...retries]);
    const wrong = (id: string, retry: boolean): boolean => {
      const slot = held.get(id);
      return slot === undefined || (slot.retry !== retry && slot.touchedAt <= cutoff);
    };
    const drop = [...held].filter(([id, { touchedAt }]) => !isOpen.has(id) && touchedAt <= cutoff).map(([id]) => id);
    const hold = { fresh: fresh.filter((id) => wrong(id, false)), retries: retries.filter((id) => wrong(id, true)) };
    const missing = [...isOpen].filter((id) => !held.has(id)).length;
    const needed = drop.length + hold.fresh.length + hold.retries.length > 0;
    return needed ? [{ queue, drop, hold, missing }] : [];
  });
}

/** Null when the epoch is lost. Throws when either side cannot be reached. */
export async function reconcile(deps: ReconcileDeps, epoch: string): Promise<QueueDrift[] | null> {
  const { backend, db, acquireTtlMs } = deps;
  const listed = await backend.list(epoch);
  if (listed === null) return null;
  const cutoff = Math.floor(listed.takenAt) - acquireTtlMs;
  const open = await readOpenAttempts(db);
  const report: QueueDrift[] = [];
  for (const { queue, drop, hold, missing } of planReconcile(listed.slots, open, cutoff)) {
    const done = await backend.repair(epoch, queue, cutoff, drop, hold);
    if (done === null) return null;
    const closed = await releaseClosed(deps, epoch, queue, done.added);
    if (closed === null) return null;
    if (drop.length + missing > 0)
      report.push({ queue, dropped: done.dropped, added: done.added.length - closed, drift: drop.length - missing });
  }
  return report;
}
