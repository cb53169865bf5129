/** What the insertion tests stand on: a database with the contract's defaults, and inserters with pools of their own. */
import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { loadConfig } from '../../src/config.ts';
import { createDb, type Db } from '../../src/db.ts';
import {
  createInserter,
  type Inserter,
  type InserterDeps,
  type Submit,
  type SubmitOutcome,
} from '../../src/inserter/inserter.ts';
import { createLog } from '../../src/log.ts';
import { createQueues } from '../../src/queues.ts';
import { loadStatements } from '../../src/schema.ts';
import { freshDatabase } from '../support/postgres.ts';

/** What a test says of a submit; the rest is as if the client had not named it. */
export type Named = Partial<Submit> & { taskId: string; taskVersion: string };
export type Key = { queue?: string; taskId: string; taskVersion: string };
export type Settle = 'success' | 'parser_failed' | 'refused';
/** A task row; times in ms, ids small enough for numbers. */
export type TaskState = {
  task_version: string;
  status: number;
  reason: string | null;
  priority: number;
  level: number;
  hold: number;
  has_blocked: boolean;
  id: number;
  place: number;
  retry_count: number;
  max_retries: number;
  attempt: number;
  attempt_id: string | null;
  payload: string;
  result: string | null;
  traceparent: string;
  status_code: string | null;
  status_msg: string | null;
  run_at: number | null;
  ready_at: number | null;
  next_retry_time: number | null;
  pending_since: number;
  create_at: number;
  update_at: number;
  started_at: number | null;
  finished_at: number | null;
  deadline: number | null;
};
export type InserterOptions = Partial<Pick<InserterDeps, 'onStored' | 'count'>> & {
  /** Outcomes of each statement the inserter ran. */
  onTried?: (outcomes: string[]) => void;
};
export type World = Awaited<ReturnType<typeof createWorld>>;

const log = createLog('silent');
const statements = loadStatements();

const STATES = `
  SELECT task_version, status, reason, priority::int, level::int, hold::int, id::int, place::int, retry_count, max_retries,
         attempt, payload, result, traceparent, status_code, status_msg, run_at::float8, ready_at::float8,
         next_retry_time::float8, pending_since::float8, create_at::float8, update_at::float8, started_at::float8,
         finished_at::float8, deadline::float8, attempt_id, has_blocked
  FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2 ORDER BY task_version`;

/** As the claim does, for one task by name. */
const CLAIM = `
  WITH task AS (
    SELECT t.id, t.queue, t.task_id, t.task_version, t.attempt
    FROM task_scheduler_tasks t WHERE t.queue = $1 AND t.task_id = $2 AND t.task_version = $3 AND t.status = 0
    FOR UPDATE
  ),
  opened AS (
    INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, claimed_at, deadline,
      max_deadline)
    SELECT $4, t.id, t.queue, t.task_id, t.task_version, t.attempt + 1, 'none', docsched_now(), docsched_now() + 60000,
           docsched_now() + 60000
    FROM task t
  )
  UPDATE task_scheduler_tasks t
  SET status = 1, attempt = t.attempt + 1, attempt_id = $4, hold = 0, ready_at = NULL, has_blocked = false,
      started_at = docsched_now(), deadline = docsched_now() + 60000, next_retry_time = NULL, update_at = docsched_now()
  FROM task
  WHERE t.queue = $1 AND t.task_id = task.task_id AND t.task_version = task.task_version`;

