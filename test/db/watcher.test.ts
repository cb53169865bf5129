/** The watcher's jobs: what is due and what is not yet, in batches, and twice at once; and the leases around them. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createRedis, type Redis } from '../../src/redis.ts';
import { createClean } from '../../src/watcher/clean.ts';
import { createExpirePending } from '../../src/watcher/expire-pending.ts';
import { createExpireProcessing } from '../../src/watcher/expire-processing.ts';
import { createPostgresLease, createRedisLease, type Lease } from '../../src/watcher/lease.ts';
import { createPromote } from '../../src/watcher/promote.ts';
import { createReconcile } from '../../src/watcher/reconcile.ts';
import { createRetain } from '../../src/watcher/retain.ts';
import { createWatcher } from '../../src/watcher/watcher.ts';
import { eventually } from '../support/eventually.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';
import { createWorld, type Instance, newId, queueNames, type World } from '../support/world.ts';

const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
/** Above two batches of 500. */
const MANY = 1_201;
const nextName = queueNames();

let world: World;
let one: Instance;
let two: Instance;

before(async () => {
  world = await createWorld('watcher');
  one = await world.instance();
  two = await world.instance();
  await world.audit();
});
after(() => world.end());
// The jobs work on all queues: none may find what another test left.
beforeEach(async () => {
  await Promise.all([one.settler.idle(), two.settler.idle()]);
  await world.sql.query(
    `TRUNCATE task_scheduler_tasks, attempts, version_floors, limiter_slots, limiter_usage, test_changes;
     DELETE FROM queues WHERE queue <> 'default'`,
  );
});

const addQueue = (columns: Record<string, unknown> = {}) =>
  world.addQueue(nextName(), {
    concurrency_limit: 10_000,
    retry_strategy: 'immediate',
    pending_expired_ms: MINUTE_MS,
    success_expired_ms: MINUTE_MS,
    cleanup_failed_ms: MINUTE_MS,
    cleanup_stopped_ms: MINUTE_MS,
    cleanup_timed_out_ms: MINUTE_MS,
    version_floor_ms: MINUTE_MS,
    ...columns,
  });
const set = (queue: string, assignment: string, where = 'true') =>
  world.sql.query(`UPDATE task_scheduler_tasks SET ${assignment} WHERE queue = $1 AND ${where}`, [queue]);
/** A moment `ms` ago by PostgreSQL's clock. */
const ago = (ms: number): string => `docsched_now() - ${ms}`;
const statuses = async (queue: string) => (await world.tasks(queue)).map((task) => task.status);
const claim = async (queue: string, room: number) =>
  (await one.claim(await world.queue(queue), room)).tasks.map((task) => task.attempt_id);
/** Room for all that a test takes. */
const LIMITS = { limit: 10_000, retries: 10_000, global: 0, guaranteed: 10_000 };
const inUse = async (queue: string) => (await one.limiter.usage([queue])).get(queue);
/** Forgets what the audit has noted so far, runs both at once, and returns the sum of what they say. */
async function twiceAtOnce(job: (from: Instance) => Promise<{ runOnce(): Promise<number> }>): Promise<number> {
  const jobs = [await job(one), await job(two)];
  await world.sql.query('TRUNCATE test_changes');
  const [first, second] = await Promise.all(jobs.map((each) => each.runOnce()));
  return first! + second!;
}
/** Asserts that each of the queue's tasks made exactly this one move. */
async function assertMovedOnce(queue: string, move: string, count = MANY): Promise<void> {
  const changes = await world.changes(queue);
  assert.equal(changes.length, count);
  assert.deepEqual(
    changes.filter(({ moves }) => moves.join() !== move),
    [],
  );
}

// Pending time-out

const expirePending = async (from = one, finished: string[] = []) =>
  createExpirePending({
    db: from.db,
    queues: await world.queues(),
    onFreed: () => {},
    onFinished: (keys) => void finished.push(...keys.map((each) => `${each.queue} ${each.taskId}/${each.taskVersion}`)),
  });

