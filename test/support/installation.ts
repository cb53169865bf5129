/**
 * A whole installation for one test: a fresh database, a Redis when its limiter is to be there, a scripted parser, and
 * as many instances of the service as the test starts. Everything ends with the test; when that failed, the last lines
 * of each instance are printed and the database is kept.
 */
import type { TestContext } from 'node:test';
import { Redis } from 'ioredis';
import pg from 'pg';
import { eventually } from './eventually.ts';
import { startParser, type TestParser } from './parser.ts';
import { freshDatabase, hasFailedTest } from './postgres.ts';
import { type RunningService, startService } from './process.ts';
import { startRedis, type TestRedis } from './redis.ts';

export const LIMITERS = ['postgres', 'redis'] as const;
export type LimiterName = (typeof LIMITERS)[number];

export type Task = Record<string, unknown> & {
  task_id: string;
  task_version: string;
  status: 'Pending' | 'Processing' | 'Success' | 'Failed' | 'Stopped';
  reason: string | null;
  retry_count: number;
  attempt: number;
};
export type Attempt = { number: number; outcome: string | null; closed_at: number | null; accepted_at: number | null };
export type Submit = { task_id: string | number; task_version?: string | number } & Record<string, unknown>;
export type Answered = { status: number; body: Record<string, unknown>; headers: Headers };

export type Installation = Awaited<ReturnType<typeof install>>;

/** Quick watchers; everything else as by default. A test names what it depends on. */
const QUICK = { WATCH_CRON: '* * * * * *', TRIGGER_INTERVAL_MS: '500' };
/** For tests in which no slot may be repaired behind their back. */
export const NO_RECONCILIATION = { RECONCILE_CRON: '0 0 0 1 1 *' };
const LINES_SHOWN = 25;
/** Submits of `submitMany` on their way at once: half of a batch's bound. */
const MANY = 500;

export async function install(t: TestContext, options: { limiter: LimiterName; env?: Record<string, string> }) {
  const database = await freshDatabase('e2e');
  const sql = new pg.Pool({ connectionString: database.url, max: 3 });
  sql.on('error', () => {});
  const redis = options.limiter === 'redis' ? await startRedis() : undefined;
  let parser = await startParser();
  const instances: RunningService[] = [];
  const starting = new Set<Promise<unknown>>();
  const env: Record<string, string> = {
    ...QUICK,
    DATABASE_URL: database.url,
    ...(redis ? { REDIS_URL: redis.url } : {}),
    PARSER_URL: parser.url,
    ...options.env,
  };
  t.after(async () => {
    await Promise.allSettled(starting);
    if (hasFailedTest()) for (const instance of instances) show(instance);
    for (const instance of instances) instance.resume();
    await Promise.all(instances.map((instance) => instance.kill()));
    await parser.stop();
    await redis?.stop();
    await sql.end();
    await database.drop();
  });
  return {
    database,
    /** Straight to the database, to look at it or to back-date its rows. */
    sql,
    redis: redis as TestRedis,
    get parser(): TestParser {
      return parser;
    },
    /** Stops the parser; another one answers on its port from now on. */
    replaceParser: async (): Promise<TestParser> => {
      await parser.stop();
      parser = await startParser({ port: parser.port });
      return parser;
    },
    env,
    /** Starts an instance; `more` wins over the installation's settings. */
    start: async (more: Record<string, string> = {}): Promise<RunningService> => {
      const start = startService({ env: { ...env, ...more } });
      starting.add(start);
      const instance = await start;
      instances.push(instance);
      return instance;
    },
    /** Slots in use as the limiter's store has them now. */
    slots: () => (redis ? slotsInRedis(redis) : slotsInPostgres(sql)),
    /** Number of tasks by state. */
    countTasks: async (): Promise<Record<string, number>> => {
      const { rows } = await sql.query('SELECT status, count(*)::int AS n FROM task_scheduler_tasks GROUP BY status');
      return Object.fromEntries(rows.map(({ status, n }) => [STATUS[status], n]));
    },
  };
}

const STATUS = ['Pending', 'Processing', 'Success', 'Failed', 'Stopped'];

function show(instance: RunningService): void {
  console.error(`the last lines of instance ${instance.pid}:\n${instance.lines.slice(-LINES_SHOWN).join('\n')}`);
}

