/** graphile-worker as its performance page runs it: 24 jobs at a time, a local queue, batched completion. */
import { makeWorkerUtils, type Runner, run } from 'graphile-worker';
import { createPool, quiet, TASK, tuned } from '../apps/graphile-worker.ts';
import { payloadOf, priorityOf } from '../load/wire.ts';
import { type Engine, type EngineDeps, FILL_BATCH } from './engine.ts';

const CONCURRENCY = 24;
const LOOK_EVERY_MS = 2;

export async function createGraphileEngine({ databaseUrl }: EngineDeps): Promise<Engine> {
  const pool = createPool(databaseUrl, (error) => console.error(error));
  const utils = await makeWorkerUtils({ pgPool: pool, logger: quiet });
  await utils.migrate();
  const count = async () => {
    const { rows } = await pool.query(
      `SELECT count(*) AS open, count(*) FILTER (WHERE attempts > 1) AS failed FROM graphile_worker._private_jobs`,
    );
    return { open: Number(rows[0].open), failed: Number(rows[0].failed) };
  };
  return {
    fill: async ({ firstId, count }) => {
      for (let i = 0; i < count; i += FILL_BATCH) {
        const jobs = Array.from({ length: Math.min(FILL_BATCH, count - i) }, (_, j) => ({
          identifier: TASK,
          payload: payloadOf(firstId + i + j),
          priority: priorityOf(firstId + i + j),
        }));
        await utils.addJobs(jobs);
      }
    },
    drain: async (due) => {
      let done = 0;
      const runner: Runner = await run({
        pgPool: pool,
        preset: tuned(CONCURRENCY),
        logger: quiet,
        noHandleSignals: true,
        taskList: {
          [TASK]: () => {
            done += 1;
          },
        },
      });
      while (done < due) await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
      // Waits for the last completions.
      await runner.stop();
    },
    counts: count,
    stop: async () => {
      await utils.release();
      await pool.end();
    },
  };
}
