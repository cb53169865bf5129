/**
 * Open attempts past their deadline -> closed; their tasks retried or Failed (`processing_expired` when the parser had
 * accepted, `in_doubt_expired` when that is not known); their slots given back by the settle.
 */
import type { Db } from '../db.ts';
import type { Settler } from '../receiver/settle.ts';
import { drain, runUntil } from './drain.ts';

type Row = { attempt_id: string; accepted_at: string | null };

export type ExpireProcessingDeps = { db: Db; settler: Settler };

export function createExpireProcessing({ db, settler }: ExpireProcessingDeps) {
  return { runOnce };

  /** Returns how many attempts were past their deadline. */
  function runOnce(): Promise<number> {
    return drain(runUntil(), async () => {
      const rows = await db.query<Row>('find_expired_attempts', []);
      await Promise.all(
        rows.map((row) => settler.settle({ attemptId: row.attempt_id, verdict: 'expired', statusMsg: why(row) })),
      );
      return rows.length;
    });
  }
}

const why = (row: Row): string =>
  row.accepted_at === null
    ? 'the push got no clear answer and no callback came before the deadline'
    : 'the parser accepted the task but did not report before the deadline';
