/** What the limiter tests stand on: a database, any number of stores, and instances that use them. */
import { randomBytes } from 'node:crypto';
import { Redis } from 'ioredis';
import pg from 'pg';
import { createDb, type Db } from '../../src/db.ts';
import type { Backend } from '../../src/limiter/backend.ts';
import { createLimiter, type Limiter } from '../../src/limiter/limiter.ts';
import { createPostgresBackend } from '../../src/limiter/postgres.ts';
import { createRedisBackend } from '../../src/limiter/redis.ts';
import { createLog } from '../../src/log.ts';
import { createRedis } from '../../src/redis.ts';
import { loadScripts, loadStatements } from '../../src/schema.ts';
import { freshDatabase } from '../support/postgres.ts';

export const newId = (): string => randomBytes(16).toString('base64url');
export const newIds = (count: number): string[] => Array.from({ length: count }, newId);

export type Instance = { limiter: Limiter; backend: Backend; instanceId: string };
/** A store an instance may be given: the database's own tables, or a Redis by its URL. */
export type Store = 'postgres' | { url: string };
export type World = Awaited<ReturnType<typeof createWorld>>;

const log = createLog('silent');
const statements = loadStatements();
const scripts = loadScripts();

const CLAIM = `
  WITH gate AS (SELECT 1 FROM limiter_state s WHERE s.epoch = $1 FOR KEY SHARE)
  INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
    number, target)
  SELECT i.id, 1, $2, 1, 1, 0, 0, 0, 1, 'none' FROM gate CROSS JOIN unnest($3::text[]) AS i (id)
  RETURNING attempt_id`;

export async function createWorld(name: string) {
  const database = await freshDatabase(`limiter_${name}`);
  const sql = new pg.Pool({ connectionString: database.url, max: 10 });
  sql.on('error', () => {});
  const db = createDb({ url: database.url, poolMax: 10, statements, log });
  const endings: (() => unknown)[] = [() => sql.end(), () => db.close()];
  return {
    url: database.url,
    sql,
    db,
    /** A new instance on the store. Nothing runs by itself: a stopped instance is one that is not called. */
    instance: async (store: Store, options: { acquireTtlMs?: number; db?: Db } = {}): Promise<Instance> => {
      const instanceId = newId();
      const backend = store === 'postgres' ? createPostgresBackend({ db }) : redisBackend(store.url, endings);
      const { acquireTtlMs = 10_000 } = options;
      const limiter = createLimiter({ backend, db: options.db ?? db, log, instanceId, acquireTtlMs, onOpen: () => {} });
      endings.push(() => limiter.stop());
      return { limiter, backend, instanceId };
    },
    /** As the pusher claims: under the epoch, in one commit. The ids for which an attempt was opened. */
    claim: async (epoch: string | null, queue: string, ids: readonly string[]): Promise<string[]> =>
      (await sql.query(CLAIM, [epoch, queue, ids])).rows.map((row) => row.attempt_id),
    /** As the receiver settles: closes attempts, releases nothing. */
    close: async (ids: readonly string[]): Promise<void> => {
      await sql.query(`UPDATE attempts SET closed_at = 1, outcome = 'success' WHERE attempt_id = ANY ($1)`, [ids]);
    },
    openAttempts: async (queue: string): Promise<string[]> =>
      (await sql.query('SELECT attempt_id FROM attempts WHERE queue = $1 AND closed_at IS NULL', [queue])).rows.map(
        (row) => row.attempt_id,
      ),
    inForce: async (): Promise<{ backend: string; epoch: string; seen_by: string }> =>
      (await sql.query('SELECT backend, epoch, seen_by FROM limiter_state')).rows[0],
    /** As if no instance had proven the store in force for a minute. */
    forgetProof: async (): Promise<void> => {
      await sql.query('UPDATE limiter_state SET seen_at = docsched_now() - 60000');
    },
    end: async (): Promise<void> => {
      for (const end of endings.reverse()) await end();
    },
  };
}

function redisBackend(url: string, endings: (() => unknown)[]): Backend {
  const redis = createRedis({ url, scripts, log });
  endings.push(() => redis.close());
  return createRedisBackend({ redis });
}

/** Slots of a queue as the store lists them. */
export async function slotsOf({ backend, limiter }: Instance, queue: string): Promise<string[]> {
  const listed = await backend.list(limiter.epoch()!);
  return [...(listed?.slots.get(queue)?.keys() ?? [])].sort();
}

/** A connection of the test's own to a Redis. */
export async function withRedis<T>(url: string, work: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(url);
  try {
    return await work(client);
  } finally {
    client.disconnect();
  }
}
