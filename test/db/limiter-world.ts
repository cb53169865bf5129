/** What the limiter tests stand on: a database, any number of stores, and instances that use them. */
import { randomBytes } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import { Redis } from 'ioredis';
import pg from 'pg';
import { createDb, type Db } from '../../src/db.ts';
import type { Backend } from '../../src/limiter/backend.ts';
import { createLimiter, type Limiter } from '../../src/limiter/limiter.ts';
import { createPostgresBackend } from '../../src/limiter/postgres.ts';
import { createRedisBackend } from '../../src/limiter/redis.ts';
import { createLog } from '../../src/log.ts';
import type { Limits } from '../../src/queues.ts';
import { createRedis } from '../../src/redis.ts';
import { loadScripts, loadStatements } from '../../src/schema.ts';
import { eventually } from '../support/eventually.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';

export const newId = (): string => randomBytes(16).toString('base64url');
export const newIds = (count: number): string[] => Array.from({ length: count }, newId);

export type Instance = { limiter: Limiter; backend: Backend; instanceId: string };
/** A store an instance may be given: the database's own tables, or a Redis by its URL. */
export type Store = 'postgres' | { url: string };
export type World = Awaited<ReturnType<typeof createWorld>>;

/** Long: a want that ends in a test was made to (`endWants`). */
const WANT_TTL_MS = 600_000;

const log = createLog('silent');
const statements = loadStatements();
const scripts = loadScripts();

