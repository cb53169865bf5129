/**
 * Adds what the triggers noted about the numbers of tasks to task_counts (schema/functions/stats.sql). Whoever reads the
 * counts adds what is still noted, so they are exact without this job too; it keeps the notes few.
 */
import type { Db } from '../db.ts';
import { drain, runUntil } from './drain.ts';

export function createFoldCounts({ db }: { db: Db }) {
  return { runOnce };

  /** Returns how many notes were added up. */
  function runOnce(): Promise<number> {
    return drain(runUntil(), async () => {
      const [row] = await db.query<{ folded: number }>('fold_counts', []);
      return row!.folded;
    });
  }
}
