/**
 * GET .../events: a task as server-sent events, from now to its end. Level-triggered: a client is told the newest state,
 * not each one in between. A client that reads slowly makes nothing pile up: while its socket is not drained nothing is
 * written, then what the task is by that time.
 */
import { type Response, Router } from 'express';
import type { Db } from './db.ts';
import { AppError } from './errors.ts';
import type { Queues } from './queues.ts';
import { SUCCESS, showTask, type TaskKey, type TaskRow } from './task.ts';
import { readTaskKey, unknownTask } from './tasks.ts';
import type { Tell, Waiter } from './waiter.ts';
import { checkParameters, taskQuery } from './wire.ts';

export type EventRoutesDeps = { db: Db; queues: Queues; waiter: Waiter };

/** Below the time after which proxies take a connection for dead, commonly 30 s or 60 s. */
const BEAT_EVERY_MS = 15_000;
/** How long a client waits before it connects again. */
const RETRY_MS = 2_000;
const HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-store',
  // nginx would hold events back until its buffer is full.
  'x-accel-buffering': 'no',
  // The stream's end is the connection's: the next request may go to an instance that is not stopping.
  connection: 'close',
};

type Stream = { tell: Tell; beat(): void; end(): void };

export function createEventRoutes({ db, queues, waiter }: EventRoutesDeps) {
  const streams = new Set<Stream>();
  const router = Router();
  let beats: NodeJS.Timeout | undefined;
  let stopped = false;

  router.get('/v1/tasks/:task_id/versions/:task_version/events', async (req, res) => {
    const key = readTaskKey(queues, req, checkParameters(taskQuery, req.query).queue);
    const row = await readTask(key);
    const isNews = req.get('last-event-id') !== row.update_at;
    if (res.closed) return;
    if (stopped) throw new AppError('shutting_down', 'This instance is shutting down', { retryAfterS: 1 });
    // To an EventSource, 204 says: do not come back.
    if (!isNews && row.status >= SUCCESS) res.status(204).end();
    else if (req.method === 'HEAD') res.set(HEADERS).end();
    else open(res, key, row, isNews);
  });

  return {
    router,
    start: () => {
      beats = setInterval(() => {
        for (const stream of streams) stream.beat();
      }, BEAT_EVERY_MS);
    },
    /** Ends all streams now: their clients come back elsewhere and go on. */
    stop: () => {
      stopped = true;
      clearInterval(beats);
      for (const stream of streams) stream.end();
    },
  };

  async function readTask(key: TaskKey): Promise<TaskRow> {
    const params = [[key.queue], [key.taskId], [key.taskVersion], [true], ['-1']];
    const [row] = await db.query<TaskRow | { status: null }>('find_changed', params);
    if (!row || row.status === null) throw unknownTask(key);
    return row;
  }

  function open(res: Response, key: TaskKey, row: TaskRow, isNews: boolean): void {
    const stream = createStream(res, key);
    streams.add(stream);
    const unfollow = waiter.follow(key, row.update_at, stream.tell);
    const leave = () => {
      unfollow();
      streams.delete(stream);
    };
    res.once('finish', leave).once('close', leave);
    if (isNews) stream.tell(row);
  }
}

/** Writes the head. Ends by itself after the task's end. */
function createStream(res: Response, key: TaskKey): Stream {
  /** Not written yet; null: the task is gone. */
  let newest: TaskRow | null | undefined;
  res.set(HEADERS).write(`retry: ${RETRY_MS}\n\n`);
  res.on('drain', write);
  return {
    tell: (row) => {
      newest = row;
      write();
    },
    beat: () => {
      // Ended is not yet gone: a client that does not read keeps what was written last.
      if (!res.writableEnded && !res.writableNeedDrain) res.write(':\n\n');
    },
    end: () => res.end(),
  };

  function write(): void {
    if (newest === undefined || res.writableNeedDrain || res.writableEnded) return;
    const row = newest;
    newest = undefined;
    if (row === null) res.end(': the task was deleted\n\n');
    else {
      res.write(`event: task\nid: ${row.update_at}\ndata: ${JSON.stringify(showTask(key, row))}\n\n`);
      if (row.status >= SUCCESS) res.end();
    }
  }
}
