/**
 * The only door to pg. Statements are named prepared statements (name = file name in schema/queries), so a hot
 * statement is parsed once a connection. Connection-level trouble becomes `store_unavailable` (503);
 * serialization failures and deadlocks are retried here, and only here. Works through a pooler in transaction mode too:
 * no statement here needs a session.
 */
import type { Socket } from 'node:net';
import pg from 'pg';
import { AppError } from './errors.ts';
import { type Connection, createHalfOpenGuard, type HalfOpenGuard } from './half-open.ts';
import type { Log } from './log.ts';

export type Row = Record<string, unknown>;
export type Db = {
  /** Runs schema/queries/<name>.sql once, in its own transaction. Arrays are passed as PostgreSQL arrays. */
  query<R extends Row>(name: string, params: readonly unknown[]): Promise<R[]>;
  /** A dedicated connection for LISTEN; not from the pool. The caller ends it. */
  connect(): Promise<pg.Client>;
  /** Connections open / idle / callers waiting for one. */
  stats(): { total: number; idle: number; waiting: number };
  close(): Promise<void>;
};

export type DbDeps = {
  url: string;
  /** PostgreSQL itself, when `url` leads to a pooler in transaction mode. */
  directUrl?: string | undefined;
  poolMax: number;
  statements: Record<string, string>;
  log: Log;
};

/** A row that somebody else holds for longer is somebody's long transaction: the caller is told, not kept waiting. */
const LOCK_TIMEOUT_MS = 2_000;
/** A query may run this long before PostgreSQL ends it: far above any bounded batch, far below a stuck loop's patience. */
const STATEMENT_TIMEOUT_MS = 30_000;
const CONNECT_TIMEOUT_MS = 5_000;
const MAX_RETRIES = 5;
/** Asked over a connection of its own. */
const FIND_WORKING = 'find_working';
/**
 * Statements are planned at each call, for the arrays and table sizes of that moment: a generic plan made while a table
 * was small (full scans are best then) stays in use until the next ANALYZE. Only submit, claim and settle keep their
 * plans: they are functions written so that any plan of theirs is right (schema/functions, test/db/plans.test.ts).
 * work_mem: a group of large payloads (16 MB) stays in memory while the triggers count it, which would otherwise go
 * through temporary files (measured with 200 KB each: 8% more CPU of the server instead of 3%).
 */
const OPTIONS = `-c plan_cache_mode=force_custom_plan -c jit=off -c work_mem=32MB -c lock_timeout=${LOCK_TIMEOUT_MS}`;

/** Transient by nature: the transaction was rolled back whole, running it again is safe. */
const RETRYABLE = new Set(['40001', '40P01']);
/** What a pooler in transaction mode says when it is taken for PostgreSQL itself. */
const POOLER = /unsupported startup parameter|prepared statement .* (does not|already) exists?/;
const LOCK_NOT_AVAILABLE = '55P03';
const QUERY_CANCELED = '57014';
/** The server is away, going away, out of resources (53), failing at its disk (58) or read-only: come back later. */
const UNAVAILABLE = /^(08|53|57|58)|^25006$/;

