/**
 * Where one route is fuzzed: a queue of its own, with tasks and attempts that exist, and a look at all that the requests
 * could have changed. Nothing else changes it, so that what a request did can be told.
 */
import assert from 'node:assert/strict';
import type pg from 'pg';
import type { FuzzRequest, KnownAttempt, Route } from './fuzz.ts';
import type { Done } from './fuzz-judge.ts';
import { type Installation, post, setQueue, submitMany } from './installation.ts';
import { startParser, type TestParser } from './parser.ts';
import type { RunningService } from './process.ts';

export type Lane = {
  queue: string;
  /** Before each request: sees to it that there is something to report on, to cancel or to retry. The last attempts. */
  prepare(): Promise<readonly KnownAttempt[]>;
  /** Throws when the tables do not hold exactly what was answered since the last time. */
  check(request: FuzzRequest, done: Done): Promise<void>;
  stop(): Promise<void>;
};

type Seen = { rows: string; tasks: number; closed: number };

/** Task ids 1 to this, versions 1 and 2. */
const SEEDED = 30;
const ATTEMPTS_AT_ONCE = 60;
const FEW = 15;
const REVIVE_EVERY = 20;
const FAIL = `
  UPDATE task_scheduler_tasks
  SET status = 3, reason = 'try_failed', finished_at = docsched_now(), hold = 0, ready_at = NULL
  WHERE queue = $1 AND status = 0 AND task_version = 2`;
/** By the end of the route. */
const REVIVE: Record<string, string> = {
  cancel: `
    UPDATE task_scheduler_tasks SET status = 0, reason = NULL, finished_at = NULL WHERE queue = $1 AND status IN (3, 4)`,
  retry: FAIL,
  redrive: FAIL,
};
/** All but what jobs see to: a task's place in line, and that a push was accepted, which is noted late. */
const LOOK = `
  SELECT concat(
      (SELECT string_agg(concat_ws(' ', t.id, t.task_id, t.task_version, t.status, coalesce(t.reason, '-'), t.priority,
                                   t.retry_count, t.max_retries, coalesce(t.run_at, -1), t.create_at, t.attempt_id,
                                   t.status_code, t.status_msg, md5(t.payload), md5(t.result)),
                         E'\\n' ORDER BY t.task_id, t.task_version)
       FROM task_scheduler_tasks t WHERE t.queue = $1),
      (SELECT string_agg((to_jsonb(a) - 'accepted_at')::text, E'\\n' ORDER BY a.attempt_id) FROM attempts a WHERE a.queue = $1),
      (SELECT string_agg(concat_ws(' ', f.task_id, f.task_version), E'\\n' ORDER BY f.task_id)
       FROM version_floors f WHERE f.queue = $1),
      (SELECT q.own::text FROM queues q WHERE q.queue = $1)) AS rows,
    (SELECT count(*)::int FROM task_scheduler_tasks t WHERE t.queue = $1) AS tasks,
    (SELECT count(*)::int FROM attempts a WHERE a.queue = $1 AND a.closed_at IS NOT NULL) AS closed`;

export async function createLane(
  { method, path, parameters, body }: Route,
  queue: string,
  { sql }: Installation,
  service: RunningService,
): Promise<Lane> {
  const reports = parameters.some(({ name }) => name === 'attempt_id') || /Callback/.test(body?.[0] ?? '');
  const parser = reports ? await startParser() : undefined;
  const known: KnownAttempt[] = [];
  let open = 0;
  let requests = 0;
  let previous = 'nothing';
  await setQueue(
    service,
    queue,
    parser ? { targets: [{ url: parser.url }], limit: 100_000, max_retries: 0 } : { paused: true },
  );
  // The settings of a queue may bring its tasks to an end by themselves.
  if (!parser && body?.[0] !== 'QueueSettings') await seed(service, queue, sql);
  let seen = await look();
  return { queue, prepare, check, stop: async () => parser?.stop() };

  async function look(): Promise<Seen> {
    return (await sql.query<Seen>(LOOK, [queue])).rows[0]!;
  }

  async function prepare(): Promise<readonly KnownAttempt[]> {
    const revive = REVIVE[path.split('/').at(-1)!];
    if (parser && open < FEW) await refill(parser);
    else if (revive && ++requests % REVIVE_EVERY === 0) await sql.query(revive, [queue]);
    else return known.slice(-2 * ATTEMPTS_AT_ONCE);
    seen = await look();
    return prepare();
  }

  async function refill({ pushes, waitForPushes }: TestParser): Promise<void> {
    const from = pushes.length;
    await submitMany(
      service,
      Array.from({ length: ATTEMPTS_AT_ONCE }, (_, i) => ({ queue, task_id: 1_000 + from + i })),
    );
    await waitForPushes(from + ATTEMPTS_AT_ONCE, 30_000);
    for (const { body } of pushes.slice(from)) known.push({ attemptId: body.attempt_id, taskId: body.task_id });
    open += ATTEMPTS_AT_ONCE;
  }

  async function check(request: FuzzRequest, { status, results }: Done): Promise<void> {
    const now = await look();
    const outcomes = (...wanted: string[]) => results.filter(({ outcome }) => wanted.includes(outcome ?? '')).length;
    const written =
      outcomes('created', 'refreshed', 'recreated', 'applied') > 0 ||
      (results.length === 0 && status !== undefined && status < 300);
    if (!written || method === 'GET')
      assert.deepEqual(
        now.rows.split('\n').filter((row) => !seen.rows.includes(row)),
        [],
        `changed by what was refused, or by what came before: ${previous}`,
      );
    previous = `${status}, ${JSON.stringify(request).slice(0, 1_000)}`;
    const created = results.filter(({ outcome, task }) => outcome === 'created' && task?.queue === queue).length;
    assert.equal(now.tasks - seen.tasks, created, 'tasks stored and tasks said to be created');
    const closed = path.endsWith('/progress') ? 0 : outcomes('applied');
    assert.equal(now.closed - seen.closed, closed, 'attempts closed and callbacks said to be applied');
    open -= closed;
    seen = now;
  }
}

/** Pending ones, and some that were cancelled, failed, or succeeded. */
async function seed(service: RunningService, queue: string, sql: pg.Pool): Promise<void> {
  const ids = Array.from({ length: SEEDED }, (_, i) => i + 1);
  for (const task_version of [1, 2])
    await submitMany(
      service,
      ids.map((task_id) => ({ queue, task_id, task_version })),
    );
  for (const id of ids.slice(0, 5)) await post(service, `/v1/tasks/${id}/versions/2/cancel?queue=${queue}`);
  await sql.query(
    `UPDATE task_scheduler_tasks
     SET status = CASE WHEN task_id <= 15 THEN 3 ELSE 2 END, reason = CASE WHEN task_id <= 15 THEN 'try_failed' END,
         finished_at = docsched_now(), hold = 0, result = CASE WHEN task_id > 15 THEN '{"pages":3}' END
     WHERE queue = $1 AND task_id BETWEEN 6 AND 20 AND task_version = 2`,
    [queue],
  );
}
