/**
 * Reading tasks, and what people do to them: cancel and retry.
 */
import { createHash } from 'node:crypto';
import { type Request, type Response, Router } from 'express';
import type { Db } from './db.ts';
import { createDbShare } from './db-share.ts';
import { AppError } from './errors.ts';
import { sendJson } from './http.ts';
import type { Journal } from './journal.ts';
import type { Queues } from './queues.ts';
import {
  FAILED,
  type KeyRow,
  PROCESSING,
  STATUS,
  STOPPED,
  SUCCESS,
  showTask,
  type TaskKey,
  type TaskRow,
} from './task.ts';
import { listTasks } from './task-list.ts';
import { ATTRIBUTE, traceEnd } from './trace.ts';
import type { Waiter } from './waiter.ts';
import { checkParameters, listQuery, taskPath, taskQuery, versionQuery } from './wire.ts';

export type TaskRouteDeps = {
  db: Db;
  queues: Queues;
  waiter: Waiter;
  /** After a retry by hand. */
  onRetried: () => void;
  /** A lower version of a task of these queues became claimable. */
  onFreed: (queues: readonly string[]) => void;
  journal: Pick<Journal, 'cancelled' | 'retried'>;
};

type FullRow = TaskRow & { task_id: string; task_version: string; result: string | null; payload: string | null };
type ListRow = TaskRow & KeyRow;
type Traced = { traceparent: string | null };
type AttemptRow = {
  number: number | null;
  target: string;
  claimed_at: string;
  deadline: string;
  accepted_at: string | null;
  closed_at: string | null;
  outcome: string | null;
  error: string | null;
  progress_percent: number | null;
  progress_message: string | null;
};

const VERSION = '/v1/tasks/:task_id/versions/:task_version';
/** Lists that no index serves walk the table: they must not take the connections of submits. */
const LISTS_AT_ONCE = 2;

export function createTaskRoutes({ db, queues, waiter, onRetried, onFreed, journal }: TaskRouteDeps): Router {
  const router = Router();
  const lists = createDbShare({ db, max: LISTS_AT_ONCE });

  router.get('/v1/tasks', async (req, res) => {
    const query = checkParameters(listQuery, req.query);
    if (query.queue !== undefined) checkQueue(queues, query.queue);
    const { tasks, cursor } = await listTasks(lists, query);
    sendJson(res, 200, JSON.stringify({ tasks, cursor }));
  });

  router.get('/v1/tasks/:task_id', async (req, res) => {
    const key = readKey(req, checkParameters(taskQuery, req.query).queue);
    sendTask(req, res, key, await getTask(key, false));
  });

  router.get('/v1/tasks/:task_id/versions', async (req, res) => {
    const key = readKey(req, checkParameters(taskQuery, req.query).queue);
    const rows = await db.query<ListRow>('list_versions', [key.queue, key.taskId]);
    if (rows.length === 0) throw unknownTask(key);
    const versions = rows.map((row) => showTask({ ...key, taskVersion: row.task_version }, row));
    sendJson(res, 200, JSON.stringify({ versions }));
  });

  router.get(VERSION, async (req, res) => {
    const { queue, wait, include } = checkParameters(versionQuery, req.query);
    const key = readKey(req, queue);
    let row = await getTask(key, include === 'payload');
    if (wait > 0 && row.status <= PROCESSING) {
      await waiter.wait(key, wait * 1000, closeSignal(res));
      if (res.closed) return;
      row = await getTask(key, include === 'payload');
    }
    sendTask(req, res, key, row);
  });

  router.get(`${VERSION}/attempts`, async (req, res) => {
    const key = readKey(req, checkParameters(taskQuery, req.query).queue);
    const rows = await db.query<AttemptRow>('list_attempts', [key.queue, key.taskId, key.taskVersion]);
    if (rows.length === 0) throw unknownTask(key);
    sendJson(res, 200, JSON.stringify({ attempts: rows.filter((row) => row.number !== null).map(showAttempt) }));
  });

  router.post(`${VERSION}/cancel`, async (req, res) => {
    const key = readKey(req, checkParameters(taskQuery, req.query).queue);
    const [cancelled] = await db.query<Traced & { has_blocked: boolean }>('cancel_task', keyParams(key));
    if (cancelled) {
      traceEnd(key, cancelled.traceparent, { [ATTRIBUTE.verdict]: 'cancelled', [ATTRIBUTE.taskStatus]: 'Stopped' });
      journal.cancelled(key, cancelled.traceparent);
      waiter.finished([key]);
    }
    if (cancelled?.has_blocked) {
      await db.query('order_versions', [[key.queue], [key.taskId], [key.taskVersion]]);
      onFreed([key.queue]);
    }
    const row = await getTask(key, false);
    if (!cancelled && row.reason !== 'cancelled')
      throw new AppError(
        'state_forbids',
        `The task is ${STATUS[row.status]}; only Pending and Processing tasks can be cancelled`,
      );
    sendJson(res, 200, JSON.stringify({ task: showTask(key, row) }));
  });

  router.post(`${VERSION}/retry`, async (req, res) => {
    const key = readKey(req, checkParameters(taskQuery, req.query).queue);
    const [retried] = await db.query<Traced>('retry_task', keyParams(key));
    const row = await getTask(key, false);
    if (!retried) {
      const [floor] = await db.query<{ task_version: string }>('get_floor', [key.queue, key.taskId]);
      if (floor && BigInt(floor.task_version) > BigInt(key.taskVersion))
        throw new AppError('stale_version', `Version ${floor.task_version} of task ${key.taskId} was accepted since`);
      throw new AppError(
        'state_forbids',
        `The task is ${STATUS[row.status]}; only ${STATUS[FAILED]} and ${STATUS[STOPPED]} tasks can be retried`,
      );
    }
    journal.retried(key, retried.traceparent);
    onRetried();
    sendJson(res, 202, JSON.stringify({ task: showTask(key, row) }));
  });

  return router;

  function readKey(req: Request, queue: string): TaskKey {
    return readTaskKey(queues, req, queue);
  }

  /** With an empty taskVersion the latest. */
  async function getTask(key: TaskKey, withPayload: boolean): Promise<FullRow> {
    const params = [key.queue, key.taskId, key.taskVersion || null, withPayload];
    const [row] = await db.query<FullRow>('get_task', params);
    if (!row) throw unknownTask(key);
    return row;
  }
}

