/** Success longer than success_expired_ms -> Stopped `retention`; the result is dropped. */
import type { Db } from '../db.ts';
import type { Queues } from '../queues.ts';
import { drainInTurn, runUntil } from './drain.ts';

export function createRetain({ db, queues }: { db: Db; queues: Queues }) {
  return { runOnce };

  /** Returns how many results were retired. */
  function runOnce(): Promise<number> {
    const retire = async (queue: string) => (await db.query('retain_results', [queue])).length;
    return drainInTurn(runUntil(), queues.all(), retire);
  }
}
