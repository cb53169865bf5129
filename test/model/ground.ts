/** What the replayed instances stand on: a database of its own, a Redis, and the tasks of one queue a trace. */
import { randomBytes } from 'node:crypto';
import { mock } from 'node:test';
import { Redis } from 'ioredis';
import pg from 'pg';
import { loadConfig } from '../../src/config.ts';
import { createDb } from '../../src/db.ts';
import type { Backend } from '../../src/limiter/backend.ts';
import { createLog } from '../../src/log.ts';
import { createQueues, type Queue } from '../../src/queues.ts';
import { createRedis } from '../../src/redis.ts';
import { loadScripts, loadStatements } from '../../src/schema.ts';
import type { TestDatabase } from '../support/postgres.ts';
import { loadParts, type ServiceParts } from './parts.ts';
import type { Scope } from './state.ts';

export type StoreName = 'redis' | 'postgres';
export type Ground = Awaited<ReturnType<typeof createGround>>;
export type Facts = {
  /** Status, retries and whose result it is, of each task; null where there is no row. */
  tasks: (string | null)[];
  open: string[];
  force: string;
  slots: string[][];
};

export type Texts = {
  statements?: Record<string, string>;
  scripts?: Record<string, string>;
  /** Run once in the new database. */
  functions?: string[];
  parts?: ServiceParts;
};

/** The pause before a claim without an answer is looked up: nothing here waits for it. */
const LOOK_UP_MS = 500;
export const log = createLog('silent');

const OBSERVE = `
  SELECT (SELECT json_object_agg(t.task_id || '/' || t.task_version, t.status || ' after ' || t.retry_count || ' ' || coalesce(t.result::json #>> '{}', ''))
          FROM task_scheduler_tasks t WHERE t.queue = $1) AS tasks,
         ARRAY(SELECT a.attempt_id FROM attempts a WHERE a.queue = $1 AND a.closed_at IS NULL) AS open,
         (SELECT s.epoch FROM limiter_state s) AS force,
         ARRAY(SELECT s.attempt_id FROM limiter_slots s WHERE s.queue = $1) AS slots`;

/** Times in this process: pauses that nobody needs are over at once. */
export function skipPauses(): void {
  const wait = globalThis.setTimeout;
  const skipping = (run: () => void, ms?: number) => (ms === LOOK_UP_MS ? setImmediate(run) : wait(run, ms));
  mock.method(globalThis, 'setTimeout', skipping as unknown as typeof setTimeout);
}

/** On a fresh database; two that follow each other may share one. */
export async function createGround(database: TestDatabase, redisUrl: string, texts: Texts = {}) {
  const sql = new pg.Pool({ connectionString: database.url, max: 2 });
  sql.on('error', () => {});
  for (const text of texts.functions ?? []) await sql.query(text);
  const parts = texts.parts ?? (await loadParts());
  const db = createDb({ url: database.url, poolMax: 6, statements: texts.statements ?? loadStatements(), log });
  const redis = createRedis({ url: redisUrl, scripts: texts.scripts ?? loadScripts(), log });
  const admin = new Redis(redisUrl);
  const settings = createQueues({ db, config: loadConfig({}), onChanged: () => {}, log });
  await settings.start();
  await settings.stop();
  return {
    db,
    sql,
    parts,
    backend: (store: StoreName): Backend =>
      store === 'postgres' ? parts.createPostgresBackend({ db }) : parts.createRedisBackend({ redis }),
    addQueue,
    clear,
    observe,
    setAges,
    lose,
    /** Redis, as if another process served what this one held a moment ago. */
    age: async (): Promise<void> => {
      await admin.hset('{docsched}:store', 'server', 'another');
    },
    /** As if nobody had proven the store in force for a minute. */
    forgetProof: () => sql.query('UPDATE limiter_state SET seen_at = docsched_now() - 60000'),
    renewProof: () => sql.query('UPDATE limiter_state SET seen_at = docsched_now()'),
    end: async (): Promise<void> => {
      redis.close();
      admin.disconnect();
      await Promise.all([db.close(), sql.end()]);
    },
  };

  async function addQueue({ limit, maxRetries }: Scope, target: Queue['targets'][number]): Promise<Queue> {
    const own = {
      concurrency_limit: limit,
      max_retries: maxRetries,
      retry_strategy: 'immediate',
      retry_demote: 0,
      retry_share: 1,
      priority_weights: [1, 0, 0, 0, 0],
      processing_expired_ms: 600_000,
      processing_max_ms: 600_000,
      targets: [target],
    };
    const name = `q${randomBytes(6).toString('hex')}`;
    await sql.query('INSERT INTO queues (queue, own) VALUES ($1, $2)', [name, JSON.stringify(own)]);
    const rows = await db.query<Queue>('list_queues', []);
    return rows.find(({ queue }) => queue === name)!;
  }

  /** Slots as the stores have them, whether they count or not. */
  async function observe(queue: string, keys: readonly string[], stores: readonly StoreName[]): Promise<Facts> {
    type Row = { tasks: Record<string, string> | null; open: string[]; force: string; slots: string[] };
    const [{ rows }, inRedis] = await Promise.all([
      sql.query<Row>({ name: 'observe', text: OBSERVE, values: [queue] }),
      stores.includes('redis') ? admin.zrange(slotsKey(queue), '0', '-1') : [],
    ]);
    const { tasks, open, force, slots } = rows[0]!;
    return {
      tasks: keys.map((key) => tasks?.[key] ?? null),
      open,
      force,
      slots: stores.map((store) => (store === 'redis' ? inRedis : slots)),
    };
  }

  /** The slots named were touched long ago, all others just now. */
  async function setAges(queue: string, store: StoreName, old: ReadonlySet<string>): Promise<void> {
    if (store === 'postgres') {
      await sql.query(
        `UPDATE limiter_slots SET touched_at = docsched_now() - CASE WHEN attempt_id = ANY ($2) THEN 60000 ELSE 0 END
         WHERE queue = $1`,
        [queue, [...old]],
      );
      return;
    }
    const flat = await admin.zrange(slotsKey(queue), '0', '-1', 'WITHSCORES');
    const now = Date.now();
    for (let i = 0; i < flat.length; i += 2) {
      const touchedAt = old.has(flat[i]!) ? now - 60_000 : now;
      const score = Number(flat[i + 1]) < 0 ? -touchedAt : touchedAt;
      await admin.zadd(slotsKey(queue), String(score), flat[i]!);
    }
  }

  /** Nothing is left of earlier traces that another one could see. */
  async function clear(): Promise<void> {
    await sql.query('DELETE FROM attempts WHERE closed_at IS NULL');
    await lose('postgres');
    await admin.flushall();
  }

  async function lose(store: StoreName): Promise<void> {
    if (store === 'redis') await admin.flushall();
    else await sql.query('TRUNCATE limiter_store, limiter_usage, limiter_slots');
  }
}

const slotsKey = (queue: string): string => `{docsched}:slots:${queue}`;
