/** Delayed tasks and due retries become claimable; then the versions of their tasks are ordered and pushers woken. */
import type { Db } from '../db.ts';
import { type KeyRow, keyColumns } from '../task.ts';
import { drain, runUntil } from './drain.ts';

export function createPromote({ db, onPromoted }: { db: Db; onPromoted: () => void }) {
  return { runOnce };

  /** Returns how many tasks became due. */
  function runOnce(): Promise<number> {
    return drain(runUntil(), async () => {
      const rows = await db.query<KeyRow>('promote_tasks', []);
      if (rows.length === 0) return 0;
      await db.query('order_versions', keyColumns(rows));
      onPromoted();
      return rows.length;
    });
  }
}
