/**
 * A private Redis (or Valkey) for a test file: own port, own directory, no persistence, never evicting.
 * It can be stopped, killed, frozen, restarted empty, and restarted from an older snapshot.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from './ports.ts';
import { endWithThisProcess } from './process.ts';
import { findProgram } from './program.ts';

export type TestRedis = {
  url: string;
  port: number;
  readonly pid: number;
  /** SIGTERM and wait; the directory is removed. */
  stop(): Promise<void>;
  /** SIGKILL and wait; `restart` brings it back on the same port. */
  kill(): Promise<void>;
  /** Kills if running, then starts on the same port: with no data, or with what was last saved. */
  restart(options: { empty: boolean }): Promise<void>;
  /** Writes a snapshot and copies it aside; returns the copy's path. */
  save(): Promise<string>;
  /** Kills if running, then starts on the same port with the data of `snapshot`. */
  restartFrom(snapshot: string): Promise<void>;
  /** SIGSTOP: connections stay open and nothing answers. */
  pause(): void;
  resume(): void;
};

const REDIS = {
  names: ['redis-server', 'valkey-server'],
  debianPackage: 'redis-server',
  hint: 'the tests need Redis: install redis-server (Debian: apt-get install redis-server; macOS: brew install redis) or valkey-server',
};
const START_TIMEOUT_MS = 10_000;

/** Path of the server program; installs it where it can (program.ts). */
export const findRedis = (): string => findProgram(REDIS);

/** `args` are appended to the command line and win, e.g. ['--appendonly', 'yes']. */
export async function startRedis(options: { port?: number; dir?: string; args?: string[] } = {}): Promise<TestRedis> {
  const program = findRedis();
  const directory = options.dir ?? mkdtempSync(join(tmpdir(), 'docsched-redis-'));
  mkdirSync(directory, { recursive: true });
  const port = options.port ?? (await freePort());
  const snapshot = join(directory, 'dump.rdb');
  let snapshots = 0;
  let child = await launch(program, port, directory, options.args);

  const end = async (signal: NodeJS.Signals) => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill('SIGCONT');
    child.kill(signal);
    await exited;
  };
  const start = async () => {
    child = await launch(program, port, directory, options.args);
  };
  return {
    url: `redis://127.0.0.1:${port}`,
    port,
    get pid() {
      return child.pid!;
    },
    stop: async () => {
      await end('SIGTERM');
      if (!options.dir) rmSync(directory, { recursive: true, force: true });
    },
    kill: () => end('SIGKILL'),
    restart: async ({ empty }) => {
      await end('SIGKILL');
      if (empty)
        for (const name of ['dump.rdb', 'appendonlydir'])
          rmSync(join(directory, name), { recursive: true, force: true });
      await start();
    },
    save: async () => {
      const answer = await command(port, 'SAVE');
      if (answer !== '+OK') throw new Error(`redis did not save: ${answer}`);
      const copy = join(directory, `saved-${++snapshots}.rdb`);
      copyFileSync(snapshot, copy);
      return copy;
    },
    restartFrom: async (saved) => {
      await end('SIGKILL');
      rmSync(join(directory, 'appendonlydir'), { recursive: true, force: true });
      copyFileSync(saved, snapshot);
      await start();
    },
    pause: () => void child.kill('SIGSTOP'),
    resume: () => void child.kill('SIGCONT'),
  };
}

async function launch(program: string, port: number, directory: string, args: string[] = []): Promise<ChildProcess> {
  const place = [
    '--port',
    String(port),
    '--bind',
    '127.0.0.1',
    '--dir',
    directory,
    '--logfile',
    join(directory, 'redis.log'),
  ];
  const policy = ['--save', '', '--appendonly', 'no', '--maxmemory-policy', 'noeviction'];
  const child = spawn(program, [...place, ...policy, ...args], { stdio: 'ignore' });
  endWithThisProcess(child);
  const giveUpAt = performance.now() + START_TIMEOUT_MS;
  for (;;) {
    if ((await command(port, 'PING').catch(() => '')) === '+PONG' && child.exitCode === null) return child;
    if (child.exitCode !== null || performance.now() > giveUpAt) {
      child.kill('SIGKILL');
      throw new Error(`redis did not start on port ${port}: see ${directory}/redis.log`);
    }
    await sleep(10);
  }
}

/** One inline command on a connection of its own; the first line of the answer. */
function command(port: number, text: string): Promise<string> {
  return new Promise((settle, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(`${text}\r\n`));
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk;
      if (!answer.includes('\r\n')) return;
      settle(answer.slice(0, answer.indexOf('\r\n')));
      socket.destroy();
    });
    socket.on('error', reject);
    socket.on('close', () => reject(new Error('redis closed the connection')));
  });
}