test('a task Pending longer than pending_expired_ms fails, one just short of it does not', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 2);
  await set(queue, `pending_since = ${ago(MINUTE_MS + 1)}`, 'task_id = 1');
  await set(queue, `pending_since = ${ago(MINUTE_MS - 5_000)}`, 'task_id = 2');
  const finished: string[] = [];
  assert.equal(await (await expirePending(one, finished)).runOnce(), 1);
  const [first, second] = await world.tasks(queue);
  assert.deepEqual([first!.status, first!.reason, first!.hold, first!.ready_at], [3, 'pending_expired', 0, null]);
  assert.ok(first!.finished_at! > 0);
  assert.equal(second!.status, 0);
  assert.deepEqual(finished, [`${queue} 1/1`]);
});

test('the pending time-out does not count before run_at or the retry, and takes delayed and blocked tasks too', async () => {
  const queue = await addQueue();
  const runAt = (await world.now()) + DAY_MS;
  await world.submit({ queue, taskId: 1, taskVersion: 1, runAt });
  await world.submit({ queue, taskId: 2, taskVersion: 1 }, { queue, taskId: 2, taskVersion: 2 });
  await set(queue, `create_at = ${ago(DAY_MS)}`);
  assert.equal(await (await expirePending()).runOnce(), 0);
  await set(queue, `pending_since = ${ago(MINUTE_MS + 1)}`, 'task_version = 1');
  assert.equal(await (await expirePending()).runOnce(), 2);
  assert.deepEqual(await statuses(queue), [3, 3, 0]);
});

test('the pending time-out leaves what is Processing or finished alone', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 2);
  const [first] = await claim(queue, 2);
  await one.settler.settle({ attemptId: first!, verdict: 'success' });
  await set(queue, 'pending_since = 1');
  assert.equal(await (await expirePending()).runOnce(), 0);
  assert.deepEqual(await statuses(queue), [2, 1]);
});

test('each queue has its own pending time-out', async () => {
  const [short, long] = [await addQueue(), await addQueue({ pending_expired_ms: DAY_MS })];
  for (const queue of [short, long]) {
    await world.fill(queue, 5, 1);
    await set(queue, `pending_since = ${ago(2 * MINUTE_MS)}`);
  }
  await (await expirePending()).runOnce();
  assert.deepEqual([await statuses(short), await statuses(long)], [[3], [0]]);
});

test('the pending time-out, twice at once over several batches: each task fails once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, MANY);
  await set(queue, 'pending_since = 1');
  const finished: string[] = [];
  assert.equal(await twiceAtOnce((from) => expirePending(from, finished)), MANY);
  await assertMovedOnce(queue, '0 > 3');
  assert.equal(new Set(finished).size, MANY);
});

// Processing time-out

const expireProcessing = async (from = one) => createExpireProcessing({ db: from.db, settler: from.settler });
const setDeadline = (queue: string, value: string, where = 'true') =>
  world.sql.query(`UPDATE attempts SET deadline = ${value} WHERE queue = $1 AND ${where}`, [queue]);

test('an attempt past its deadline is closed and its task retried, one just short of it is not', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 2);
  await claim(queue, 2);
  await setDeadline(queue, ago(1), 'task_id = 1');
  await setDeadline(queue, ago(-5_000), 'task_id = 2');
  assert.equal(await (await expireProcessing()).runOnce(), 1);
  assert.deepEqual(await statuses(queue), [0, 1]);
  assert.equal((await world.tasks(queue))[0]!.retry_count, 1);
  await eventually(async () => (await inUse(queue)) === 1);
});

test('without retries left a time-out fails the task and says whether the parser had accepted it', async () => {
  const queue = await addQueue();
  await world.submit(...[1, 2].map((taskId) => ({ queue, taskId, taskVersion: 1, maxRetries: 0 })));
  const [, second] = await claim(queue, 2);
  await one.db.query('accept_attempts', [[second]]);
  await setDeadline(queue, '1');
  await (await expireProcessing()).runOnce();
  const tasks = await world.tasks(queue);
  assert.deepEqual(
    tasks.map((task) => [task.status, task.reason]),
    [
      [3, 'in_doubt_expired'],
      [3, 'processing_expired'],
    ],
  );
  assert.match(tasks[0]!.status_msg!, /no clear answer/);
  assert.match(tasks[1]!.status_msg!, /did not report/);
});

test('a cancelled attempt past its deadline gives its slot back and leaves the task Stopped', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 1);
  await claim(queue, 1);
  await world.cancel({ queue, taskId: 1, taskVersion: 1 });
  assert.equal(await inUse(queue), 1);
  await setDeadline(queue, '1');
  await (await expireProcessing()).runOnce();
  assert.deepEqual(await statuses(queue), [4]);
  await eventually(async () => (await inUse(queue)) === 0);
});

