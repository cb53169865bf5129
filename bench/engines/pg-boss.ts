/** pg-boss: `fetch` of large batches and `complete` of the whole batch, several loops at once. */
import { PgBoss } from 'pg-boss';
import { payloadOf, priorityOf } from '../load/wire.ts';
import { type Engine, type EngineDeps, FILL_BATCH } from './engine.ts';

const QUEUE = 'parse';
const BATCH = 500;
const LOOPS = 2;
const COUNTS = `SELECT count(*) FILTER (WHERE state < 'completed') AS open,
  count(*) FILTER (WHERE state > 'completed' OR retry_count > 0) AS failed
  FROM pgboss.job WHERE name = $1`;

export async function createPgBossEngine({ databaseUrl }: EngineDeps): Promise<Engine> {
  const boss = new PgBoss({ connectionString: databaseUrl, schedule: false });
  await boss.start();
  await boss.createQueue(QUEUE);
  return {
    fill: async ({ firstId, count }) => {
      for (let i = 0; i < count; i += FILL_BATCH) {
        const jobs = Array.from({ length: Math.min(FILL_BATCH, count - i) }, (_, j) => ({
          data: payloadOf(firstId + i + j),
          priority: 6 - priorityOf(firstId + i + j),
        }));
        await boss.insert(QUEUE, jobs);
      }
    },
    drain: async (count) => {
      let left = count;
      const loop = async () => {
        while (left > 0) {
          const jobs = await boss.fetch(QUEUE, { batchSize: BATCH });
          if (jobs.length === 0) return;
          await boss.complete(
            QUEUE,
            jobs.map(({ id }) => id),
          );
          left -= jobs.length;
        }
      };
      await Promise.all(Array.from({ length: LOOPS }, loop));
      if (left > 0) throw new Error(`pg-boss: ${left} of ${count} not drained`);
    },
    counts: async () => {
      const { rows } = await boss.getDb().executeSql(COUNTS, [QUEUE]);
      return { open: Number(rows[0].open), failed: Number(rows[0].failed) };
    },
    stop: () => boss.stop({ graceful: false }),
  };
}
