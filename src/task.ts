/**
 * States and the task as clients see it. Pure.
 */

/** Stored as int, shown by name. The order is the contract's. */
export const STATUS = ['Pending', 'Processing', 'Success', 'Failed', 'Stopped'] as const;
export type Status = (typeof STATUS)[number];
export const PENDING = 0;
export const PROCESSING = 1;
export const SUCCESS = 2;
export const FAILED = 3;
export const STOPPED = 4;

/** Ids as decimal strings: they exceed what a JSON number holds exactly. */
export type TaskKey = { queue: string; taskId: string; taskVersion: string };

/** Key of a map. Versions and ids are canonical decimals, so equal keys are equal strings. */
export const keyText = ({ queue, taskId, taskVersion }: TaskKey): string => `${queue}/${taskId}/${taskVersion}`;

/** A task's key as statements return it. */
export type KeyRow = { queue: string; task_id: string; task_version: string };

export const keyOf = (row: KeyRow): TaskKey => ({
  queue: row.queue,
  taskId: row.task_id,
  taskVersion: row.task_version,
});

/** Rows named by key, as the three arrays that statements over many keys take. */
export const keyColumns = (rows: readonly KeyRow[]): [string[], string[], string[]] => [
  rows.map((row) => row.queue),
  rows.map((row) => row.task_id),
  rows.map((row) => row.task_version),
];

/** Columns of a task row that an answer shows; bigint columns arrive as strings. */
export type TaskRow = {
  status: number;
  reason: string | null;
  priority: number;
  status_code: string | null;
  status_msg: string | null;
  retry_count: number;
  max_retries: number;
  attempt: number;
  run_at: string | null;
  next_retry_time: string | null;
  pending_since: string;
  deadline: string | null;
  started_at: string | null;
  finished_at: string | null;
  create_at: string;
  update_at: string;
  progress_percent?: number | null;
  progress_message?: string | null;
};

const ms = (value: string | null): number | null => (value === null ? null : Number(value));

/** The task of an answer: ids as strings, state by name, times in ms or null. */
export function showTask({ queue, taskId, taskVersion }: TaskKey, row: TaskRow): Record<string, unknown> {
  const percent = row.progress_percent ?? null;
  const message = row.progress_message ?? null;
  return {
    queue,
    task_id: taskId,
    task_version: taskVersion,
    status: STATUS[row.status],
    reason: row.reason,
    priority: row.priority,
    status_code: showStatusCode(row.status_code),
    status_msg: row.status_msg,
    retry_count: row.retry_count,
    max_retries: row.max_retries,
    attempt: row.attempt,
    progress: percent === null && message === null ? null : { percent, message },
    run_at: ms(row.run_at),
    next_retry_time: ms(row.next_retry_time),
    pending_since: ms(row.pending_since),
    deadline: ms(row.deadline),
    started_at: ms(row.started_at),
    finished_at: ms(row.finished_at),
    create_at: ms(row.create_at),
    update_at: ms(row.update_at),
  };
}

/** A number while it is exact, else a string: the parser's code is 64 bits wide. */
const showStatusCode = (code: string | null): number | string | null =>
  code === null ? null : Number.isSafeInteger(Number(code)) ? Number(code) : code;