test('the processing time-out, twice at once over several batches: each attempt is closed and its task moved once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, MANY);
  for (let i = 0; i < 3; i++) await claim(queue, 401);
  await setDeadline(queue, '1');
  const before = [one, two].map(({ closed }) => closed.length);
  await twiceAtOnce(expireProcessing);
  await assertMovedOnce(queue, '1 > 0');
  const closed = [...one.closed.slice(before[0]), ...two.closed.slice(before[1])].filter((row) => row.queue === queue);
  assert.equal(closed.length, MANY);
  assert.ok((await world.tasks(queue)).every((task) => task.retry_count === 1));
  assert.deepEqual(await world.openAttempts(queue), []);
  await eventually(async () => (await inUse(queue)) === 0);
});

// Retention

const retain = async (from = one) => createRetain({ db: from.db, queues: await world.queues() });
const SOME_REASONS = { 2: [null], 3: ['parser_failed', 'refused', 'pending_expired'], 4: ['cancelled', 'retention'] };
/** Finished tasks of one status, of the given reasons in turn. */
async function fillFinished(
  queue: string,
  status: 2 | 3 | 4,
  count: number,
  from = 1,
  reasons: (string | null)[] = SOME_REASONS[status],
): Promise<void> {
  await world.fill(queue, 5, count, from);
  await world.sql.query(
    `UPDATE task_scheduler_tasks
     SET status = $2, reason = ($3::text[])[1 + task_id % cardinality($3)], finished_at = docsched_now(), result = '"r"'
     WHERE queue = $1 AND status = 0`,
    [queue, status, reasons],
  );
}

test('a Success older than success_expired_ms becomes Stopped without its result, a younger one does not', async () => {
  const queue = await addQueue();
  await fillFinished(queue, 2, 2);
  await set(queue, `finished_at = ${ago(MINUTE_MS + 1)}`, 'task_id = 1');
  await set(queue, `finished_at = ${ago(MINUTE_MS - 5_000)}`, 'task_id = 2');
  assert.equal(await (await retain()).runOnce(), 1);
  const [first, second] = await world.tasks(queue);
  assert.deepEqual([first!.status, first!.reason, first!.result], [4, 'retention', null]);
  assert.ok(first!.finished_at! > (await world.now()) - MINUTE_MS, 'the clean-up counts from here');
  assert.deepEqual([second!.status, second!.result], [2, '"r"']);
});

test('each change that a job makes of a task raises its revision, whatever the clock says', async () => {
  const queue = await addQueue();
  await fillFinished(queue, 2, 1);
  await world.fill(queue, 5, 1, 2);
  const ahead = (await world.now()) + DAY_MS;
  await set(queue, `update_at = ${ahead}, pending_since = 1`);
  await set(queue, 'finished_at = 1', 'status = 2');
  await (await retain()).runOnce();
  await (await expirePending()).runOnce();
  assert.deepEqual(
    (await world.tasks(queue)).map((task) => [task.status, task.update_at]),
    [
      [4, ahead + 1],
      [3, ahead + 1],
    ],
  );
});

test('retention leaves Failed and Stopped tasks alone', async () => {
  const queue = await addQueue();
  await fillFinished(queue, 3, 1);
  await fillFinished(queue, 4, 1, 2);
  await set(queue, 'finished_at = 1');
  assert.equal(await (await retain()).runOnce(), 0);
  assert.deepEqual(await statuses(queue), [3, 4]);
});

test('retention, twice at once over several batches: each Success is stopped once', async () => {
  const queue = await addQueue();
  await fillFinished(queue, 2, MANY);
  await set(queue, 'finished_at = 1');
  assert.equal(await twiceAtOnce(retain), MANY);
  await assertMovedOnce(queue, '2 > 4');
});

// Promotion

const promote = async (from = one, onPromoted: (queues: ReadonlySet<string>) => void = () => {}) =>
  createPromote({ db: from.db, onPromoted, onStopped: () => {} });

