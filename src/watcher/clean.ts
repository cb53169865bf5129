/**
 * Deletes what is done: Failed and Stopped tasks, attempts of deleted tasks (24 h after closing at the earliest) and
 * version floors past their time. Also frees blocked versions that a crash left without a higher one.
 */
import type { Db } from '../db.ts';
import type { Queues } from '../queues.ts';
import { FAILED, type KeyRow, keyColumns, STOPPED } from '../task.ts';
import { BATCH, drain, drainInTurn, runUntil } from './drain.ts';

export function createClean({ db, queues }: { db: Db; queues: Queues }) {
  // Where the walks over attempts and floors stand: a run goes on where the last one's time was over.
  let attemptAfter: [string, string] = ['0', ''];
  let floorAfter: [string, string] = ['', '-1'];
  return { runOnce };

  /** Returns how many rows were deleted or freed. */
  async function runOnce(): Promise<number> {
    const until = runUntil();
    let total = await drain(until, freeStranded);
    for (const status of [FAILED, STOPPED])
      total += await drainInTurn(
        until,
        queues.all(),
        async (queue) => (await db.query('delete_tasks', [queue, status])).length,
      );
    await drain(until, async () => {
      const [step] = await db.query<{ deleted: number; last_closed_at: string | null; last_attempt_id: string }>(
        'delete_attempts',
        attemptAfter,
      );
      attemptAfter = step?.last_closed_at ? [step.last_closed_at, step.last_attempt_id] : ['0', ''];
      total += step?.deleted ?? 0;
      return step?.last_closed_at ? BATCH : 0;
    });
    await drain(until, async () => {
      const [step] = await db.query<{ deleted: number; queue: string | null; task_id: string }>(
        'delete_floors',
        floorAfter,
      );
      floorAfter = step?.queue ? [step.queue, step.task_id] : ['', '-1'];
      total += step?.deleted ?? 0;
      return step?.queue ? BATCH : 0;
    });
    return total;
  }

  async function freeStranded(): Promise<number> {
    const rows = await db.query<KeyRow>('find_stranded_versions', []);
    if (rows.length > 0) await db.query('order_versions', keyColumns(rows));
    return rows.length;
  }
}
