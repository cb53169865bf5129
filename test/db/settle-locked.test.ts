/**
 * Settling while somebody else's transaction holds a task's row: who waits, for how long, and what is left. A statement
 * that waits for the row fails after two seconds, so what succeeds did not wait.
 */
import assert from 'node:assert/strict';
import { after, before, type TestContext, test } from 'node:test';
import type { Row } from '../../src/db.ts';
import type { AppError } from '../../src/errors.ts';
import type { Settlement } from '../../src/receiver/settle.ts';
import { createExpireProcessing } from '../../src/watcher/expire-processing.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, newId, queueNames, type World } from '../support/world.ts';

const PATIENCE_MS = 2_000;
const HOUR_MS = 3_600_000;
const nextName = queueNames();

let world: World;
let one: Instance;
/** Settle statements that were answered. */
let looks = 0;

before(async () => {
  world = await createWorld('locked');
  one = await world.instance();
  const { query } = one.db;
  one.db.query = async <R extends Row>(name: string, params: readonly unknown[]) => {
    const rows = await query<R>(name, params);
    if (name === 'settle_attempts') looks += 1;
    return rows;
  };
});
after(() => world.end());

/** A queue with `count` Processing tasks; the attempt of task n is attempts[n - 1]. */
async function processing(count: number): Promise<{ queue: string; attempts: string[] }> {
  const queue = await world.addQueue(nextName(), { retry_strategy: 'immediate' });
  await world.fill(queue, 5, count);
  const attempts = Array.from({ length: count }, newId);
  await world.sql.query(
    `WITH claimed AS (
       UPDATE task_scheduler_tasks t SET status = 1, attempt = 1, attempt_id = ($2::text[])[t.task_id],
         started_at = docsched_now(), deadline = docsched_now() + $3
       WHERE t.queue = $1
       RETURNING t.id, t.queue, t.task_id, t.task_version, t.attempt_id, t.started_at, t.deadline)
     INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, claimed_at, deadline,
       max_deadline)
     SELECT c.attempt_id, c.id, c.queue, c.task_id, c.task_version, 1, 'none', c.started_at, c.deadline, c.deadline
     FROM claimed c`,
    [queue, attempts, HOUR_MS],
  );
  return { queue, attempts };
}

/** Somebody's transaction that holds the queue's tasks up to `last`, until `end`, or the end of the test. */
async function hold(t: TestContext, queue: string, last: number) {
  const client = await world.sql.connect();
  let ended = false;
  const end = async () => {
    if (ended) return;
    ended = true;
    await client.query('COMMIT');
    client.release();
  };
  t.after(end);
  await client.query('BEGIN');
  await client.query('SELECT 1 FROM task_scheduler_tasks WHERE queue = $1 AND task_id <= $2 FOR UPDATE', [queue, last]);
  return { client, end };
}

/** Until so many more looks were answered: while the task is held they find it locked. */
function moreLooks(count: number): Promise<boolean> {
  const enough = looks + count;
  return eventually(() => looks >= enough);
}

const success = (attemptId: string): Settlement => ({ attemptId, verdict: 'success', result: '1' });
const codeOf = (thrown: unknown) => (thrown as AppError).code;

/** What came of it, and after how many ms. */
async function settle(attemptId: string): Promise<{ value: string; ms: number }> {
  const startedAt = performance.now();
  const value = await one.settler.settle(success(attemptId)).then(({ outcome }) => outcome, codeOf);
  return { value, ms: performance.now() - startedAt };
}

test('a held task delays nobody else of its group, and is given up after two seconds: nothing is changed', async (t) => {
  const { queue, attempts } = await processing(40);
  const holder = await hold(t, queue, 1);
  const [held, ...others] = await Promise.all(attempts.map(settle));
  assert.deepEqual(new Set(others.map(({ value }) => value)), new Set(['applied']));
  assert.equal(held!.value, 'task_locked');
  assert.ok(Math.max(...others.map(({ ms }) => ms)) < held!.ms);
  assert.ok(held!.ms >= PATIENCE_MS && held!.ms < 5 * PATIENCE_MS, `${held!.ms} ms`);
  assert.deepEqual(await world.openAttempts(queue), [attempts[0]]);
  assert.ok(!one.released.includes(attempts[0]!), 'it keeps its slot');
  await holder.end();
  assert.equal((await settle(attempts[0]!)).value, 'applied');
});