test('a delayed task becomes claimable when it is due and not before, and pushers are woken', async () => {
  const queue = await addQueue();
  const runAt = (await world.now()) + DAY_MS;
  await world.submit(...[1, 2].map((taskId) => ({ queue, taskId, taskVersion: 1, runAt })));
  const woken: string[] = [];
  const job = await promote(one, (queues) => void woken.push(...queues));
  assert.equal(await job.runOnce(), 0);
  assert.deepEqual(woken, []);
  await set(queue, `ready_at = ${ago(0)}`, 'task_id = 1');
  await set(queue, `ready_at = ${ago(-5_000)}`, 'task_id = 2');
  assert.equal(await job.runOnce(), 1);
  assert.deepEqual(woken, [queue]);
  const tasks = await world.tasks(queue);
  assert.deepEqual(
    tasks.map((task) => [task.hold, task.ready_at === null]),
    [
      [0, true],
      [1, false],
    ],
  );
  assert.equal((await claim(queue, 5)).length, 1);
});

test('promotion, twice at once over several batches: each task becomes claimable once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, MANY);
  await set(queue, 'hold = 1, ready_at = 1');
  assert.equal(await twiceAtOnce(promote), MANY);
  await assertMovedOnce(queue, '0 > 0');
  assert.ok((await world.tasks(queue)).every((task) => task.hold === 0));
});

// Clean-up

const clean = async (from = one) => createClean({ db: from.db, queues: await world.queues() });

test('Failed and Stopped tasks older than cleanup_after_ms are deleted, younger ones and a Success are not', async () => {
  const queue = await addQueue();
  for (const [i, status] of ([3, 4] as const).entries()) await fillFinished(queue, status, 2, 1 + i * 10);
  await fillFinished(queue, 2, 1, 21);
  await set(queue, `finished_at = ${ago(MINUTE_MS + 1)}`);
  await set(queue, `finished_at = ${ago(MINUTE_MS - 5_000)}`, 'task_id % 2 = 0');
  await (await clean()).runOnce();
  const left = (await world.tasks(queue)).map((task) => [task.task_id, task.status]);
  assert.deepEqual(left, [
    [2, 3],
    [12, 4],
    [21, 2],
  ]);
});

test('Failed, timed out and Stopped tasks are each kept for their own time', async () => {
  const columns = {
    cleanup_timed_out_ms: MINUTE_MS,
    cleanup_stopped_ms: 2 * MINUTE_MS,
    cleanup_failed_ms: 3 * MINUTE_MS,
  };
  const queue = await addQueue({ ...columns, success_expired_ms: 4 * MINUTE_MS });
  const timedOut = ['pending_expired', 'processing_expired', 'in_doubt_expired'];
  const failed = ['parser_failed', 'refused', 'try_failed', 'result_too_large', 'a_reason_of_tomorrow'];
  await fillFinished(queue, 3, 30, 1, timedOut);
  await fillFinished(queue, 4, 30, 101, ['cancelled', 'superseded', 'retention']);
  await fillFinished(queue, 3, 30, 201, failed);
  await fillFinished(queue, 2, 1, 301);
  const job = await clean();
  const leftAfter = async (minutes: number) => {
    await set(queue, `finished_at = ${ago(minutes * MINUTE_MS)}`);
    await job.runOnce();
    return [...new Set((await world.tasks(queue)).map((task) => Math.floor(task.task_id / 100)))];
  };
  assert.deepEqual(await leftAfter(0.9), [0, 1, 2, 3]);
  assert.deepEqual(await leftAfter(1.1), [1, 2, 3]);
  assert.deepEqual(await leftAfter(2.1), [2, 3]);
  assert.deepEqual(await leftAfter(3.1), [3]);
  assert.deepEqual(await leftAfter(100), [3], 'a Success becomes Stopped first');
});

test('each queue keeps what is done for its own time', async () => {
  const [short, long] = [await addQueue(), await addQueue({ cleanup_failed_ms: DAY_MS, cleanup_stopped_ms: DAY_MS })];
  for (const queue of [short, long]) {
    await fillFinished(queue, 3, 1, 1, ['refused']);
    await fillFinished(queue, 4, 1, 2);
    await set(queue, `finished_at = ${ago(2 * MINUTE_MS)}`);
  }
  await (await clean()).runOnce();
  assert.deepEqual([await statuses(short), await statuses(long)], [[], [3, 4]]);
});

