/** What a run happens on: the stores, the parsers, and the instances with their proxies. */
import { join } from 'node:path';
import { createInstance, type Instance } from './cluster.ts';
import { startParsers } from './parsers.ts';
import { lastingPort } from './ports.ts';
import { type Postgres, startPostgres } from './postgres.ts';
import { startProxy } from './proxy.ts';
import { type RedisPair, startRedisPair } from './redis.ts';
import { PROCESSING_EXPIRED_MS, PUSH_TIMEOUT_MS, QUEUES } from './script.ts';

export type GroundOptions = {
  seed: number;
  limiter: 'redis' | 'postgres';
  directory: string;
  /** Where the instances' logs go. */
  logs: string;
  /** One a parser. */
  parserJournals: readonly string[];
};
export type Ground = Awaited<ReturnType<typeof layGround>>;

const INSTANCES = 3;
const ENV = {
  PROCESSING_EXPIRED_MS: String(PROCESSING_EXPIRED_MS),
  PUSH_TIMEOUT_MS: String(PUSH_TIMEOUT_MS),
  RETRY_BASE_MS: '100',
  ACQUIRE_TTL_MS: '1000',
  TRIGGER_INTERVAL_MS: '500',
  WATCH_CRON: '* * * * * *',
  RECONCILE_CRON: '*/2 * * * * *',
  SHUTDOWN_TIMEOUT_MS: '4000',
};
const RETRY = { strategy: 'exponential', max_ms: 2_000 };

export async function layGround({ seed, limiter, directory, logs, parserJournals }: GroundOptions) {
  const postgres = await startPostgres(join(directory, 'postgres'));
  process.prependOnceListener('exit', postgres.quit);
  const redis = limiter === 'redis' ? await startRedisPair(directory) : undefined;
  const ports = await Promise.all(Array.from({ length: INSTANCES }, lastingPort));
  const urls = ports.map((port) => `http://127.0.0.1:${port}`);
  const parserPorts = await Promise.all(parserJournals.map(lastingPort));
  const parsers = await startParsers(
    parserJournals.map((journal, n) => ({ seed, port: parserPorts[n]!, journal, instances: urls })),
  );
  const parserProxies = await Promise.all(parserPorts.map(startProxy));
  const instances = await Promise.all(ports.map((port, number) => instanceAt({ port, number, logs, postgres, redis })));
  await startAll(instances, (parser, path) => `http://127.0.0.1:${parserProxies[parser]!.port}${path}`);
  return {
    postgres,
    redis,
    parsers,
    parserProxies,
    instances,
    urls,
    /** Names and versions of the stores. */
    stores: await versions(postgres, redis),
    /** Ends the instances and the parsers; resolves with what was wrong with the end of an instance. */
    stopServices: async (): Promise<string[]> => {
      const ends = await Promise.all(instances.map((instance) => instance.stop()));
      await parsers.stop();
      await Promise.all(parserProxies.map((proxy) => proxy.stop()));
      await Promise.all(instances.map((instance) => instance.close()));
      return ends.filter((end) => end !== null);
    },
    stopStores: async (): Promise<void> => {
      await redis?.stop();
      await postgres.stop();
      process.off('exit', postgres.quit);
    },
  };
}

type Place = {
  port: number;
  number: number;
  logs: string;
  postgres: Postgres;
  redis: RedisPair | undefined;
};

function instanceAt({ port, number, logs, postgres, redis }: Place): Promise<Instance> {
  return createInstance({
    number,
    port,
    directory: logs,
    postgresPort: postgres.port,
    redisPort: redis?.primary().port ?? null,
    env: ({ postgres: at, redis: redisAt }) => ({
      ...ENV,
      DATABASE_URL: postgres.urlAt(at),
      ...(redisAt === null ? {} : { REDIS_URL: `redis://127.0.0.1:${redisAt}` }),
    }),
  });
}

/** The first makes the schema, and is told of the queues before the others come. */
async function startAll(
  [first, ...others]: readonly Instance[],
  targetAt: (parser: number, path: string) => string,
): Promise<void> {
  await first!.start();
  for (const [queue, { limit, parsers, mode, batch, policy }] of Object.entries(QUEUES)) {
    const targets = parsers.map((parser) => ({
      url: targetAt(parser, `/${mode}/${queue}`),
      mode,
      ...(batch ? { batch } : {}),
    }));
    const answer = await fetch(`${first!.url}/v1/queues/${queue}`, {
      method: 'PUT',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ targets, limit, version_policy: policy, retry: RETRY }),
    });
    if (!answer.ok) throw new Error(`queue ${queue}: ${answer.status} ${await answer.text()}`);
  }
  await Promise.all(others.map((instance) => instance.start()));
}

async function versions({ sql }: Postgres, redis: RedisPair | undefined): Promise<string> {
  const { rows } = await sql.query<{ server_version: string }>('SHOW server_version');
  const postgres = `PostgreSQL ${rows[0]!.server_version}`;
  if (!redis) return postgres;
  const info = await redis.ask((client) => client.info('server'));
  return `${postgres}, Redis ${info.match(/redis_version:(\S+)/)?.[1]}`;
}
