/**
 * A PostgreSQL server of the run's own, always on the same port, that can be stopped like by a power cut and started
 * again. The cluster is made by the embedded server's own code; only starting and stopping is done here.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../src/embedded.ts';
import { accountFor, nameOf, runnableBinaries, SERVER_ENV } from '../../src/embedded-binaries.ts';
import { createLog } from '../../src/log.ts';
import { lastingPort } from './ports.ts';

export type Postgres = Awaited<ReturnType<typeof startPostgres>>;

const NAME = 'docsched';
const READY_TIMEOUT_MS = 60_000;
const POLL_MS = 20;

export async function startPostgres(dataDir: string) {
  const embedded = await startEmbeddedPostgres({ dataDir, log: createLog('silent') });
  await embedded.stop();
  const cluster = join(dataDir, 'postgres');
  const account = await accountFor(cluster);
  const native = await runnableBinaries(account);
  const directory = await nameOf(cluster, account);
  const port = await lastingPort();
  const { password } = new URL(embedded.url);
  const urlAt = (at: number) => `postgres://${NAME}:${password}@127.0.0.1:${at}/${NAME}`;
  const log = openSync(join(dataDir, 'server.log'), 'a');
  let child = launch();
  await untilReady();
  /** Straight to the server, past the proxies. */
  const sql = new pg.Pool({ connectionString: urlAt(port), max: 4, application_name: 'chaos' });
  sql.on('error', () => {});
  return {
    port,
    urlAt,
    sql,
    pid: () => child.pid!,
    /** Stops without a checkpoint, as after a crash, and starts again. */
    restartImmediately: async (downMs: number) => {
      await end('SIGQUIT');
      await sleep(downMs);
      child = launch();
      await untilReady();
    },
    stop: async () => {
      await sql.end();
      await end('SIGINT');
    },
    /** For the hook of a process that exits: no waiting. */
    quit: () => {
      child.kill('SIGQUIT');
    },
  };

  function launch(): ChildProcess {
    const settings = {
      listen_addresses: '127.0.0.1',
      port,
      unix_socket_directories: '',
      max_connections: 200,
      // No power fails here, only processes: what was written to the page cache is there after each restart.
      fsync: 'off',
    };
    const flags = Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]);
    return spawn(join(native, 'bin/postgres'), ['-D', directory, ...flags], {
      ...account,
      cwd: cluster,
      env: SERVER_ENV,
      detached: true,
      stdio: ['ignore', log, log],
    });
  }

  async function end(signal: NodeJS.Signals): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill(signal);
    await exited;
  }

  async function untilReady(): Promise<void> {
    const giveUpAt = performance.now() + READY_TIMEOUT_MS;
    for (;;) {
      const client = new pg.Client({ connectionString: urlAt(port) });
      client.on('error', () => {});
      try {
        await client.connect();
        await client.end();
        return;
      } catch (error) {
        await client.end().catch(() => {});
        if (performance.now() > giveUpAt || child.exitCode !== null) throw error;
        await sleep(POLL_MS);
      }
    }
  }
}