test('a task that somebody holds is left to a later clean-up, and keeps none of the others', async () => {
  const queue = await addQueue();
  await fillFinished(queue, 3, 3);
  await set(queue, 'finished_at = 1');
  const holder = await world.sql.connect();
  try {
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM task_scheduler_tasks WHERE queue = $1 AND task_id = 2 FOR UPDATE', [queue]);
    await (await clean()).runOnce();
    await holder.query('ROLLBACK');
  } finally {
    holder.release();
  }
  const left = await world.tasks(queue);
  assert.deepEqual(
    left.map((task) => task.task_id),
    [2],
  );
});

/** Closed attempts of no task row, all closed at one moment. */
const fillAttempts = (queue: string, count: number, closedAt: string) =>
  world.sql.query(
    `INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
       closed_at, outcome, number, target)
     SELECT $1 || '-' || n, 0, $1, n, 1, 1, 1, 1, a.closed_at, 'success', 1, 'none'
     FROM generate_series(1, $2::int) n, (SELECT ${closedAt} AS closed_at OFFSET 0) a`,
    [queue, count],
  );
const countAttempts = async (queue: string) =>
  (await world.rows<{ n: number }>('SELECT count(*) AS n FROM attempts WHERE queue = $1', [queue]))[0]!.n;

test('an attempt is kept until its task is deleted and at least 24 h after it closed', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 3);
  for (const attemptId of await claim(queue, 3)) await one.settler.settle({ attemptId, verdict: 'refused' });
  const age = (where: string, ms: number) =>
    world.sql.query(`UPDATE attempts SET closed_at = ${ago(ms)} WHERE queue = $1 AND ${where}`, [queue]);
  await age('task_id = 1', DAY_MS + 1);
  await age('task_id = 2', DAY_MS - 5_000);
  await age('task_id = 3', DAY_MS + 1);
  await set(queue, 'finished_at = 1', 'task_id < 3');
  const job = await clean();
  await job.runOnce();
  const left = await world.rows<{ task_id: number }>('SELECT task_id FROM attempts WHERE queue = $1 ORDER BY 1', [
    queue,
  ]);
  assert.deepEqual(
    left.map((attempt) => attempt.task_id),
    [2, 3],
  );
});

test('attempts of a row that was recreated under the same key are deleted, those of the new row kept', async () => {
  const queue = await addQueue();
  const key = { queue, taskId: 1, taskVersion: 1 };
  for (const expected of ['created', 'recreated']) {
    assert.deepEqual(await world.submit(key), [expected]);
    const [attemptId] = await claim(queue, 1);
    await one.settler.settle({ attemptId: attemptId!, verdict: 'refused' });
  }
  await world.sql.query('UPDATE attempts SET closed_at = 1 WHERE queue = $1', [queue]);
  await (await clean()).runOnce();
  assert.equal(await countAttempts(queue), 1);
  assert.equal((await world.task(key)).status, 3);
});

test('an open attempt is never deleted, even when its task row is gone', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 1);
  await claim(queue, 1);
  await world.sql.query('UPDATE attempts SET claimed_at = 1, deadline = 1 WHERE queue = $1', [queue]);
  await world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1', [queue]);
  await (await clean()).runOnce();
  assert.equal(await countAttempts(queue), 1);
});

test('attempts that closed in one moment are all deleted in one run', async () => {
  const queue = await addQueue();
  await fillAttempts(queue, MANY, ago(2 * DAY_MS));
  await (await clean()).runOnce();
  assert.equal(await countAttempts(queue), 0);
});

test('a version floor is deleted version_floor_ms after the last accepted submit, when no row is left', async () => {
  const queue = await addQueue();
  for (let taskId = 1; taskId <= 3; taskId++) await world.submit({ queue, taskId, taskVersion: 1 });
  await world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1 AND task_id < 3', [queue]);
  const age = (where: string, ms: number) =>
    world.sql.query(`UPDATE version_floors SET accepted_at = ${ago(ms)} WHERE queue = $1 AND ${where}`, [queue]);
  await age('task_id = 1', MINUTE_MS + 1);
  await age('task_id = 2', MINUTE_MS - 5_000);
  await age('task_id = 3', MINUTE_MS + 1);
  await (await clean()).runOnce();
  const left = await world.rows<{ task_id: number }>('SELECT task_id FROM version_floors WHERE queue = $1 ORDER BY 1', [
    queue,
  ]);
  assert.deepEqual(
    left.map((floor) => floor.task_id),
    [2, 3],
  );
});

