/**
 * Slots versus open attempts, the two ways they can differ:
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
 * Order: list the slots, then read the attempts, then repair. A slot acquired after the listing is not in the plan, or
 * is found present when it is to be added. Nothing here needs a lock: two at once each find the other's work done.
 */
import type { Db } from '../db.ts';
import type { Backend, OpenAttempts, Slots } from './backend.ts';
import type { QueueDrift } from './limiter.ts';
import { readOpenAttempts, releaseClosed } from './opening.ts';

export type ReconcileDeps = { backend: Backend; db: Db; acquireTtlMs: number };
export type RepairPlan = { queue: string; drop: string[]; add: string[] };

/** One entry a queue that needs repair; `cutoff` is the youngest touch that may be dropped. */
export function planReconcile(slots: Slots, open: OpenAttempts, cutoff: number): RepairPlan[] {
  const queues = [...new Set([...slots.keys(), ...open.keys()])].sort();
  return queues.flatMap((queue) => {
    const held = slots.get(queue) ?? new Map<string, number>();
    const wanted = new Set(open.get(queue));
    const drop = [...held].filter(([id, touchedAt]) => !wanted.has(id) && touchedAt <= cutoff).map(([id]) => id);
    const add = [...wanted].filter((id) => !held.has(id));
    return drop.length + add.length > 0 ? [{ queue, drop, add }] : [];
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
  for (const { queue, drop, add } of planReconcile(listed.slots, open, cutoff)) {
    const done = await backend.repair(epoch, queue, cutoff, drop, add);
    if (done === null) return null;
    const closed = await releaseClosed(deps, epoch, new Map([[queue, done.added]]));
    if (closed === null) return null;
    report.push({ queue, dropped: done.dropped, added: done.added.length - closed, drift: drop.length - add.length });
  }
  return report;
}