test('a held task is settled soon after it is free', async (t) => {
  const { queue, attempts } = await processing(1);
  const holder = await hold(t, queue, 1);
  const settling = settle(attempts[0]!);
  await moreLooks(4);
  await holder.end();
  const before = looks;
  assert.equal((await settling).value, 'applied');
  assert.ok(looks - before <= 2, 'by the next look, or the one under way');
});

test('a settle that meets the transaction that cancels its task sees it cancelled', async (t) => {
  const { queue, attempts } = await processing(1);
  const holder = await hold(t, queue, 1);
  await holder.client.query(
    `UPDATE task_scheduler_tasks SET status = 4, reason = 'cancelled', attempt_id = NULL, finished_at = 1, deadline = NULL
     WHERE queue = $1`,
    [queue],
  );
  const settling = settle(attempts[0]!);
  await moreLooks(1);
  await holder.end();
  assert.equal((await settling).value, 'stale');
  assert.equal((await world.attempt(attempts[0]!)).outcome, 'cancelled');
  await eventually(() => one.released.includes(attempts[0]!));
});

test('a report that was applied while the same one waited for the task is told so', async (t) => {
  const { queue, attempts } = await processing(1);
  const holder = await hold(t, queue, 1);
  const both = [settle(attempts[0]!), settle(attempts[0]!)];
  await moreLooks(2);
  await holder.end();
  assert.deepEqual((await Promise.all(both)).map(({ value }) => value).toSorted(), ['applied', 'duplicate']);
});

test('many held tasks are tried again together, not each by itself', async (t) => {
  const { queue, attempts } = await processing(200);
  const holder = await hold(t, queue, 200);
  const before = looks;
  const refused = await Promise.all(attempts.map(settle));
  assert.deepEqual(new Set(refused.map(({ value }) => value)), new Set(['task_locked']));
  assert.ok(looks - before <= 60, `${looks - before} statements`);
  await holder.end();
});

test('a time-out passes over a held task, and the next run of the watcher closes it', async (t) => {
  const { queue, attempts } = await processing(3);
  await world.sql.query('UPDATE attempts SET deadline = 1 WHERE queue = $1', [queue]);
  const holder = await hold(t, queue, 1);
  const watcher = createExpireProcessing({ db: one.db, settler: one.settler });
  await watcher.runOnce();
  assert.deepEqual(await world.openAttempts(queue), [attempts[0]]);
  await holder.end();
  await watcher.runOnce();
  assert.deepEqual(await world.openAttempts(queue), []);
  assert.equal((await world.attempt(attempts[0]!)).outcome, 'in_doubt_expired');
});

test('a batch is one commit, in order; the second report on an attempt is a duplicate, a held task is locked', async (t) => {
  const { queue, attempts } = await processing(300);
  const holder = await hold(t, queue, 1);
  const unknown = newId();
  const last = { ...success(attempts[2]!), result: '"again"' };
  const outcomes = await one.settler.settleBatch([
    ...attempts.map(success),
    success(unknown),
    last,
    success(attempts[0]!),
  ]);
  await holder.end();
  assert.deepEqual(
    outcomes.map(({ outcome }) => outcome),
    ['locked', ...Array(299).fill('applied'), 'unknown', 'duplicate', 'locked'],
  );
  const [{ commits }] = (await world.rows<{ commits: number }>(
    `SELECT count(DISTINCT xmin::text)::int AS commits FROM task_scheduler_tasks WHERE queue = $1 AND status = 2`,
    [queue],
  )) as [{ commits: number }];
  assert.equal(commits, 1);
  assert.equal((await world.task({ queue, taskId: 3, taskVersion: 1 })).result, '1', 'the first one counts');
  assert.deepEqual(await one.settler.settleBatch([]), []);
});

test('progress of a held task is stored at once, and keeps no settle waiting', async (t) => {
  const { queue, attempts } = await processing(2);
  await world.sql.query('UPDATE attempts SET max_deadline = max_deadline + $2 WHERE queue = $1', [queue, HOUR_MS]);
  const holder = await hold(t, queue, 1);
  const before = await world.task({ queue, taskId: 1, taskVersion: 1 });
  const [answer] = await one.db.query<{ deadline: string }>('report_progress', [attempts[0]!, 50, 'half']);
  const attempt = await world.attempt(attempts[0]!);
  assert.deepEqual([attempt.progress_percent, attempt.progress_message], [50, 'half']);
  assert.equal(Number(answer!.deadline), attempt.deadline);
  assert.deepEqual(await world.task({ queue, taskId: 1, taskVersion: 1 }), before);
  await holder.end();
});