test('the clean-up, twice at once over several batches: everything due is deleted once', async () => {
  const queue = await addQueue();
  await fillFinished(queue, 3, MANY);
  await fillFinished(queue, 4, MANY, 10_001);
  await set(queue, 'finished_at = 1');
  await fillAttempts(queue, MANY, ago(2 * DAY_MS));
  await world.sql.query(
    `INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
     SELECT $1, n, 1, 1 FROM generate_series(1, $2) n`,
    [queue, MANY],
  );
  assert.equal(await twiceAtOnce(clean), 4 * MANY);
  const gone = (await world.changes(queue)).map(({ moves }) => moves.join());
  assert.equal(gone.filter((move) => move === '3 > gone').length, MANY);
  assert.equal(gone.filter((move) => move === '4 > gone').length, MANY);
  assert.equal(gone.length, 2 * MANY);
  assert.equal(await countAttempts(queue), 0);
  assert.deepEqual(await world.rows('SELECT 1 FROM version_floors WHERE queue = $1', [queue]), []);
});

// Reconciliation

async function reconcile(from = one) {
  const drift = new Map<string, number>();
  let freed = 0;
  const job = createReconcile({
    limiter: from.limiter,
    queues: await world.queues(),
    observe: (queue, value) => void drift.set(queue, value),
    onFreed: () => void freed++,
    log: world.log,
  });
  return { ...job, drift, freed: () => freed };
}
const ageSlots = (queue: string, ms: number) =>
  world.sql.query('UPDATE limiter_slots SET touched_at = touched_at - $2 WHERE queue = $1', [queue, ms]);

test('a slot without an open attempt is dropped once it is older than ACQUIRE_TTL_MS, and pushers are woken', async () => {
  const queue = await addQueue();
  await one.limiter.acquire(queue, [newId(), newId()], LIMITS);
  const job = await reconcile();
  await job.runOnce();
  assert.deepEqual([await inUse(queue), job.drift.get(queue), job.freed()], [2, 0, 0]);
  await ageSlots(queue, 10_000);
  await job.runOnce();
  assert.deepEqual([await inUse(queue), job.drift.get(queue), job.freed()], [0, 2, 1]);
  await job.runOnce();
  assert.deepEqual([job.drift.get(queue), job.freed()], [0, 1]);
});

test('an open attempt without a slot gets one, and that wakes nobody', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 2);
  await one.limiter.release(queue, await claim(queue, 2));
  const job = await reconcile();
  assert.ok((await job.runOnce()) >= 2);
  assert.deepEqual([await inUse(queue), job.drift.get(queue), job.freed()], [2, -2, 0]);
});

test('while the limiter is closed there is nothing to reconcile', async () => {
  const queue = await addQueue();
  await one.limiter.acquire(queue, [newId()], LIMITS);
  await ageSlots(queue, 20_000);
  const closed = createReconcile({
    limiter: { ...one.limiter, state: () => ({ status: 'closed', reason: 'away', lastOkAgeMs: null }) },
    queues: await world.queues(),
    observe: () => assert.fail('no drift is known'),
    onFreed: () => {},
    log: world.log,
  });
  assert.equal(await closed.runOnce(), 0);
  assert.equal(await inUse(queue), 1);
});

test('reconciliation, twice at once over many slots: each is dropped or added once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, MANY);
  const open = [];
  for (let i = 0; i < 3; i++) open.push(...(await claim(queue, 401)));
  await one.limiter.release(queue, open.slice(0, 700));
  for (let i = 0; i < 2; i++) await one.limiter.acquire(queue, Array.from({ length: 400 }, newId), LIMITS);
  await ageSlots(queue, 20_000);
  assert.equal(await twiceAtOnce(reconcile), 700 + 800);
  assert.equal(await inUse(queue), MANY);
  const slots = await world.rows('SELECT attempt_id FROM limiter_slots WHERE queue = $1 ORDER BY 1', [queue]);
  assert.deepEqual(
    slots.map((slot) => slot.attempt_id),
    await world.openAttempts(queue),
  );
});

// Leases

