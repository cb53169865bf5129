/**
 * The benchmark's own PostgreSQL: the embedded one with its default settings (synchronous_commit and fsync on), one
 * server for all contestants, a database for each. Counts what work costs the server.
 */
import pg from 'pg';
import { startEmbeddedPostgres } from '../../src/embedded.ts';
import { createLog } from '../../src/log.ts';
import { cpuOfFamily, parentOf } from './cpu.ts';

export type Row = Record<string, unknown>;
export type Database = {
  url: string;
  query<R extends Row = Row>(text: string, values?: unknown[]): Promise<R[]>;
  /** Transactions committed here, read-only ones too; complete once the connections counted have ended. */
  commits(): Promise<number>;
  close(): Promise<void>;
};
export type Postgres = {
  version: string;
  createDatabase(name: string): Promise<Database>;
  dropDatabase(name: string): Promise<void>;
  /** So that each round begins after a checkpoint, whoever ran before. */
  checkpoint(): Promise<void>;
  walBytes(): Promise<number>;
  /** CPU seconds of the whole server so far. */
  cpuS(): number;
  /** Settings that matter here, as the server has them. */
  settings(): Promise<Record<string, string>>;
  stop(): Promise<void>;
};

const SHOWN = ['fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers', 'max_wal_size', 'jit'];

/** `preload` names shared_preload_libraries, for profiles; a measured server has none. */
export async function startPostgres(dataDir: string, { preload }: { preload?: string }): Promise<Postgres> {
  const start = () => startEmbeddedPostgres({ dataDir, log: createLog('error') });
  let server = await start();
  if (preload) {
    await once(server.url, `ALTER SYSTEM SET shared_preload_libraries = ${preload}`);
    await once(server.url, 'ALTER SYSTEM SET pg_stat_statements.track_planning = on');
    await server.stop();
    server = await start();
  }
  const admin = new pg.Pool({ connectionString: server.url, max: 2 });
  admin.on('error', (error) => console.error(`PostgreSQL: ${error.message}`));
  const [{ version = '', pid = 0 } = {}] = (
    await admin.query(`SELECT current_setting('server_version') AS version, pg_backend_pid() AS pid`)
  ).rows as { version?: string; pid?: number }[];
  const postmaster = parentOf(pid);
  return {
    version,
    createDatabase: async (name) => {
      await admin.query(`CREATE DATABASE ${name}`);
      return openDatabase(urlOf(server.url, name));
    },
    dropDatabase: async (name) => void (await admin.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)),
    checkpoint: async () => void (await admin.query('CHECKPOINT')),
    walBytes: async () => {
      const { rows } = await admin.query(`SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') AS bytes`);
      return Number(rows[0].bytes);
    },
    cpuS: () => cpuOfFamily(postmaster),
    settings: async () => {
      const { rows } = await admin.query('SELECT name, current_setting(name) AS value FROM unnest($1::text[]) name', [
        SHOWN,
      ]);
      return Object.fromEntries(rows.map(({ name, value }) => [name, value]));
    },
    stop: async () => {
      await admin.end();
      await server.stop();
    },
  };
}

function openDatabase(url: string): Database {
  const pool = new pg.Pool({ connectionString: url, max: 4, application_name: 'bench' });
  // The database may be dropped under an idle connection.
  pool.on('error', () => {});
  return {
    url,
    query: async (text, values) => (await pool.query(text, values)).rows,
    commits: async () => {
      const { rows } = await pool.query(
        'SELECT xact_commit AS n FROM pg_stat_database WHERE datname = current_database()',
      );
      return Number(rows[0].n);
    },
    close: () => pool.end(),
  };
}

async function once(url: string, text: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query(text);
  await client.end();
}

function urlOf(server: string, database: string): string {
  const url = new URL(server);
  url.pathname = `/${database}`;
  return url.href;
}
