/**
 * graphile-worker, set up as its performance page does: a local queue, batched completion (delay 0), prepared statements.
 * A finished job is deleted: results and history are not kept.
 */
import { Logger, makeWorkerUtils, type Runner, type RunnerOptions, run } from 'graphile-worker';
import pg from 'pg';
import type { Task } from '../load/wire.ts';
import { CONCURRENCY, type Peer, type PeerDeps } from './peer.ts';

export const TASK = 'parse';
/** The documents: a little above the concurrency at least, 500 on the performance page. */
const LOCAL_QUEUE_SIZE = 500;
const POOL_SIZE = 25;

export const quiet = new Logger(() => () => {});

export const tuned = (concurrency: number): NonNullable<RunnerOptions['preset']> => ({
  worker: {
    concurrentJobs: concurrency,
    maxPoolSize: POOL_SIZE,
    localQueue: { size: LOCAL_QUEUE_SIZE },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
});

/** Both handlers are graphile-worker's wish for a pool that is not its own. */
export function createPool(databaseUrl: string, fault: (error: unknown) => void): pg.Pool {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: POOL_SIZE });
  pool.on('error', fault);
  pool.on('connect', (client) => client.on('error', fault));
  return pool;
}

export async function createGraphilePeer({ databaseUrl, fault }: PeerDeps): Promise<Peer> {
  const pool = createPool(databaseUrl, fault);
  const utils = await makeWorkerUtils({ pgPool: pool, logger: quiet });
  await utils.migrate();
  let runner: Runner | undefined;
  return {
    add: async (task) => void (await utils.addJob(TASK, task, { priority: task.priority })),
    work: async (parse) => {
      runner = await run({
        pgPool: pool,
        preset: tuned(CONCURRENCY),
        logger: quiet,
        noHandleSignals: true,
        taskList: { [TASK]: async (payload) => void (await parse(payload as Task)) },
      });
      runner.promise.catch(fault);
    },
    counts: async () => {
      const { rows } = await pool.query(
        `SELECT count(*) AS open, count(*) FILTER (WHERE attempts > 1) AS failed FROM graphile_worker._private_jobs`,
      );
      return { open: Number(rows[0].open), failed: Number(rows[0].failed) };
    },
    stop: async () => {
      await runner?.stop();
      await utils.release();
      await pool.end();
    },
  };
}