const leaseDb = (): Db => one.db;
/** Work that goes on until `finish`; `begun` resolves when it has begun. */
function hold(lease: Lease, job: string) {
  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const result = lease.run(job, async () => {
    begun.resolve();
    await ended.promise;
    return 'done';
  });
  return { begun: begun.promise, result, finish: () => ended.resolve() };
}
/** What every lease must do: `leases` are those of as many instances. */
function leaseTests(kind: string, open: (count: number) => Lease[]): void {
  test(`a ${kind} lease: while one instance runs a job the others pass, and may run other jobs`, async () => {
    const [mine, other] = open(2) as [Lease, Lease];
    const job = `${kind}-held`;
    const held = hold(mine, job);
    await held.begun;
    assert.equal(await other.run(job, () => assert.fail('two runners at once')), undefined);
    assert.equal(await other.run(`${job}-2`, async () => 'ran'), 'ran');
    held.finish();
    assert.equal(await held.result, 'done');
    assert.equal(await other.run(job, async () => 'mine now'), 'mine now');
  });

  test(`a ${kind} lease: of eight instances at once one runs at a time`, async () => {
    const leases = open(8);
    let running = 0;
    let ran = 0;
    for (let round = 0; round < 10; round++)
      await Promise.all(
        leases.map((lease) =>
          lease.run(`${kind}-many`, async () => {
            assert.equal(++running, 1);
            ran += 1;
            await world.sql.query('SELECT 1');
            running -= 1;
          }),
        ),
      );
    assert.ok(ran >= 10, `${ran} runs`);
  });

  test(`a ${kind} lease: work that fails gives it back`, async () => {
    const [mine, other] = open(2) as [Lease, Lease];
    await assert.rejects(
      mine.run(`${kind}-fails`, () => Promise.reject(new Error('failed'))),
      /failed/,
    );
    assert.equal(await other.run(`${kind}-fails`, async () => 'ran'), 'ran');
  });
}

const postgresLeases = (count: number): Lease[] =>
  Array.from({ length: count }, () => createPostgresLease({ db: leaseDb(), instanceId: newId() }));

leaseTests('PostgreSQL', postgresLeases);

test('a PostgreSQL lease: a holder that died delays the job by at most 5 s', async () => {
  const [dead, other] = postgresLeases(2) as [Lease, Lease];
  const held = hold(dead, 'dead');
  await held.begun;
  const [lease] = await world.rows<{ left: number }>(
    `SELECT expires_at - docsched_now() AS left FROM watcher_leases WHERE job = 'dead'`,
  );
  assert.ok(lease!.left > 0 && lease!.left <= 5_000, `${lease!.left} ms left`);
  await world.sql.query(`UPDATE watcher_leases SET expires_at = docsched_now() - 1 WHERE job = 'dead'`);
  const next = hold(other, 'dead');
  await next.begun;
  held.finish();
  await held.result;
  const [third] = postgresLeases(1) as [Lease];
  assert.equal(await third.run('dead', async () => 'ran'), undefined, 'who lost the lease gives back nothing');
  next.finish();
  await next.result;
});

let server: TestRedis;
const clients: Redis[] = [];
before(async () => {
  server = await startRedis();
});
after(async () => {
  for (const client of clients) client.close();
  await server.stop();
});

/** Leases over connections of their own. `fallback`: null when it must not be needed. */
function redisLeases(count: number, fallback: Lease | null = null): Lease[] {
  return Array.from({ length: count }, () => {
    const redis = createRedis({ url: server.url, scripts: {}, log: world.log });
    clients.push(redis);
    const none: Lease = { run: () => assert.fail('the fallback was used') };
    const lease = createRedisLease({ redis, fallback: fallback ?? none });
    return {
      run: async (job, work) => {
        await eventually(() => redis.connected());
        return lease.run(job, work);
      },
    };
  });
}

leaseTests('Redis', redisLeases);

test('a Redis lease: a holder that died delays the job by at most 5 s', async () => {
  const [dead, other] = redisLeases(2) as [Lease, Lease];
  const held = hold(dead, 'dead');
  await held.begun;
  const { client } = clients.at(-1)!;
  const left = await client.pttl('{docsched}:lease:dead');
  assert.ok(left > 0 && left <= 5_000, `${left} ms left`);
  await client.pexpire('{docsched}:lease:dead', 1);
  const next = await eventually(async () => {
    const mine = hold(other, 'dead');
    return (await Promise.race([mine.begun.then(() => true), mine.result.then(() => false)])) && mine;
  });
  assert.ok(next);
  held.finish();
  await held.result;
  const [third] = redisLeases(1) as [Lease];
  assert.equal(await third.run('dead', async () => 'ran'), undefined, 'who lost the lease gives back nothing');
  next.finish();
  await next.result;
});

