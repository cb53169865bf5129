/** Limiter versus open attempts (see src/limiter): repairs, and reports what differed. */
import type { Limiter } from '../limiter/limiter.ts';
import type { Log } from '../log.ts';
import type { Queues } from '../queues.ts';

export type ReconcileDeps = {
  limiter: Limiter;
  queues: Queues;
  /** For each queue, with zeros. */
  observe: (queue: string, drift: number, dropped: number, added: number) => void;
  onFreed: () => void;
  log: Log;
};

export function createReconcile({ limiter, queues, observe, onFreed, log }: ReconcileDeps) {
  return { runOnce };

  /** Returns how many slots were dropped or added. */
  async function runOnce(): Promise<number> {
    if (limiter.state().status !== 'open') return 0;
    const found = await limiter.reconcile();
    for (const { queue } of queues.all()) {
      const one = found.find((repaired) => repaired.queue === queue);
      observe(queue, one?.drift ?? 0, one?.dropped ?? 0, one?.added ?? 0);
    }
    for (const { queue, dropped, added, drift } of found)
      log.warn({ event: 'limiter_reconciled', queue, dropped, added, drift });
    if (found.some(({ dropped }) => dropped > 0)) onFreed();
    return found.reduce((sum, { dropped, added }) => sum + dropped + added, 0);
  }
}