const CLAIM = `
  WITH gate AS (SELECT 1 FROM limiter_state s WHERE s.epoch = $1 FOR KEY SHARE)
  INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
    number, target, retry)
  SELECT i.id, 1, $2, 1, 1, 0, 0, 0, 1, 'none', i.id = ANY ($4) FROM gate CROSS JOIN unnest($3::text[]) AS i (id)
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
      const deps = { backend, db: options.db ?? db, log, instanceId, acquireTtlMs, wantTtlMs: WANT_TTL_MS };
      const limiter = createLimiter({ ...deps, onOpen: () => {} });
      endings.push(() => limiter.stop());
      return { limiter, backend, instanceId };
    },
    /** As the pusher claims: under the epoch, in one commit. The ids for which an attempt was opened. */
    claim: async (
      epoch: string | null,
      queue: string,
      ids: readonly string[],
      retries: readonly string[] = [],
    ): Promise<string[]> => (await sql.query(CLAIM, [epoch, queue, ids, retries])).rows.map((row) => row.attempt_id),
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
    /** Whether a statement in this database waits for another's lock. */
    someoneWaits: async (): Promise<boolean> => {
      const waiting = await sql.query(
        `SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`,
      );
      return waiting.rows.length > 0;
    },
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

/** Those of them that hold a mark. */
export async function marksOf({ backend, limiter }: Instance, queue: string): Promise<string[]> {
  const listed = await backend.list(limiter.epoch()!);
  const slots = [...(listed?.slots.get(queue) ?? [])];
  return slots.flatMap(([id, { retry }]) => (retry ? [id] : [])).sort();
}

/** A number is the queue's own limit, half of it for retries, without a global limit. */
export const limitsFrom = (limits: number | Limits): Limits =>
  typeof limits === 'number'
    ? { limit: limits, retries: Math.max(1, Math.floor(limits / 2)), global: 0, guaranteed: limits }
    : limits;

/** The granted ids. */
export const take = async (
  { limiter }: Pick<Instance, 'limiter'>,
  queue: string,
  ids: readonly string[],
  limits: number | Limits,
): Promise<string[]> => (await limiter.acquire(queue, ids, limitsFrom(limits))).ids;

/** The lost ids. */
export const keep = (
  { limiter }: Pick<Instance, 'limiter'>,
  queue: string,
  claimed: readonly string[],
  unused: readonly string[],
  limits: number | Limits,
  retries: readonly string[] = [],
): Promise<string[]> => limiter.confirm(queue, { claimed, retries, unused }, limitsFrom(limits));

/** The tests of `body` on both stores, each with a world of its own; `place` is filled when they run. */
export function onBothStores(title: string, body: (place: Place) => void): void {
  for (const kind of ['redis', 'postgres'] as const)
    describe(`the ${kind} limiter${title}`, () => {
      const place = createPlace();
      let server: TestRedis | undefined;
      before(async () => {
        const world = await createWorld(kind);
        server = kind === 'redis' ? await startRedis() : undefined;
        await place.fill(world, server);
      });
      after(async () => {
        await place.world.end();
        await server?.stop();
      });
      body(place);
    });
}

export type Place = {
  world: World;
  /** The Redis; undefined when the store is PostgreSQL. */
  server: TestRedis | undefined;
  /** An instance that every test may use. */
  one: Instance;
  /** The test's own. */
  queue: string;
  fill(world: World, server: TestRedis | undefined): Promise<void>;
  open(acquireTtlMs?: number): Promise<Instance>;
  /** A test with a queue of its own, whose attempts are closed afterwards. */
  scenario(name: string, body: (place: Place) => Promise<void>): void;
  used(): Promise<number>;
  /** Makes all slots of the queue look untouched for so long. */
  backdate(ms: number): Promise<void>;
  /** As if all wants had been left so long ago that they have just ended. */
  endWants(): Promise<void>;
  /** The rebuild that follows when the store is found to be of another epoch. */
  rebuild(): Promise<void>;
};

function createPlace(): Place {
  let queues = 0;
  const place: Place = {
    world: undefined as unknown as World,
    server: undefined,
    one: undefined as unknown as Instance,
    queue: '',
    fill: async (world: World, server: TestRedis | undefined): Promise<void> => {
      Object.assign(place, { world, server });
      place.one = await place.open();
    },
    open: async (acquireTtlMs = 10_000): Promise<Instance> => {
      const store = place.server ? { url: place.server.url } : 'postgres';
      const instance = await place.world.instance(store, { acquireTtlMs });
      await eventually(async () => (await instance.limiter.runOnce()).status === 'open');
      return instance;
    },
    scenario: (name: string, body: (place: Place) => Promise<void>): void => {
      test(name, async () => {
        place.queue = `q${++queues}`;
        await body(place);
        await place.world.close(await place.world.openAttempts(place.queue));
      });
    },
    used: async (): Promise<number> => (await place.one.limiter.usage([place.queue])).get(place.queue)!,
    backdate: async (ms: number): Promise<void> => {
      const { server, queue, world } = place;
      if (!server) {
        await world.sql.query('UPDATE limiter_slots SET touched_at = touched_at - $1 WHERE queue = $2', [ms, queue]);
        return;
      }
      await withRedis(server.url, async (client) => {
        const key = `{docsched}:slots:${queue}`;
        const marked = await marksOf(place.one, queue);
        for (const id of await slotsOf(place.one, queue)) await client.zincrby(key, marked.includes(id) ? ms : -ms, id);
      });
    },
    endWants: async (): Promise<void> => {
      const { server, world } = place;
      if (!server) {
        await world.sql.query('UPDATE limiter_usage SET wanted_until = wanted_until - $1', [WANT_TTL_MS]);
        return;
      }
      await withRedis(server.url, async (client) => {
        for (const [queue, want] of Object.entries(await client.hgetall('{docsched}:wants'))) {
          const [reach, until] = want.split(' ').map(Number);
          await client.hset('{docsched}:wants', queue, `${reach} ${until! - WANT_TTL_MS}`);
        }
      });
    },
    rebuild: async (): Promise<void> => {
      await place.world.sql.query(`UPDATE limiter_state SET epoch = $1, seen_at = docsched_now() - 60000`, [newId()]);
      await eventually(async () => (await place.one.limiter.runOnce()).status === 'open');
    },
  };
  return place;
}

/** Both reconcile again and again until `work` is done. */
export async function whileReconciling(instances: readonly Instance[], work: () => Promise<unknown>): Promise<void> {
  let running = true;
  const reconciling = instances.map(async ({ limiter }) => {
    while (running) await limiter.reconcile();
  });
  await work();
  running = false;
  await Promise.all(reconciling);
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