export async function createWorld(name: string) {
  const database = await freshDatabase(`insert_${name}`);
  const sql = new pg.Pool({ connectionString: database.url, max: 10 });
  const dbs: ReturnType<typeof createDb>[] = [];
  const db = openDb();
  const queues = createQueues({ db, config: loadConfig({}), onChanged: () => {}, log });
  await queues.start();
  await queues.stop();

  function openDb() {
    const opened = createDb({ url: database.url, poolMax: 4, statements, log });
    dbs.push(opened);
    return opened;
  }
  const keyParams = ({ queue = 'default', taskId, taskVersion }: Key) => [queue, taskId, taskVersion];
  const order = ({ queue = 'default', taskId, taskVersion }: Key) =>
    db.query('order_versions', [[queue], [taskId], [taskVersion]]);

  return {
    url: database.url,
    sql,
    db,
    /** An instance of the service as far as submits go: a pool and a group commit of its own. */
    inserter: ({ onTried = () => {}, ...deps }: InserterOptions = {}): Inserter => {
      const opened = openDb();
      const query: Db['query'] = async (name, params) => {
        const rows = await opened.query<never>(name, params);
        onTried(rows.map(({ outcome }) => outcome));
        return rows;
      };
      return createInserter({ db: { ...opened, query }, onStored: () => {}, count: () => {}, ...deps });
    },
    /** Another connection with a transaction of its own, to be ended by the caller. */
    begin: async (): Promise<pg.Client> => {
      const client = new pg.Client({ connectionString: database.url });
      await client.connect();
      await client.query('BEGIN');
      return client;
    },
    /** A queue like `default` but for the columns named. */
    addQueue: (queue: string, columns: Record<string, unknown> = {}) =>
      sql.query('INSERT INTO queues (queue, own) VALUES ($1, $2)', [queue, JSON.stringify(columns)]),
    /** All versions of a task, lowest first. */
    states: async (taskId: string, queue = 'default') => (await sql.query<TaskState>(STATES, [queue, taskId])).rows,
    floor: async (taskId: string, queue = 'default') =>
      (
        await sql.query<{ task_version: string; accepted_at: number }>(
          'SELECT task_version, accepted_at::float8 FROM version_floors WHERE queue = $1 AND task_id = $2',
          [queue, taskId],
        )
      ).rows[0],
    /** Pending -> Processing; the attempt's id. What waits behind it moves up, as after a claim. */
    claim: async (key: Key): Promise<string> => {
      const attemptId = randomBytes(16).toString('base64url');
      const { rowCount } = await sql.query(CLAIM, [...keyParams(key), attemptId]);
      if (rowCount !== 1) throw new Error(`not claimable: ${JSON.stringify(key)}`);
      await order(key);
      return attemptId;
    },
    /** As a callback or a push answer does; whether the task moved. */
    settle: async (attemptId: string, verdict: Settle, result: string | null = null): Promise<boolean | undefined> => {
      const params = [[attemptId], [verdict], [verdict === 'success' ? '0' : '7'], ['said the parser'], [result], [0]];
      const [row] = await db.query<{ applied: boolean }>('settle_attempts', params);
      return row?.applied;
    },
    /** Pending or Processing -> Stopped; whether it changed. */
    cancel: async (key: Key): Promise<boolean> => {
      const cancelled = await db.query('cancel_task', keyParams(key));
      await order(key);
      return cancelled.length === 1;
    },
    order,
    /** As the clean-up does once the row is old enough. */
    cleanUp: async (key: Key): Promise<void> => {
      await sql.query(
        'DELETE FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2 AND task_version = $3',
        keyParams(key),
      );
    },
    /** As if the last accepted submit of the task had been so long ago. */
    ageFloor: async (taskId: string, ms: number): Promise<void> => {
      await sql.query('UPDATE version_floors SET accepted_at = accepted_at - $2 WHERE task_id = $1', [taskId, ms]);
    },
    /** As if everything about the task had happened so long ago. */
    age: async (taskId: string, ms: number): Promise<void> => {
      await sql.query(
        `UPDATE task_scheduler_tasks
         SET create_at = create_at - $2, update_at = update_at - $2, run_at = run_at - $2,
             pending_since = pending_since - $2, ready_at = ready_at - $2, next_retry_time = next_retry_time - $2
         WHERE task_id = $1`,
        [taskId, ms],
      );
    },
    end: async (): Promise<void> => {
      await sql.end();
      for (const opened of dbs) await opened.close();
    },
  };
}

export const submitOf = (named: Named): Submit => ({
  queue: 'default',
  priority: 5,
  payload: `"version ${named.taskVersion}"`,
  runAt: null,
  maxRetries: null,
  traceparent: '00-00000000000000000000000000000001-0000000000000001-00',
  ...named,
});

export const outcomeOf = (outcome: SubmitOutcome): string => outcome.outcome;
