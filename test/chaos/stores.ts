/** What the stores hold at the end, and on the way there: read directly, past the service. */
import type pg from 'pg';
import type { FinalAttempt, FinalTask } from './evidence.ts';
import type { RedisPair } from './redis.ts';
import { QUEUE_NAMES } from './script.ts';

const PAGE = 20_000;

export async function countPending(sql: pg.Pool): Promise<Map<string, number>> {
  const { rows } = await sql.query<{ queue: string; n: number }>(
    `SELECT queue, count(*)::int AS n FROM task_scheduler_tasks
     WHERE finished_at IS NULL AND deadline IS NULL GROUP BY queue`,
  );
  return new Map(rows.map(({ queue, n }) => [queue, n]));
}

/** Tasks not ended and attempts not closed. */
export async function countOpen(sql: pg.Pool): Promise<number> {
  const { rows } = await sql.query(
    `SELECT (SELECT count(*) FROM task_scheduler_tasks WHERE finished_at IS NULL)::int
       + (SELECT count(*) FROM attempts WHERE closed_at IS NULL)::int AS n`,
  );
  return rows[0].n;
}

export async function countConnections(sql: pg.Pool): Promise<number> {
  const { rows } = await sql.query(
    "SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name LIKE 'docsched%'",
  );
  return rows[0].n;
}

/** By queue, and what the store adds up: all of them must be 0 once traffic has stopped. */
export async function readSlots(sql: pg.Pool, redis: RedisPair | undefined): Promise<Record<string, number>> {
  if (redis) return redis.ask((client) => slotsInRedis(client));
  const { rows } = await sql.query<{ queue: string; in_use: number; retries: number }>(
    'SELECT queue, in_use, retries FROM limiter_usage',
  );
  const slots = await sql.query('SELECT count(*)::int AS n FROM limiter_slots');
  const byQueue = rows.flatMap(({ queue, in_use, retries }) => [
    [queue, in_use],
    [`retries of ${queue}`, retries],
  ]);
  return { ...Object.fromEntries(byQueue), all: slots.rows[0].n };
}

async function slotsInRedis(client: Parameters<Parameters<RedisPair['ask']>[0]>[0]): Promise<Record<string, number>> {
  const found: Record<string, number> = {};
  for (const queue of QUEUE_NAMES) {
    found[queue] = await client.zcard(`{docsched}:slots:${queue}`);
    found[`retries of ${queue}`] = Number((await client.hget('{docsched}:retries', queue)) ?? 0);
  }
  return { ...found, all: Number((await client.hget('{docsched}:store', 'total')) ?? 0) };
}

export async function* readTasks(sql: pg.Pool): AsyncGenerator<FinalTask> {
  let after = '-1';
  for (;;) {
    const { rows } = await sql.query<FinalTask & { id: string }>(
      `SELECT id, queue, task_id, task_version, status, reason, result FROM task_scheduler_tasks
       WHERE id > $1 ORDER BY id LIMIT ${PAGE}`,
      [after],
    );
    yield* rows;
    if (rows.length < PAGE) return;
    after = rows.at(-1)!.id;
  }
}

export async function* readAttempts(sql: pg.Pool): AsyncGenerator<FinalAttempt> {
  let after = '';
  for (;;) {
    const { rows } = await sql.query<FinalAttempt>(
      `SELECT attempt_id, queue, task_id, task_version, claimed_at, outcome FROM attempts
       WHERE attempt_id > $1 ORDER BY attempt_id LIMIT ${PAGE}`,
      [after],
    );
    yield* rows;
    if (rows.length < PAGE) return;
    after = rows.at(-1)!.attempt_id;
  }
}