export function createDb({ url, directUrl, poolMax, statements, log }: DbDeps): Db {
  // A pooler refuses start-up parameters it does not know, and the next query may meet another server connection, where
  // nothing is prepared: there the settings are the role's (README), and statements go without a name.
  const pooled = directUrl !== undefined;
  const pool = new pg.Pool({
    connectionString: url,
    max: poolMax,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    idleTimeoutMillis: 60_000,
    ...(pooled ? {} : { options: OPTIONS, statement_timeout: STATEMENT_TIMEOUT_MS }),
    // When nothing else ends a statement (half-open.ts, but not through a pooler, whose processes are not PostgreSQL's),
    // the client gives up a little after the server would have.
    query_timeout: STATEMENT_TIMEOUT_MS + 2_000,
    keepAlive: true,
    application_name: 'docsched',
  });
  // An idle connection that breaks is replaced at the next use; without a listener the process would end.
  pool.on('error', (error) => log.warn({ event: 'db_idle_connection_lost', error: error.message }));
  // One in use: its statement fails with the same error.
  pool.on('connect', (client) => client.on('error', () => {}));

  const guard = createHalfOpenGuard({ findWorking, log });
  if (!pooled) guardPool(pool, guard);

  return {
    query: (name, params) => run(name, params, 0),
    connect: () => connectAs('docsched-listen'),
    stats: () => ({ total: pool.totalCount, idle: pool.idleCount, waiting: pool.waitingCount }),
    close: () => {
      guard.stop();
      return pool.end();
    },
  };

  async function connectAs(name: string): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: directUrl ?? url,
      keepAlive: true,
      connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
      application_name: name,
    });
    await client.connect();
    return client;
  }

  async function findWorking(pids: number[]): Promise<number[]> {
    const client = await connectAs('docsched-look');
    client.on('error', () => {});
    try {
      const query = { text: statements[FIND_WORKING]!, values: [pids], query_timeout: CONNECT_TIMEOUT_MS };
      const { self, working } = (await client.query<{ self: number; working: number[] }>(query)).rows[0]!;
      if (self !== pidOf(client)) throw new Error('a pooler stands in between');
      return working;
    } finally {
      client.end().catch(() => {});
    }
  }

  async function send<R extends Row>(query: pg.QueryConfig): Promise<R[]> {
    const client = await pool.connect().catch((error: Error & { code?: string }) => {
      throw Object.assign(new NotSentError(error.message, { cause: error }), error.code && { code: error.code });
    });
    try {
      const { rows } = await client.query<R>(query);
      client.release();
      return rows;
    } catch (error) {
      // What failed may have left the connection in any state.
      client.release(error as Error);
      throw error;
    }
  }

  async function run<R extends Row>(name: string, params: readonly unknown[], tries: number): Promise<R[]> {
    const text = statements[name];
    if (text === undefined) throw new Error(`there is no schema/queries/${name}.sql`);
    try {
      return await send<R>({ ...(pooled ? {} : { name }), text, values: params as unknown[] });
    } catch (error) {
      const code = (error as { code?: string }).code ?? '';
      if (RETRYABLE.has(code) && tries < MAX_RETRIES) {
        await new Promise((resolve) => setTimeout(resolve, Math.random() * 20 * 2 ** tries));
        return run(name, params, tries + 1);
      }
      throw classify(name, error);
    }
  }
}

/** A statement that found no connection. */
class NotSentError extends Error {}

/** The server's process, as it was told at the start. */
const pidOf = (client: pg.ClientBase): number => (client as unknown as { processID: number }).processID;

/** Has the guard follow the connections of the pool. */
function guardPool(pool: pg.Pool, guard: HalfOpenGuard): void {
  const known = new WeakMap<pg.PoolClient, Connection>();
  const connectionOf = (client: pg.PoolClient): Connection => {
    const { stream } = (client as unknown as { connection: { stream: Socket } }).connection;
    return {
      pid: pidOf(client),
      moved: () => stream.bytesRead + stream.bytesWritten - stream.writableLength,
      breakOff: () => stream.destroy(),
    };
  };
  const about = (tell: (connection: Connection) => void) => (client: pg.PoolClient) => tell(known.get(client)!);
  pool.on('connect', (client) => {
    known.set(client, connectionOf(client));
    guard.opened(known.get(client)!);
  });
  pool.on('acquire', about(guard.used));
  pool.on('release', (_, client) => guard.freed(known.get(client)!));
  pool.on('remove', about(guard.closed));
  guard.start();
}

/**
 * Whether nothing of the statement was committed: PostgreSQL itself said that it failed, or it was never sent. When the
 * server or the connection was about to go down (57P, 08), the commit may have come first.
 */
export function wasRolledBack(error: unknown): boolean {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof NotSentError) return true;
    if (cause instanceof pg.DatabaseError) return !/^(08|57P)/.test(cause.code ?? '');
  }
  return false;
}

/** The CHECK constraint that a write would have broken. */
export function brokenConstraint(error: unknown): string | undefined {
  for (let cause = error; cause instanceof Error; cause = cause.cause)
    if (cause instanceof pg.DatabaseError && cause.code === '23514') return cause.constraint;
  return undefined;
}

function classify(name: string, error: unknown): unknown {
  const { code = '', message = '' } = error as { code?: string; message?: string };
  if (POOLER.test(message))
    return new Error(`DATABASE_URL leads to a pooler in transaction mode: set DATABASE_DIRECT_URL too (${message})`);
  if (code === LOCK_NOT_AVAILABLE)
    return new AppError('task_locked', 'Another transaction holds the task', { retryAfterS: 1, cause: error });
  if (code === QUERY_CANCELED)
    return new AppError('store_unavailable', 'The database took too long', { retryAfterS: 10, cause: error });
  const socket = /^E[A-Z_]+$/.test(code) || /timeout|terminat|not queryable|Connection/i.test(message);
  if (UNAVAILABLE.test(code) || RETRYABLE.has(code) || (socket && !/^\d/.test(code)))
    return new AppError('store_unavailable', 'The database cannot be reached right now', {
      retryAfterS: 1,
      cause: new Error(`${name}: ${message}`, { cause: error }),
    });
  return new Error(`${name}: ${message}`, { cause: error });
}
