/**
 * Millions of rows in docsched's tables within minutes: a few tasks go through the service itself, then their rows, and
 * those of the tables beside (attempts, version floors), are copied under new ids. Constraints and indexes stay in force.
 */

import type { Ids } from '../contestants/contestant.ts';
import { startDocsched } from '../contestants/docsched.ts';
import { runLife } from '../scenarios/life.ts';
import type { Database } from './postgres.ts';
import type { World } from './world.ts';

export type Rows = { finished: number; pending: number; delayed: number };

export type Filled = {
  database: Database;
  /** Of the whole database, indexes and the tables beside included. */
  bytesARow: number;
  remove(): Promise<void>;
};

const KINDS = ['finished', 'pending', 'delayed'] as const satisfies (keyof Rows)[];
/** Far above all ids of a run. */
const FIRST_ID = 1_000_000_000;
const CHUNK = 100_000;
const HOUR_MS = 3_600_000;

/** Fills a database of its own and says how long it took. `say` is told of the progress. */
export async function createFilledDatabase(world: World, rows: Rows, say: (text: string) => void): Promise<Filled> {
  const startedAt = performance.now();
  const name = 'bench_filled';
  const database = await world.postgres.createDatabase(name);
  const models = await createModels(world, database);
  let next = FIRST_ID;
  for (const kind of KINDS) {
    const wanted = rows[kind];
    for (let done = 0; done < wanted; done += CHUNK) {
      const count = Math.min(CHUNK, wanted - done);
      await copyTasks(database, models[kind], next, count);
      next += count;
      say(`filling: ${kind} ${done + count} of ${wanted}`);
    }
  }
  await database.query(`SELECT setval('task_ids', $1)`, [next]);
  say('filling: vacuum');
  await database.query('VACUUM (ANALYZE)');
  say(`filled in ${Math.round((performance.now() - startedAt) / 1000)} s`);
  const [size] = await database.query<{ bytes: string }>('SELECT pg_database_size(current_database()) AS bytes');
  return {
    database,
    bytesARow: Number(size!.bytes) / (next - FIRST_ID),
    remove: async () => {
      await database.close();
      await world.postgres.dropDatabase(name);
    },
  };
}

/** Two tasks of each kind, one of each priority, made by the service. */
async function createModels(world: World, database: Database): Promise<Record<keyof Rows, Ids>> {
  const working = await startDocsched(world, { database, parserUrl: world.parserUrl });
  const finished = { firstId: world.newIds(0).firstId, count: 2 };
  await runLife(world, working, { tasks: 2, connections: 1 });
  await working.stop();
  const holding = await startDocsched(world, { database });
  const pending = world.newIds(2);
  await world.submit({ urls: holding.urls, ...pending, connections: 1 });
  const delayed = world.newIds(2);
  await world.submit({ urls: holding.urls, ...delayed, connections: 1, runAt: Date.now() + HOUR_MS });
  await holding.stop();
  return { finished, pending, delayed };
}

/** New values of the columns that tell rows apart; all others are copied. `n` counts from 0. */
const FRESH: Record<string, string> = {
  task_id: '$2::bigint + n',
  id: '$2::bigint + n',
  task_row_id: '$2::bigint + n',
  place: '$2::bigint + n',
  attempt_id: `CASE WHEN attempt_id IS NOT NULL THEN 'filled-' || lpad(($2::bigint + n)::text, 25, '0') END`,
};

/** Copies in the order of the new ids, so that indexes grow at their end. */
async function copyTasks(database: Database, models: Ids, firstId: number, count: number): Promise<void> {
  const tables = await database.query<{ name: string; columns: string[] }>(
    `SELECT c.relname AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns
     FROM pg_class c
     JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
     WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
     GROUP BY c.relname
     HAVING 'task_id' = ANY (array_agg(a.attname::text))`,
  );
  await Promise.all(
    tables.map(({ name, columns }) =>
      database.query(
        `INSERT INTO ${name} (${columns.join(', ')})
         SELECT ${columns.map((column) => FRESH[column] ?? column).join(', ')}
         FROM generate_series(0, $3::bigint - 1) n
         JOIN ${name} model ON model.task_id = $1::bigint + n % $4
         ORDER BY n`,
        [models.firstId, firstId, count, models.count],
      ),
    ),
  );
}
