/** Delayed tasks and due retries become claimable; then the versions of their tasks are ordered and pushers woken. */
import type { Db } from '../db.ts';
import { keyColumns } from '../task.ts';
import { drain, runUntil } from './drain.ts';

type Row = { queue: string; task_id: string; task_version: string };

export function createPromote({ db, onPromoted }: { db: Db; onPromoted: () => void }) {
  return { runOnce };

  /** Returns how many tasks became due. */
  function runOnce(): Promise<number> {
    return drain(runUntil(), async () => {
      const rows = await db.query<Row>('promote_tasks', []);
      if (rows.length === 0) return 0;
      await db.query('order_versions', keyColumns(rows));
      onPromoted();
      return rows.length;
    });
  }
}
