/**
 * A page of GET /v1/tasks. In order of keys; but the finished tasks of one queue and state, dead letters above all, oldest
 * first, through the index that leads to them however many other tasks there are.
 */
import type { z } from 'zod';
import type { Db } from './db.ts';
import { AppError } from './errors.ts';
import { type KeyRow, keyOf, STATUS, SUCCESS, showTask, type TaskRow } from './task.ts';
import { cursorFinished, cursorKey, type listQuery } from './wire.ts';

type Query = z.output<typeof listQuery>;
type Row = TaskRow & KeyRow;
/** `cursor`: to go on with; null after the last page. */
type Page = { tasks: Record<string, unknown>[]; cursor: string | null };

export async function listTasks(db: Db, query: Query): Promise<Page> {
  const status = query.status === undefined ? null : STATUS.indexOf(query.status);
  const finished = query.queue !== undefined && status !== null && status >= SUCCESS;
  const filters = [query.queue, status, query.priority, query.reason, query.updated_after, query.finished_before];
  const [statement, after] = finished
    ? ['list_finished', readCursor(query.cursor, cursorFinished)?.slice(1) ?? ['-1', '-1', '-1']]
    : ['list_tasks', readCursor(query.cursor, cursorKey) ?? ['', '-1', '-1']];
  const rows = await db.query<Row>(statement, [...filters.map((value) => value ?? null), ...after, query.limit]);
  const last = rows.length === query.limit ? rows.at(-1)! : null;
  return { tasks: rows.map((row) => showTask(keyOf(row), row)), cursor: last && writeCursor(last, finished) };
}

const writeCursor = (row: Row, finished: boolean): string => {
  const place = finished ? ['finished', row.finished_at] : [row.queue];
  return Buffer.from(JSON.stringify([...place, row.task_id, row.task_version])).toString('base64url');
};

/** Undefined when none is given. Throws for a cursor of another kind of list too. */
function readCursor(cursor: string | undefined, shape: z.ZodType<string[]>): string[] | undefined {
  if (cursor === undefined) return undefined;
  try {
    return shape.parse(JSON.parse(Buffer.from(cursor, 'base64url').toString()));
  } catch {
    throw new AppError('invalid_field', 'The cursor is not one that an answer to this query held', {
      pointer: 'cursor',
    });
  }
}
