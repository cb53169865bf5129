/**
 * A fresh, migrated database for a test file, cloned from a template that is migrated once a server.
 * The server is the one test/run.ts started (TEST_POSTGRES_URL), else one of this process, stopped at its end.
 * When a test of the file fails, the databases not dropped by then are kept and named.
 */
import { randomBytes } from 'node:crypto';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach } from 'node:test';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../src/embedded.ts';
import { createLog } from '../../src/log.ts';
import { migrate } from '../../src/schema.ts';
import { exitOnSignals } from './process.ts';

export type TestDatabase = { url: string; name: string; drop(): Promise<void> };

const TEMPLATE = 'docsched_template';
/** Any number: one test process at a time builds the template or finds it built. */
const TEMPLATE_LOCK = 4_215_903;

let ownServer: Promise<string> | undefined;

/** Whether a test of this file failed. Hooks registered inside a hook would never run, so this one is here. */
let failed = false;
afterEach((t) => {
  if ('passed' in t && !t.passed) failed = true;
});
export const hasFailedTest = (): boolean => failed;

/** What remains to be done when the tests and their hooks are over, last added first. */
const endings: (() => Promise<unknown>)[] = [];
process.on('beforeExit', async () => {
  for (let ending = endings.pop(); ending; ending = endings.pop()) await ending();
});

async function serverUrl(): Promise<string> {
  if (process.env.TEST_POSTGRES_URL) return process.env.TEST_POSTGRES_URL;
  ownServer ??= startOwnServer();
  return ownServer;
}

async function startOwnServer(): Promise<string> {
  exitOnSignals();
  const dataDir = await mkdtemp(join(tmpdir(), 'docsched-test-'));
  await chmod(dataDir, 0o755);
  const server = await startEmbeddedPostgres({ dataDir, log: createLog('silent') });
  endings.push(() => server.stop().then(() => rm(dataDir, { recursive: true, force: true })));
  return server.url;
}

const urlOf = (server: string, database: string): string => {
  const url = new URL(server);
  url.pathname = `/${database}`;
  return url.href;
};

async function withServer<T>(work: (client: pg.Client, server: string) => Promise<T>): Promise<T> {
  const server = await serverUrl();
  const client = new pg.Client({ connectionString: server });
  await client.connect();
  try {
    return await work(client, server);
  } finally {
    await client.end();
  }
}

async function ensureTemplate(client: pg.Client, server: string): Promise<void> {
  await client.query('SELECT pg_advisory_lock($1)', [TEMPLATE_LOCK]);
  try {
    const found = await client.query('SELECT 1 FROM pg_database WHERE datname = $1', [TEMPLATE]);
    if (found.rowCount) return;
    const draft = `${TEMPLATE}_draft`;
    await client.query(`DROP DATABASE IF EXISTS ${draft} WITH (FORCE)`);
    await client.query(`CREATE DATABASE ${draft}`);
    await migrate(urlOf(server, draft));
    await client.query(`ALTER DATABASE ${draft} RENAME TO ${TEMPLATE}`);
  } finally {
    await client.query('SELECT pg_advisory_unlock($1)', [TEMPLATE_LOCK]);
  }
}

/**
 * `name` is the beginning of the database's name: `[a-z_]+`. Call it at the top of a test file or in a `before`. The
 * database is dropped when the process ends, after every hook has closed its connections; `drop` does it earlier.
 */
export async function freshDatabase(name = 'test'): Promise<TestDatabase> {
  const database = `${name}_${randomBytes(4).toString('hex')}`;
  const url = await withServer(async (client, server) => {
    await ensureTemplate(client, server);
    await client.query(`CREATE DATABASE ${database} TEMPLATE ${TEMPLATE}`);
    return urlOf(server, database);
  });
  let dropped = false;
  const drop = async () => {
    if (dropped) return;
    dropped = true;
    if (failed) console.error(`a test failed; its database is kept: ${url}`);
    else await withServer((client) => client.query(`DROP DATABASE ${database} WITH (FORCE)`));
  };
  endings.push(drop);
  return { url, name: database, drop };
}
