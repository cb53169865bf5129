/** Pending longer than pending_expired_ms since pending_since -> Failed `pending_expired`. */
import type { Db } from '../db.ts';
import type { Queues } from '../queues.ts';
import { type KeyRow, keyColumns, keyOf, type TaskKey } from '../task.ts';
import { ATTRIBUTE, traceEnd } from '../trace.ts';
import { drainInTurn, runUntil } from './drain.ts';

/** waited_ms: since it was due; age_ms: since its submit. */
export type ExpiredRow = KeyRow & {
  has_blocked: boolean;
  traceparent: string | null;
  waited_ms: string;
  age_ms: string;
  retry_count: number;
};

export type ExpirePendingDeps = {
  db: Db;
  queues: Queues;
  onFinished: (keys: TaskKey[], rows: ExpiredRow[]) => void;
  /** Versions that waited behind an expired one became claimable. */
  onFreed: (queues: readonly string[]) => void;
};

export function createExpirePending({ db, queues, onFinished, onFreed }: ExpirePendingDeps) {
  return { runOnce };

  /** Returns how many tasks failed. */
  function runOnce(): Promise<number> {
    return drainInTurn(runUntil(), queues.all(), expire);
  }

  async function expire(queue: string): Promise<number> {
    const rows = await db.query<ExpiredRow>('expire_pending', [queue]);
    const heads = rows.filter((row) => row.has_blocked);
    for (const row of rows) trace(row);
    onFinished(rows.map(keyOf), rows);
    if (heads.length > 0) {
      await db.query('order_versions', keyColumns(heads));
      onFreed([queue]);
    }
    return rows.length;
  }
}

const trace = (row: ExpiredRow): void =>
  traceEnd(
    keyOf(row),
    row.traceparent,
    {
      [ATTRIBUTE.verdict]: 'pending_expired',
      [ATTRIBUTE.taskStatus]: 'Failed',
      [ATTRIBUTE.waitedMs]: Number(row.waited_ms),
    },
    { type: 'pending_expired', message: 'not pushed within pending_expired_ms' },
  );
