/** Success longer than success_expired_ms -> Stopped `retention`; the result is dropped. */
import type { Db } from '../db.ts';
import type { Queues } from '../queues.ts';
import { drain, runUntil } from './drain.ts';

export function createRetain({ db, queues }: { db: Db; queues: Queues }) {
  return { runOnce };

  /** Returns how many results were retired. */
  async function runOnce(): Promise<number> {
    const until = runUntil();
    let total = 0;
    for (const { queue } of queues.all())
      total += await drain(until, async () => (await db.query('retain_results', [queue])).length);
    return total;
  }
}
