/** Pending longer than pending_expired_ms since pending_since -> Failed `pending_expired`. */
import type { Db } from '../db.ts';
import type { Queues } from '../queues.ts';
import { type KeyRow, keyColumns, keyOf, type TaskKey } from '../task.ts';
import { drainInTurn, runUntil } from './drain.ts';

type Row = KeyRow & { has_blocked: boolean };

export type ExpirePendingDeps = { db: Db; queues: Queues; onFinished: (keys: TaskKey[]) => void; onFreed: () => void };

export function createExpirePending({ db, queues, onFinished, onFreed }: ExpirePendingDeps) {
  return { runOnce };

  /** Returns how many tasks failed. */
  function runOnce(): Promise<number> {
    return drainInTurn(runUntil(), queues.all(), expire);
  }

  async function expire(queue: string): Promise<number> {
    const rows = await db.query<Row>('expire_pending', [queue]);
    const heads = rows.filter((row) => row.has_blocked);
    onFinished(rows.map(keyOf));
    if (heads.length > 0) {
      await db.query('order_versions', keyColumns(heads));
      onFreed();
    }
    return rows.length;
  }
}
