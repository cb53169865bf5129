/**
 * The service's core in process, without HTTP: a database of its own, queues with the contract's defaults, and any
 * number of instances, each with a pool, limiter and settler, and for each queue a chooser, targets and claimer, like a
 * process of its own.
 */
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { loadConfig } from '../../src/config.ts';
import { createDb, type Db } from '../../src/db.ts';
import { createInserter } from '../../src/inserter/inserter.ts';
import type { Backend } from '../../src/limiter/backend.ts';
import { createLimiter, type Limiter } from '../../src/limiter/limiter.ts';
import { createPostgresBackend } from '../../src/limiter/postgres.ts';
import { createRedisBackend } from '../../src/limiter/redis.ts';
import { createLog } from '../../src/log.ts';
import { createChooser } from '../../src/pusher/chooser.ts';
import { type ClaimRound, createClaimer } from '../../src/pusher/claim.ts';
import { createTargets, type Targets } from '../../src/pusher/targets.ts';
import { createQueues, limitsOf, type Queue, type Queues, type Target } from '../../src/queues.ts';
import { type ClosedAttempt, createSettler } from '../../src/receiver/settle.ts';
import { createRedis } from '../../src/redis.ts';
import { loadScripts, loadStatements } from '../../src/schema.ts';
import { eventually } from './eventually.ts';
import { freshDatabase } from './postgres.ts';

export type World = Awaited<ReturnType<typeof createWorld>>;
export type Instance = Awaited<ReturnType<World['instance']>>;
export type Key = { queue?: string; taskId: string | number; taskVersion: string | number };
/** A task row; times in ms, and ids small enough for numbers. */
export type TaskState = {
  queue: string;
  task_id: number;
  task_version: number;
  id: number;
  place: number;
  level: number;
  hold: number;
  has_blocked: boolean;
  status: number;
  reason: string | null;
  priority: number;
  status_code: string | null;
  status_msg: string | null;
  retry_count: number;
  max_retries: number;
  attempt: number;
  attempt_id: string | null;
  result: string | null;
  create_at: number;
  update_at: number;
  run_at: number | null;
  ready_at: number | null;
  next_retry_time: number | null;
  pending_since: number;
  started_at: number | null;
  finished_at: number | null;
  deadline: number | null;
};
export type AttemptState = {
  attempt_id: string;
  number: number;
  queue: string;
  task_id: number;
  task_version: number;
  task_row_id: number;
  target: string;
  claimed_at: number;
  deadline: number;
  max_deadline: number;
  accepted_at: number | null;
  closed_at: number | null;
  progress_at: number | null;
  progress_percent: number | null;
  progress_message: string | null;
  retry: boolean;
  outcome: string | null;
  error: string | null;
};

type Claim = (queue: Queue, room: number) => Promise<ClaimRound>;

export type InstanceOptions = {
  /** Sets the chooser's phase. */
  random?: () => number;
  /** What the claimer and the settler see of the limiter. */
  between?: (limiter: Limiter) => Limiter;
  /** What the claimer sees of the database. */
  over?: (db: Db) => Db;
};

/** What a queue without targets is claimed for. */
export const TARGET = 'http://parser.test/parse';
export const targetAt = (url: string): Target => ({ url, mode: 'async', batch: 1, push_timeout_ms: 10_000 });
export const newId = (): string => randomBytes(16).toString('base64url');

const log = createLog('silent');
const statements = loadStatements();

/** bigint columns as numbers. */
const types: pg.CustomTypesConfig = {
  getTypeParser: ((oid: number, format: 'text') =>
    oid === pg.types.builtins.INT8 ? Number : pg.types.getTypeParser(oid, format)) as typeof pg.types.getTypeParser,
};

