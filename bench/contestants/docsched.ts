/**
 * docsched as it is shipped: `npm start` with its defaults, apart from the limit, URLs and port. With Redis, as the
 * README advises for production.
 */

import { startService } from '../../test/support/process.ts';
import type { Limiter } from '../arguments.ts';
import { startChild } from '../world/child.ts';
import type { Database } from '../world/postgres.ts';
import { type Contestant, type Ids, newDatabaseName, type Stores, untilRight } from './contestant.ts';

export type DocschedOptions = {
  parserUrl?: string;
  instances?: number;
  /** MAX_PROCESSING. */
  limit?: number;
  /** Where slots are kept. */
  limiter?: Limiter;
  /** Uses this database and leaves it; absent: one of its own. */
  database?: Database;
  name?: string;
  /** Further settings. */
  settings?: Record<string, string>;
  /** Before src/main.ts, for profiles. */
  nodeArgs?: string[];
};

/** Redis databases a server has by default; 0 is for the peers. An installation of docsched must not share its own. */
const REDIS_DATABASES = 15;
let installations = 0;

/** The same that the peers get as concurrency. */
export const LIMIT = 256;

export async function startDocsched(
  { postgres, redisUrl }: Stores,
  {
    parserUrl,
    instances = 1,
    limit = LIMIT,
    limiter = 'redis',
    database,
    name = 'docsched',
    settings = {},
    nodeArgs = [],
  }: DocschedOptions,
): Promise<Contestant & { database: Database }> {
  const databaseName = newDatabaseName(name);
  const store = database ?? (await postgres.createDatabase(databaseName));
  const env = {
    DATABASE_URL: store.url,
    ...(limiter === 'redis' ? { REDIS_URL: `${redisUrl}/${(installations++ % REDIS_DATABASES) + 1}` } : {}),
    MAX_PROCESSING: String(limit),
    ...(parserUrl ? { PARSER_URL: parserUrl } : {}),
    ...settings,
  };
  const start = () => startService({ env, nodeArgs: ['--import', './src/telemetry.ts', ...nodeArgs] });
  // The first one migrates.
  const services = [await start()];
  services.push(...(await Promise.all(Array.from({ length: instances - 1 }, start))));
  return {
    name,
    urls: services.map((service) => service.url),
    pids: services.map((service) => service.pid),
    verify: (ids) => untilRight(() => lookForFaults(store, ids)),
    countOpen: async () => {
      const [row] = await store.query<{ n: string }>('SELECT count(*) AS n FROM task_scheduler_tasks WHERE status < 2');
      return Number(row!.n);
    },
    commits: store.commits,
    stop: async () => {
      for (const service of services) await endService(service);
    },
    remove: async () => {
      if (database) return;
      await store.close();
      await postgres.dropDatabase(databaseName);
    },
    database: store,
  };
}

/** Every tenth task is traced, and its spans are sent to a receiver. */
export async function startTraced(stores: Stores, { parserUrl }: { parserUrl?: string }): Promise<Contestant> {
  const sink = await startChild('apps/trace-sink.ts', {});
  const settings = {
    OTEL_EXPORTER_OTLP_ENDPOINT: sink.ready.url as string,
    OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '0.1',
  };
  const docsched = await startDocsched(stores, {
    ...(parserUrl ? { parserUrl } : {}),
    name: 'docsched_traced',
    settings,
  });
  let ended: Promise<void> | undefined;
  const end = async () => {
    await docsched.stop();
    const bytes = await sink.ask<number>('bytes');
    await sink.stop();
    if (bytes === 0) throw new Error('no span was exported');
  };
  return {
    ...docsched,
    stop: () => {
      ended ??= end();
      return ended;
    },
  };
}

async function endService(service: Awaited<ReturnType<typeof startService>>): Promise<void> {
  const { code } = await service.stop();
  if (code !== 0) throw new Error(`docsched ended with ${code}:\n${service.lines.slice(-20).join('\n')}`);
}

/** One attempt a task, closed with success; nothing else of these ids. */
async function lookForFaults(store: Database, { firstId, count }: Ids): Promise<string | null> {
  const [found] = await store.query<{ tasks: string; succeeded: string; attempts: string; good: string }>(
    `SELECT count(DISTINCT t.task_id) AS tasks,
            count(DISTINCT t.task_id) FILTER (WHERE t.status = 2) AS succeeded,
            count(a.attempt_id) AS attempts,
            count(a.attempt_id) FILTER (WHERE a.outcome = 'success') AS good
     FROM task_scheduler_tasks t
     LEFT JOIN attempts a ON a.task_row_id = t.id
     WHERE t.queue = 'default' AND t.task_id BETWEEN $1::bigint AND $2::bigint`,
    [firstId, firstId + count - 1],
  );
  const right = Object.values(found!).every((n) => Number(n) === count);
  return right ? null : `docsched: of ${count} tasks ${JSON.stringify(found)}`;
}