async function slotsInRedis({ url }: TestRedis): Promise<number> {
  const client = new Redis(url);
  try {
    return await client.zcard('{docsched}:slots:default');
  } finally {
    client.disconnect();
  }
}

async function slotsInPostgres(sql: pg.Pool): Promise<number> {
  const { rows } = await sql.query(
    `SELECT coalesce((SELECT in_use FROM limiter_usage WHERE queue = 'default'), 0) AS n`,
  );
  return rows[0].n;
}

async function send(url: string, init: RequestInit = {}): Promise<Answered> {
  const answer = await fetch(url, init);
  const text = await answer.text();
  return { status: answer.status, body: text.startsWith('{') ? JSON.parse(text) : {}, headers: answer.headers };
}

export const get = (instance: RunningService, path: string): Promise<Answered> => send(`${instance.url}${path}`);

export const post = (instance: RunningService, path: string, body: unknown = {}): Promise<Answered> =>
  send(`${instance.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });

/** Sets a queue to these settings and no others; the instance obeys them from then on. */
export async function setQueue(instance: RunningService, queue: string, settings: Record<string, unknown>) {
  const { status, body } = await send(`${instance.url}/v1/queues/${queue}`, {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(settings),
  });
  if (status >= 300) throw new Error(`${status}: ${JSON.stringify(body)}`);
}

/** One submit; version 1 and payload null unless named. Resolves with whatever is answered. */
export const submit = (instance: RunningService, task: Submit): Promise<Answered> =>
  post(instance, '/v1/tasks', { task_version: 1, payload: null, ...task });

/** Submits many in batches, one after another. Throws unless all are accepted. */
export async function submitMany(instance: RunningService, tasks: Submit[]): Promise<void> {
  for (let i = 0; i < tasks.length; i += MANY) {
    const batch = tasks.slice(i, i + MANY).map((task) => ({ task_version: 1, payload: null, ...task }));
    const { status, body } = await post(instance, '/v1/tasks/batch', { tasks: batch });
    const refused = (body.results as { outcome?: string }[] | undefined)?.find(({ outcome }) => outcome !== 'created');
    if (status !== 200 || refused) throw new Error(`${status}: ${JSON.stringify(refused ?? body)}`);
  }
}

const pathOf = (taskId: string | number, version: string | number): string => `/v1/tasks/${taskId}/versions/${version}`;

export async function getTask(instance: RunningService, taskId: string | number, version: string | number = 1) {
  return (await get(instance, pathOf(taskId, version))).body as Task;
}

/** The task once it is Success, Failed or Stopped. */
export async function ended(instance: RunningService, taskId: string | number, version: string | number = 1) {
  return eventually(async () => {
    const task = (await get(instance, `${pathOf(taskId, version)}?wait=5`)).body as Task;
    if (!['Success', 'Failed', 'Stopped'].includes(task.status)) throw new Error(`task ${taskId} is ${task.status}`);
    return task;
  });
}

export async function getAttempts(instance: RunningService, taskId: string | number, version: string | number = 1) {
  return (await get(instance, `${pathOf(taskId, version)}/attempts`)).body.attempts as Attempt[];
}

/** Sum of a metric's samples that carry all of `labels`; 0 when there is none. */
export async function metric(instance: RunningService, name: string, labels: Record<string, string> = {}) {
  const text = await (await fetch(`${instance.url}/metrics`)).text();
  const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
  return text
    .split('\n')
    .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
    .filter((line) => wanted.every((pair) => line.includes(pair)))
    .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}

/**
 * docsched_limiter_in_use, read by the instance from its limiter after this call. An instance that looks for work holds
 * some slots for an instant.
 */
export async function slotsShown(instance: RunningService): Promise<number> {
  const sampledAt = () => metric(instance, 'docsched_sample_timestamp_seconds');
  const last = await sampledAt();
  // The gauge is read before the sample's time is taken, so the second sample from now on is wholly later.
  const next = await eventually(async () => {
    const at = await sampledAt();
    return at > last ? at : 0;
  });
  await eventually(async () => (await sampledAt()) > next);
  return metric(instance, 'docsched_limiter_in_use', { queue: 'default' });
}