/** `name` begins the database's name; `redisUrl`: where the slots are, if not in it. `end` it in an `after`. */
export async function createWorld(name: string, { redisUrl }: { redisUrl?: string } = {}) {
  const database = await freshDatabase(name);
  const sql = new pg.Pool({ connectionString: database.url, max: 10, types });
  sql.on('error', () => {});
  const endings: (() => unknown)[] = [() => sql.end()];
  const openDb = (poolMax: number): Db => {
    const db = createDb({ url: database.url, poolMax, statements, log });
    endings.push(() => db.close());
    return db;
  };
  const db = openDb(10);
  const config = loadConfig({});
  const inserter = createInserter({ db, onStored: () => {}, count: () => {} });
  const queues = createQueues({ db, config, onChanged: () => {}, log });
  await queues.start();
  await queues.stop();
  const numbers = async <R extends pg.QueryResultRow>(text: string, params: unknown[] = []): Promise<R[]> =>
    (await sql.query<R>(text, params)).rows;

  return {
    url: database.url,
    sql,
    db,
    log,
    rows: numbers,
    /** A pool of its own, as another process has. */
    openDb,
    /** A queue like `default` but for the columns named. Without columns: exactly like it. */
    addQueue: async (queue: string, columns: Record<string, unknown> = {}): Promise<string> => {
      await sql.query('INSERT INTO queues (queue, own) VALUES ($1, $2)', [queue, JSON.stringify(columns)]);
      return queue;
    },
    setQueue: (queue: string, columns: Record<string, unknown>) =>
      sql.query('UPDATE queues SET own = own || $2 WHERE queue = $1', [queue, JSON.stringify(columns)]),
    /** The queues as the jobs see them, read once. */
    queues: async (): Promise<Queues> => {
      const rows = await db.query<Queue>('list_queues', []);
      return { get: (queue) => rows.find((row) => row.queue === queue), all: () => rows } as Queues;
    },
    queue: async (queue = 'default'): Promise<Queue> =>
      (await db.query<Queue>('list_queues', [])).find((row) => row.queue === queue)!,
    /** Through the inserter, in one commit; outcomes in order. */
    submit: async (
      ...submits: (Key & { priority?: number; runAt?: number | null; maxRetries?: number; payload?: string })[]
    ): Promise<string[]> => {
      const outcomes = await inserter.submitBatch(
        submits.map(({ queue = 'default', taskId, taskVersion, priority, runAt, maxRetries, payload }) => ({
          queue,
          taskId: String(taskId),
          taskVersion: String(taskVersion),
          priority: priority ?? 5,
          payload: payload ?? '{}',
          runAt: runAt ?? null,
          maxRetries: maxRetries ?? null,
          traceparent: '00-00000000000000000000000000000001-0000000000000001-00',
        })),
      );
      return outcomes.map(({ outcome }) => outcome);
    },
    /** `count` Pending tasks of version 1, without the inserter: ids from `from` on; retries when `retryCount` is not 0. */
    fill: (queue: string, level: number, count: number, from = 1, retryCount = 0) =>
      sql.query(
        `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, id, place, status, priority, level, payload,
           max_retries, retry_count, pending_since, create_at, update_at)
         SELECT $1, n, 1, i, i, 0, $2, $2, '{}', 3, $5, docsched_now(), docsched_now(), docsched_now()
         FROM (SELECT n, nextval('task_ids') AS i FROM generate_series($3::bigint, $3::bigint + $4 - 1) n) f`,
        [queue, level, from, count, retryCount],
      ),
    tasks: (queue = 'default') =>
      numbers<TaskState>('SELECT * FROM task_scheduler_tasks WHERE queue = $1 ORDER BY task_id, task_version', [queue]),
    task: async ({ queue = 'default', taskId, taskVersion }: Key): Promise<TaskState> =>
      (
        await numbers<TaskState>(
          'SELECT * FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2 AND task_version = $3',
          [queue, taskId, taskVersion],
        )
      )[0]!,
    attempt: async (attemptId: string): Promise<AttemptState> =>
      (await numbers<AttemptState>('SELECT * FROM attempts WHERE attempt_id = $1', [attemptId]))[0]!,
    openAttempts: async (queue = 'default'): Promise<string[]> =>
      (
        await numbers<{ attempt_id: string }>(
          'SELECT attempt_id FROM attempts WHERE queue = $1 AND closed_at IS NULL ORDER BY attempt_id',
          [queue],
        )
      ).map((row) => row.attempt_id),
    now: async (): Promise<number> => (await numbers<{ now: number }>('SELECT docsched_now() AS now'))[0]!.now,
    cancel: async ({ queue = 'default', taskId, taskVersion }: Key): Promise<boolean> => {
      const [row] = await db.query<{ has_blocked: boolean }>('cancel_task', [queue, taskId, taskVersion]);
      if (row?.has_blocked) await db.query('order_versions', [[queue], [taskId], [taskVersion]]);
      return row !== undefined;
    },
    order: ({ queue = 'default', taskId, taskVersion }: Key) =>
      db.query('order_versions', [[queue], [taskId], [taskVersion]]),
    instance: (options: InstanceOptions = {}) => createInstance(options),
    /** Logs each UPDATE and DELETE of a task or attempt row from now on, for `changes`. */
    audit: () => sql.query(AUDIT),
    /** Audited changes of a queue's tasks: how often each was changed, from which status to which. */
    changes: (queue: string) =>
      numbers<{ task_id: number; task_version: number; moves: string[] }>(
        `SELECT task_id, task_version, array_agg(move ORDER BY n) AS moves FROM test_changes WHERE queue = $1
         GROUP BY task_id, task_version ORDER BY task_id, task_version`,
        [queue],
      ),
    end: async (): Promise<void> => {
      for (const end of endings.reverse()) await end();
    },
  };

  function redisBackend(url: string): Backend {
    const redis = createRedis({ url, scripts: loadScripts(), log });
    endings.push(() => redis.close());
    return createRedisBackend({ redis });
  }

  /** Nothing runs by itself. `closed`: what the settler reported; `released`: ids it gave to the limiter's release. */
  async function createInstance({
    random = Math.random,
    between = (limiter) => limiter,
    over = (db) => db,
  }: InstanceOptions) {
    const db = openDb(4);
    const backend: Backend = redisUrl ? redisBackend(redisUrl) : createPostgresBackend({ db });
    const limiter: Limiter = createLimiter({
      backend,
      db,
      log,
      instanceId: newId(),
      acquireTtlMs: 10_000,
      wantTtlMs: 10_000,
      onOpen: () => {},
    });
    const released: string[] = [];
    const closed: ClosedAttempt[] = [];
    const settler = createSettler({
      db,
      limiter: {
        ...limiter,
        release: async (queue, ids) => {
          released.push(...ids);
          await between(limiter).release(queue, ids);
        },
      },
      onClosed: (attempts) => void closed.push(...attempts),
    });
    const lanes = new Map<string, { claim: Claim; targets: Targets; queue: Queue; woken: number }>();
    const laneOf = (queue: Queue) => {
      const settings = queue.targets.length > 0 ? queue : { ...queue, targets: [targetAt(TARGET)] };
      const found = lanes.get(queue.queue);
      if (found) return Object.assign(found, { queue: settings });
      const wake = () => {
        lane.woken += 1;
      };
      const targets = createTargets({ db: over(db), queue: () => lane.queue, wake, log });
      endings.push(() => targets.stop());
      const chooser = createChooser(random);
      const limits = (one: Queue) => limitsOf(one, [one], 0);
      const onUnused = () => {};
      const { claim } = createClaimer({
        db: over(db),
        limiter: between(limiter),
        chooser,
        targets,
        limits,
        onUnused,
        log,
      });
      const lane = { claim, targets, queue: settings, woken: 0 };
      lanes.set(queue.queue, lane);
      return lane;
    };
    const claim = (queue: Queue, room: number): Promise<ClaimRound> => {
      const lane = laneOf(queue);
      return lane.claim(lane.queue, room);
    };
    await eventually(async () => (await limiter.runOnce()).status === 'open');
    return { db, limiter, settler, claim, laneOf, released, closed };
  }
}

const AUDIT = `
  CREATE TABLE test_changes (
    n bigint GENERATED ALWAYS AS IDENTITY, queue text, task_id bigint, task_version bigint, move text);
  CREATE FUNCTION test_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    INSERT INTO test_changes (queue, task_id, task_version, move)
    VALUES (OLD.queue, OLD.task_id, OLD.task_version,
      OLD.status || ' > ' || CASE TG_OP WHEN 'DELETE' THEN 'gone' ELSE NEW.status::text END);
    RETURN NULL;
  END $$;
  CREATE TRIGGER test_changes AFTER UPDATE OR DELETE ON task_scheduler_tasks
    FOR EACH ROW EXECUTE FUNCTION test_note_change()`;

/** One queue a test, so that tests of a file do not meet: returns a name not used before. */
export function queueNames(): () => string {
  let used = 0;
  return () => `q${++used}`;
}
