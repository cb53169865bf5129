/** Success longer than success_expired_ms -> Stopped `retention`; the result is dropped. */
import type { Db } from '../db.ts';
import type { Queues } from '../queues.ts';
import { drain } from './drain.ts';

export function createRetain({ db, queues }: { db: Db; queues: Queues }) {
  return { runOnce };

  /** Returns how many results were retired. */
  async function runOnce(): Promise<number> {
    let total = 0;
    for (const { queue } of queues.all())
      total += await drain(async () => (await db.query('retain_results', [queue])).length);
    return total;
  }
}