const keyParams = (key: TaskKey): string[] => [key.queue, key.taskId, key.taskVersion];

function checkQueue(queues: Queues, queue: string): void {
  if (!queues.get(queue)) throw new AppError('unknown_queue', `There is no queue '${queue}'`, { pointer: 'queue' });
}

/** The task a path names; taskVersion is empty when it names none. */
export function readTaskKey(queues: Queues, req: Request, queue: string): TaskKey {
  checkQueue(queues, queue);
  const path = checkParameters(taskPath, req.params);
  return { queue, taskId: path.task_id, taskVersion: path.task_version ?? '' };
}

export const unknownTask = (key: TaskKey) =>
  new AppError(
    'unknown_task',
    `There is no task ${key.taskId}${key.taskVersion && ` version ${key.taskVersion}`} in queue '${key.queue}'`,
  );

/** result and payload go into the answer as the bytes they came in. */
function sendTask(req: Request, res: Response, key: TaskKey, row: FullRow): void {
  const task = JSON.stringify(showTask({ ...key, taskVersion: row.task_version }, row)).slice(0, -1);
  const result = row.status === SUCCESS ? `,"result":${row.result ?? 'null'},"result_url":null` : '';
  const payload = row.payload === null ? '' : `,"payload":${row.payload}`;
  const text = `${task}${result}${payload}}`;
  const etag = `"${createHash('sha256').update(text).digest('base64url').slice(0, 27)}"`;
  res.set('etag', etag);
  // Not express's req.fresh: it takes `cache-control: no-cache`, which fetch sends along, for a wish not to get a 304.
  const known = (req.get('if-none-match') ?? '').split(',').map((tag) => tag.trim().replace(/^W\//, ''));
  if (known.includes(etag) || known.includes('*')) res.status(304).end();
  else sendJson(res, 200, text);
}

function showAttempt(row: AttemptRow): Record<string, unknown> {
  return {
    number: row.number,
    target: row.target,
    claimed_at: Number(row.claimed_at),
    deadline: Number(row.deadline),
    accepted_at: row.accepted_at === null ? null : Number(row.accepted_at),
    closed_at: row.closed_at === null ? null : Number(row.closed_at),
    outcome: row.outcome,
    error: row.error,
    progress:
      row.progress_percent === null && row.progress_message === null
        ? null
        : { percent: row.progress_percent, message: row.progress_message },
  };
}

/** Aborts when the client goes away. */
function closeSignal(res: Response): AbortSignal {
  const controller = new AbortController();
  if (res.closed) controller.abort();
  res.once('close', () => controller.abort());
  return controller.signal;
}
