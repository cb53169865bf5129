/**
 * Delayed tasks and due retries become claimable; then the versions of their tasks are ordered and pushers woken. In a
 * queue of policy `stop` those with a higher version are Stopped instead, and who waits for them is told.
 */
import type { Db } from '../db.ts';
import { type KeyRow, keyColumns, keyOf, PENDING, STOPPED, type TaskKey } from '../task.ts';
import { drain, runUntil } from './drain.ts';

/** hold 1: not claimable yet, a submit of another version is under way. */
type Row = KeyRow & { status: number; hold: number };

export type PromoteDeps = {
  db: Db;
  /** Tasks of these queues became claimable. */
  onPromoted: (queues: ReadonlySet<string>) => void;
  onStopped: (keys: TaskKey[]) => void;
};

export function createPromote({ db, onPromoted, onStopped }: PromoteDeps) {
  return { runOnce };

  /** Returns how many tasks were due. */
  function runOnce(): Promise<number> {
    return drain(runUntil(), async () => {
      const rows = await db.query<Row>('promote_tasks', []);
      const moved = rows.filter((row) => row.hold === 0);
      if (moved.length > 0) await db.query('order_versions', keyColumns(moved));
      onStopped(moved.filter((row) => row.status === STOPPED).map(keyOf));
      const promoted = moved.filter((row) => row.status === PENDING);
      if (promoted.length > 0) onPromoted(new Set(promoted.map(({ queue }) => queue)));
      return rows.length;
    });
  }
}
