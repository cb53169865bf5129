/**
 * `npm test`: one embedded PostgreSQL for the run, then `node --test` over the test folders, or over the files given
 * (`npm test -- test/db/claim.test.ts`; flags are passed to node). All that tests leave lies in one directory, removed
 * at the end; it is kept and named when a test failed, with the databases of the failed files in it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, globSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { startEmbeddedPostgres } from '../src/embedded.ts';
import { createLog } from '../src/log.ts';
import { findRedis } from './support/redis.ts';

const TEST_FILES = 'test/{unit,db,model,e2e,chaos,house}/**/*.test.ts';
/** Test files start services and parsers of their own: two at a time keep two cores busy without starving any. */
const CONCURRENCY = 2;
/** A hung test fails after this instead of holding the run for ever. */
const TIMEOUT_MS = 600_000;
/** How long interrupted tests may take to stop what they started. */
const KILL_AFTER_MS = 5_000;

let tests: ChildProcess | undefined;
let interrupted = false;

function interrupt(): void {
  interrupted = true;
  signalTests('SIGTERM');
  setTimeout(signalTests, KILL_AFTER_MS, 'SIGKILL').unref();
}

function signalTests(signal: NodeJS.Signals): void {
  if (!tests?.pid) return;
  try {
    process.kill(-tests.pid, signal);
  } catch {
    // The group is empty: all have ended.
  }
}

/** Passable by every user: PostgreSQL, started by root, runs as another one. */
function openDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), 'docsched-test-'));
  mkdirSync(join(directory, 'tmp'));
  chmodSync(directory, 0o755);
  return directory;
}

/** No power fails here, only processes, and what they wrote to the page cache stays: tests need not wait for the disk. */
async function stopFsync(url: string): Promise<void> {
  const client = new pg.Client(url);
  await client.connect();
  await client.query('ALTER SYSTEM SET fsync = off');
  await client.query('SELECT pg_reload_conf()');
  await client.end();
}

/** In a process group of its own, so that a signal reaches the tests and all they started, but not PostgreSQL. */
async function runNode(args: string[], env: NodeJS.ProcessEnv): Promise<number> {
  const files = args.some((arg) => !arg.startsWith('-')) ? [] : globSync(TEST_FILES).sort();
  const flags = ['--test', `--test-concurrency=${CONCURRENCY}`, `--test-timeout=${TIMEOUT_MS}`, '--test-reporter=spec'];
  tests = spawn(process.execPath, [...flags, ...args, ...files], { env, stdio: 'inherit', detached: true });
  const [code] = await once(tests, 'exit');
  signalTests('SIGKILL');
  return code ?? 1;
}

async function main(args: string[]): Promise<number> {
  if (Number(process.versions.node.split('.')[0]) < 24)
    throw new Error(`node ${process.versions.node} is too old: run \`npm test\`, or use node >= 24`);
  findRedis();
  const directory = openDirectory();
  const server = await startEmbeddedPostgres({ dataDir: directory, log: createLog('error') });
  await stopFsync(server.url);
  const env = { ...process.env, TEST_POSTGRES_URL: server.url, TMPDIR: join(directory, 'tmp') };
  const code = interrupted ? 1 : await runNode(args, env);
  await server.stop();
  if (code === 0 || interrupted) rmSync(directory, { recursive: true, force: true });
  else console.error(`\nkept for inspection: ${directory} (its PostgreSQL is in ./postgres; remove it when done)`);
  return code;
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
process.exitCode = await main(process.argv.slice(2)).catch((error: Error) => {
  console.error(error.message);
  return 1;
});
