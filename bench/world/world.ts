/** What all scenarios share: the stores, the load generator, the stub parser, fresh task ids, and the tally of costs. */
import { rmSync } from 'node:fs';
import { chmod, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startRedis } from '../../test/support/redis.ts';
import type { Contestant, Ids, Stores } from '../contestants/contestant.ts';
import type { Expectation, Parsed } from '../load/parser.ts';
import type { ClosedLoad, OpenLoad, Submitted, SubmittedOpen } from '../load/submitter.ts';
import { startChild } from './child.ts';
import { cpuOf } from './cpu.ts';
import { startPostgres } from './postgres.ts';

/** What a round used, by whom. CPU in seconds. */
export type Costs = {
  serviceCpuS: number;
  postgresCpuS: number;
  redisCpuS: number;
  loadCpuS: number;
  walBytes: number;
};

export type World = Stores & {
  parserUrl: string;
  redisVersion: string;
  /** Never used before, for `count` tasks. */
  newIds(count: number): Ids;
  submit(load: ClosedLoad): Promise<Submitted>;
  submitOpen(load: OpenLoad): Promise<SubmittedOpen>;
  expect(expectation: Expectation): Promise<void>;
  /** Rejects when any task of the round was pushed twice or its callback was not applied. */
  finish(): Promise<Parsed>;
  /** Waits until nothing is pushed any more; resolves with the pushes of the round. */
  drained(): Promise<number>;
  /** Runs `work` after a checkpoint and says what it cost. */
  measure<T>(contestant: Pick<Contestant, 'pids'>, work: () => Promise<T>): Promise<{ value: T; costs: Costs }>;
  stop(): Promise<void>;
};

export async function startWorld(options: { preload?: string } = {}): Promise<World> {
  const home = await mkdtemp(join(tmpdir(), 'docsched-bench-'));
  await chmod(home, 0o755);
  const clear = () => rmSync(home, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  // Also after Ctrl-C, when the server may still be writing its last.
  process.once('exit', clear);
  const postgres = await startPostgres(join(home, 'postgres'), options);
  const redis = await startRedis({ dir: join(home, 'redis') });
  const parser = await startChild('load/parser.ts', {});
  const submitter = await startChild('load/submitter.ts', {});
  let nextId = 1_000_000;

  const sumOf = (pids: number[]) => pids.reduce((sum, pid) => sum + cpuOf(pid), 0);
  const readCosts = async (pids: number[]): Promise<Costs> => ({
    walBytes: await postgres.walBytes(),
    serviceCpuS: sumOf(pids),
    postgresCpuS: postgres.cpuS(),
    redisCpuS: cpuOf(redis.pid),
    loadCpuS: sumOf([parser.pid, submitter.pid]),
  });

  return {
    postgres,
    redisUrl: redis.url,
    redisVersion: await redisVersionOf(redis.url),
    parserUrl: parser.ready.url as string,
    newIds: (count) => {
      const firstId = nextId;
      nextId += count;
      return { firstId, count };
    },
    submit: (load) => checked(submitter.ask<Submitted>('closed', load)),
    submitOpen: (load) => checked(submitter.ask<SubmittedOpen>('open', load)),
    expect: (expectation) => parser.ask('expect', expectation),
    finish: () => parser.ask('finish'),
    drained: () => parser.ask('drained'),
    measure: async ({ pids }, work) => {
      await postgres.checkpoint();
      const before = await readCosts(pids);
      const value = await work();
      return { value, costs: subtract(await readCosts(pids), before) };
    },
    stop: async () => {
      await Promise.all([parser.stop(), submitter.stop()]);
      await redis.stop();
      await postgres.stop();
      clear();
    },
  };
}

/** A round in which a submit was refused is no round. */
async function checked<T extends Submitted>(answer: Promise<T>): Promise<T> {
  const submitted = await answer;
  const refused = Object.entries(submitted.refused);
  if (refused.length > 0)
    throw new Error(`submits refused: ${refused.slice(0, 3).map(([why, times]) => `${times} times ${why}`)}`);
  return submitted;
}

const subtract = (after: Costs, before: Costs): Costs => {
  const names = Object.keys(after) as (keyof Costs)[];
  return Object.fromEntries(names.map((name) => [name, after[name] - before[name]])) as Costs;
};

async function redisVersionOf(url: string): Promise<string> {
  const { Redis } = await import('ioredis');
  const client = new Redis(url);
  const info = await client.info('server');
  client.disconnect();
  return /(?:redis|valkey)_version:(\S+)/.exec(info)?.[1] ?? 'unknown';
}
