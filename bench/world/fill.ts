/**
 * Millions of rows in docsched's tables within minutes: a few tasks go through the service itself, then their rows, and
 * those of the tables beside (attempts, version floors), are copied under new ids. Indexes rest meanwhile and are rebuilt.
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
const CHUNK = 250_000;
const SAID_EVERY = 1_000_000;
const HOUR_MS = 3_600_000;

/** Fills a database of its own and says how long it took. `say` is told of the progress. */
export async function createFilledDatabase(world: World, rows: Rows, say: (text: string) => void): Promise<Filled> {
  const startedAt = performance.now();
  const name = 'bench_filled';
  const database = await world.postgres.createDatabase(name);
  const models = await createModels(world, database);
  const tables = await findTables(database);
  await setAside(database, tables, models);
  let next = FIRST_ID;
  for (const kind of KINDS) {
    const wanted = rows[kind];
    for (let done = 0; done < wanted; done += CHUNK) {
      const count = Math.min(CHUNK, wanted - done);
      await Promise.all(tables.map((table) => copyTasks(database, table, kind, next, count)));
      next += count;
      if (next % SAID_EVERY === 0 || done + count === wanted) say(`filling: ${kind} ${done + count} of ${wanted}`);
    }
  }
  say('filling: indexes');
  await bringBack(database, tables);
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
  task_id: '$1::bigint + n',
  id: '$1::bigint + n',
  task_row_id: '$1::bigint + n',
  place: '$1::bigint + n',
  attempt_id: `CASE WHEN attempt_id IS NOT NULL THEN 'filled-' || lpad(($1::bigint + n)::text, 25, '0') END`,
};

type Table = { name: string; columns: string[] };

/** The tables that say something of a task. */
const findTables = (database: Database): Promise<Table[]> =>
  database.query<Table>(
    `SELECT c.relname AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns
     FROM pg_class c
     JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
     WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
     GROUP BY c.relname
     HAVING 'task_id' = ANY (array_agg(a.attname::text))`,
  );

const modelOf = (kind: keyof Rows, table: Table) => `model_${kind}_${table.name}`;

/** Keeps the models apart, and lets the indexes rest: they are neither written nor read until `bringBack`. */
async function setAside(database: Database, tables: Table[], models: Record<keyof Rows, Ids>): Promise<void> {
  for (const table of tables) {
    for (const kind of KINDS) {
      const { firstId, count } = models[kind];
      const inIds = `task_id BETWEEN ${firstId} AND ${firstId + count - 1}`;
      await database.query(`CREATE TABLE ${modelOf(kind, table)} AS SELECT * FROM ${table.name} WHERE ${inIds}`);
    }
    await database.query(
      `UPDATE pg_index SET indisready = false, indisvalid = false WHERE indrelid = '${table.name}'::regclass`,
    );
  }
}

async function bringBack(database: Database, tables: Table[]): Promise<void> {
  for (const table of tables) {
    await database.query(`DROP TABLE ${KINDS.map((kind) => modelOf(kind, table)).join(', ')}`);
    await database.query(`SET LOCAL maintenance_work_mem = '1GB'; REINDEX TABLE ${table.name}`);
  }
}

/** Copies in the order of the new ids. */
async function copyTasks(
  database: Database,
  table: Table,
  kind: keyof Rows,
  firstId: number,
  count: number,
): Promise<void> {
  const model = modelOf(kind, table);
  await database.query(
    `INSERT INTO ${table.name} (${table.columns.join(', ')})
     SELECT ${table.columns.map((column) => FRESH[column] ?? column).join(', ')}
     FROM generate_series(0, $2::bigint - 1) n
     JOIN (SELECT *, row_number() OVER (ORDER BY task_id) - 1 AS model, count(*) OVER () AS models FROM ${model}) m
       ON m.model = n % m.models
     ORDER BY n`,
    [firstId, count],
  );
}