test('while Redis does not answer, or is away, the fallback serves', async () => {
  const [fallback, other] = postgresLeases(2) as [Lease, Lease];
  const redis = createRedis({ url: server.url, scripts: {}, log: world.log });
  clients.push(redis);
  const lease = createRedisLease({ redis, fallback });
  await eventually(() => redis.connected());
  server.pause();
  assert.equal(await lease.run('fallback', async () => 'ran'), 'ran', 'a Redis that hangs');
  server.resume();
  await server.kill();
  await eventually(() => !redis.connected());
  const held = hold(lease, 'fallback');
  await held.begun;
  assert.equal(await other.run('fallback', () => assert.fail('two runners at once')), undefined);
  held.finish();
  await held.result;
  await server.restart({ empty: true });
});

// The watcher itself

test('the watcher runs its jobs on schedule, goes on after a failure, and waits for the run under way at the stop', async () => {
  const finishing = Promise.withResolvers<void>();
  const calls: string[] = [];
  const observed: [string, string, number][] = [];
  let slow = 0;
  const job = (name: string, runOnce: () => Promise<number>) => ({ name, schedule: '* * * * * *', runOnce });
  const watcher = createWatcher({
    jobs: [
      job('fails', async () => {
        calls.push('fails');
        throw new Error('the store is away');
      }),
      job('works', async () => calls.push('works') && 3),
      job('slow', async () => {
        slow += 1;
        await finishing.promise;
        return 0;
      }),
    ],
    lease: { run: (_job, work) => work() },
    db: world.db,
    observe: (name, outcome, changed) => void observed.push([name, outcome, changed]),
    log: world.log,
  });
  const age = (name: string) => watcher.checks.find((check) => check.name === `watcher_${name}`)!.lastOkAgeMs();
  assert.equal(age('works'), null);
  watcher.start();
  await eventually(() => calls.filter((name) => name === 'fails').length >= 2);
  await eventually(() => observed.length >= 4);
  assert.deepEqual(
    ['fails', 'works'].map((name) => observed.find(([one]) => one === name)),
    [
      ['fails', 'failed', 0],
      ['works', 'ran', 3],
    ],
  );
  await eventually(() => age('works')! < age('fails')!);
  const { limitMs } = watcher.checks[0]!;
  assert.ok(limitMs >= 15_000 && limitMs <= 17_000, `${limitMs} ms, for a job of every second`);
  assert.equal(slow, 1, 'never two runs of a job at once');
  let stopped = false;
  const stopping = watcher.stop().then(() => {
    stopped = true;
  });
  const called = calls.length;
  await world.sql.query('SELECT 1');
  assert.equal(stopped, false);
  finishing.resolve();
  await stopping;
  assert.equal(calls.length, called);
});

test('a job whose holder died over it runs here when the lease is over; one that was completed does not', async () => {
  const looked: unknown[] = [];
  const ran: string[] = [];
  const dead = new Set(['dies', 'done']);
  // One tick a minute, the first in a second or two: only the look after the lease can come so soon after it.
  const schedule = `${(new Date().getUTCSeconds() + 2) % 60} * * * * *`;
  const job = (name: string) => ({ name, schedule, runOnce: async () => ran.push(name) });
  const watcher = createWatcher({
    jobs: [job('dies'), job('done')],
    lease: {
      run: async (name, work) => {
        if (!dead.delete(name)) return work();
        if (name === 'done') await world.db.query('complete_job', [name]);
        return undefined;
      },
    },
    db: {
      ...world.db,
      query: async (name, params) => {
        const rows = await world.db.query<never>(name, params);
        if (name === 'find_completed_job') looked.push(params[0]);
        return rows;
      },
    },
    observe: () => {},
    log: world.log,
  });
  watcher.start();
  await eventually(() => dead.size === 0);
  const startedAt = performance.now();
  // The other instance is a second into the job's next run by then, at most.
  await world.sql.query(`UPDATE watcher_leases SET completed_at = completed_at + 5000 WHERE job = 'done'`);
  // Their schedule is a minute away.
  await eventually(() => looked.length === 2 && ran.length > 0, { timeoutMs: 30_000 });
  assert.ok(performance.now() - startedAt <= 30_000);
  await watcher.stop();
  assert.deepEqual(ran, ['dies']);
});
