/** Dead letters brought back: which, at what rate, and what happens when two do it at once. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createRedrive, type RedriveRequest } from '../../src/redrive.ts';
import { loadStatements } from '../../src/schema.ts';
import { createWorld, queueNames, type World } from '../support/world.ts';

const MINUTE_MS = 60_000;
/** Above two batches of 500. */
const MANY = 1_201;
/** Measured: up to 17, the steps of a plan counted each; a walk over what else is finished would be hundreds. */
const ROWS_A_TASK = 30;
const nextName = queueNames();

let world: World;
before(async () => {
  world = await createWorld('redrive');
});
after(() => world.end());

/** A queue with `count` Failed tasks of version 1; the n-th failed n ms after the first, a minute ago. */
async function withFailed(count: number, reason = 'parser_failed'): Promise<string> {
  const queue = await world.addQueue(nextName());
  await fail(queue, count, reason);
  return queue;
}

async function fail(queue: string, count: number, reason: string, from = 1): Promise<void> {
  await world.fill(queue, 5, count, from);
  await world.sql.query(
    `INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
     SELECT t.queue, t.task_id, t.task_version, t.create_at FROM task_scheduler_tasks t WHERE t.queue = $1 AND t.status = 0
     ON CONFLICT (queue, task_id) DO NOTHING`,
    [queue],
  );
  await world.sql.query(
    `UPDATE task_scheduler_tasks
     SET status = 3, reason = $2, status_code = 7, status_msg = 'broken', retry_count = 3, level = 4, priority = 3,
         finished_at = docsched_now() - $3::bigint + task_id
     WHERE queue = $1 AND status = 0 AND hold = 0`,
    [queue, reason, MINUTE_MS],
  );
}

const setFloor = (queue: string, where: string) =>
  world.sql.query(`UPDATE version_floors SET task_version = 2 WHERE queue = $1 AND ${where}`, [queue]);

let woken = 0;
function redrive(queue: string, request: Partial<RedriveRequest> = {}, wanted: () => boolean = () => true) {
  const { run } = createRedrive({ db: world.openDb(2), onRedriven: () => void woken++, log: world.log });
  return run({ queue, reason: null, finishedBefore: null, ratePerS: 100, dryRun: false, ...request }, wanted);
}

const statuses = async (queue: string) => (await world.tasks(queue)).map((task) => task.status);
const dueTimes = async (queue: string) =>
  (await world.tasks(queue)).filter((task) => task.status === 0).map((task) => task.ready_at!);

test('a redriven task is Pending like one retried by hand, its time-out counted from when it falls due', async () => {
  const queue = await withFailed(1);
  const before = (await world.tasks(queue))[0]!;
  woken = 0;
  const { due_by, ...counts } = await redrive(queue);
  assert.deepEqual(counts, { matched: 1, redriven: 1, skipped: 0 });
  assert.equal(woken, 1);
  const task = (await world.tasks(queue))[0]!;
  const { status, hold, level, retry_count, reason, status_code, status_msg, finished_at } = task;
  assert.deepEqual(
    { status, hold, level, retry_count, reason, status_code, status_msg, finished_at },
    {
      status: 0,
      hold: 1,
      level: 3,
      retry_count: 0,
      reason: null,
      status_code: null,
      status_msg: null,
      finished_at: null,
    },
  );
  assert.equal(task.ready_at, due_by);
  assert.equal(task.pending_since, task.ready_at);
  assert.ok(task.place > before.place, 'at the end of its line');
  assert.ok(task.update_at > before.update_at);
});

test('redriven tasks fall due one after another at the rate, oldest first, over several batches', async () => {
  const queue = await withFailed(MANY);
  const startedAt = await world.now();
  const { due_by, ...counts } = await redrive(queue, { ratePerS: 40 });
  assert.deepEqual(counts, { matched: MANY, redriven: MANY, skipped: 0 });
  const due = await dueTimes(queue);
  assert.ok(due[0]! >= startedAt && due[0]! < startedAt + 5_000, 'the first is due at once');
  assert.deepEqual(
    due.map((at) => at - due[0]!),
    due.map((_, n) => n * 25),
  );
  assert.equal(due.at(-1), due_by);
});

test('a rate whose interval is no whole number of milliseconds is kept over the batches too', async () => {
  const queue = await withFailed(MANY);
  await redrive(queue, { ratePerS: 3_000 });
  const due = (await dueTimes(queue)).toSorted((a, b) => a - b);
  for (let n = 0; n + 31 < due.length; n++) assert.ok(due[n + 30]! - due[n]! >= 9, `30 tasks within 10 ms at ${n}`);
});

test('the next call goes on after the last one, so that the rate holds over all calls', async () => {
  const queue = await withFailed(10);
  const first = await redrive(queue, { ratePerS: 1 });
  await fail(queue, 10, 'refused', 101);
  await redrive(queue, { ratePerS: 1 });
  const due = (await dueTimes(queue)).toSorted((a, b) => a - b);
  assert.equal(due[10], first.due_by! + 1_000);
  assert.equal(due[19]! - due[0]!, 19_000);
});

test('only what the filter names is redriven', async () => {
  const queue = await withFailed(4, 'parser_failed');
  await fail(queue, 4, 'pending_expired', 11);
  const finishedBefore = (await world.tasks(queue))[2]!.finished_at!;
  assert.equal((await redrive(queue, { reason: 'refused' })).matched, 0);
  const { due_by: _, ...counts } = await redrive(queue, { reason: 'parser_failed', finishedBefore });
  assert.deepEqual(counts, { matched: 2, redriven: 2, skipped: 0 });
  assert.deepEqual(await statuses(queue), [0, 0, 3, 3, 3, 3, 3, 3]);
  assert.equal((await redrive(queue)).redriven, 6);
});

test('Stopped tasks, a Success and other queues are left alone', async () => {
  const [queue, other] = [await withFailed(3), await withFailed(1)];
  await world.sql.query(
    `UPDATE task_scheduler_tasks SET status = 4, reason = 'cancelled' WHERE queue = $1 AND task_id = 1`,
    [queue],
  );
  await world.sql.query('UPDATE task_scheduler_tasks SET status = 2, reason = NULL WHERE queue = $1 AND task_id = 2', [
    queue,
  ]);
  assert.equal((await redrive(queue)).redriven, 1);
  assert.deepEqual([await statuses(queue), await statuses(other)], [[4, 2, 0], [3]]);
});

test('what has a newer version accepted is skipped and counted, also when that version is gone', async () => {
  const queue = await withFailed(MANY);
  await setFloor(queue, 'task_id % 3 = 0');
  const { due_by: _, ...counts } = await redrive(queue, { ratePerS: 10_000 });
  assert.deepEqual(counts, { matched: MANY, redriven: MANY - 400, skipped: 400 });
  const left = (await world.tasks(queue)).filter((task) => task.status === 3);
  assert.equal(left.length, 400);
  assert.ok(left.every((task) => task.task_id % 3 === 0 && task.reason === 'parser_failed'));
  const again = await redrive(queue);
  assert.deepEqual(again, { matched: 400, redriven: 0, skipped: 400, due_by: null });
});

test('of two Failed versions of one task only the newest is redriven', async () => {
  const queue = await withFailed(1);
  await world.submit({ queue, taskId: 1, taskVersion: 2 });
  await world.sql.query(
    `UPDATE task_scheduler_tasks SET status = 3, reason = 'refused', finished_at = 1 WHERE queue = $1 AND status = 0`,
    [queue],
  );
  const { due_by: _, ...counts } = await redrive(queue);
  assert.deepEqual(counts, { matched: 2, redriven: 1, skipped: 1 });
  assert.deepEqual(await statuses(queue), [3, 0]);
});

test('a dry run counts and changes nothing', async () => {
  const queue = await withFailed(MANY);
  await setFloor(queue, 'task_id <= 100');
  const before = await world.tasks(queue);
  assert.deepEqual(await redrive(queue, { dryRun: true }), { matched: MANY, redriven: 0, skipped: 100, due_by: null });
  assert.deepEqual(await world.tasks(queue), before);
  const [{ redriven_until }] = (await world.rows<{ redriven_until: number }>(
    'SELECT redriven_until FROM queues WHERE queue = $1',
    [queue],
  )) as [{ redriven_until: number }];
  assert.equal(redriven_until, 0);
});

test('two calls at once redrive each task once, at the rate of one', async () => {
  const queue = await withFailed(5_000);
  const calls = await Promise.all([redrive(queue, { ratePerS: 100 }), redrive(queue, { ratePerS: 100 })]);
  const sum = calls.reduce((total, call) => total + call.redriven, 0);
  const rest = await redrive(queue, { ratePerS: 100 });
  assert.equal(sum + rest.redriven, 5_000);
  const due = (await dueTimes(queue)).toSorted((a, b) => a - b);
  assert.equal(due.length, 5_000);
  assert.deepEqual(
    due.filter((at, n) => n > 0 && at - due[n - 1]! < 10),
    [],
  );
});

test('tasks that others hold are left for the next call, and none waits for them', async () => {
  const queue = await withFailed(4);
  const holder = await world.sql.connect();
  try {
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM version_floors WHERE queue = $1 AND task_id = 1 FOR UPDATE', [queue]);
    await holder.query('SELECT 1 FROM task_scheduler_tasks WHERE queue = $1 AND task_id = 2 FOR UPDATE', [queue]);
    const { due_by: _, ...counts } = await redrive(queue);
    assert.deepEqual(counts, { matched: 4, redriven: 2, skipped: 0 });
    assert.deepEqual(await statuses(queue), [3, 3, 0, 0]);
  } finally {
    await holder.query('ROLLBACK');
    holder.release();
  }
  assert.equal((await redrive(queue)).redriven, 2);
});

test('a submit of a newer version under way is waited for by nobody, and its task is not redriven', async () => {
  const queue = await withFailed(2);
  const submitter = await world.sql.connect();
  try {
    await submitter.query('BEGIN');
    await submitter.query('UPDATE version_floors SET task_version = 2 WHERE queue = $1 AND task_id = 1', [queue]);
    assert.equal((await redrive(queue)).redriven, 1);
    await submitter.query('COMMIT');
  } finally {
    submitter.release();
  }
  const { due_by: _, ...counts } = await redrive(queue);
  assert.deepEqual(counts, { matched: 1, redriven: 0, skipped: 1 });
});

test('a call that nobody waits for any more ends after its batch; calling again does the rest', async () => {
  const queue = await withFailed(MANY);
  let asked = 0;
  const first = await redrive(queue, {}, () => asked++ < 1);
  assert.deepEqual([first.matched, first.redriven], [MANY, 500]);
  const second = await redrive(queue);
  assert.deepEqual([second.matched, second.redriven], [MANY - 500, MANY - 500]);
});

test('redriven tasks become claimable when they fall due, and not before', async () => {
  const queue = await withFailed(3);
  await redrive(queue, { ratePerS: 0.1 });
  while ((await world.db.query('promote_tasks', [])).length > 0);
  const holds = (await world.tasks(queue)).map((task) => task.hold);
  assert.deepEqual(holds, [0, 1, 1]);
});

type Plan = { [member: string]: number | undefined } & { Plans?: Plan[] };

/** Rows that passed through the nodes of a plan, or were looked at there in vain. */
const rowsSeen = (plan: Plan): number => {
  const here = ['Actual Rows', 'Rows Removed by Filter', 'Rows Removed by Join Filter'];
  const each = here.reduce((sum, member) => sum + (plan[member] ?? 0), 0);
  return each * plan['Actual Loops']! + (plan.Plans ?? []).reduce((sum, child) => sum + rowsSeen(child), 0);
};

test('after a mass failure that no statistics know of, a batch of any job on it looks at few rows a task', async () => {
  const failed = 20_000;
  const queue = await world.addQueue(nextName(), {
    cleanup_failed_ms: 0,
    cleanup_stopped_ms: 0,
    success_expired_ms: 0,
  });
  await world.sql.query('TRUNCATE task_scheduler_tasks, version_floors');
  await fail(queue, failed, 'refused');
  await world.fill(queue, 5, failed, failed + 1);
  await world.sql.query(
    'UPDATE task_scheduler_tasks SET status = 2, finished_at = 1 + task_id WHERE queue = $1 AND status = 0',
    [queue],
  );
  const statements = loadStatements();
  const client = await world.sql.connect();
  try {
    for (const [name, params] of [
      ['redrive_tasks', [queue, 'refused', null, -1, -1, -1, 10]],
      ['delete_tasks', [queue, 3]],
      ['retain_results', [queue]],
    ] as const) {
      await client.query('BEGIN; SET LOCAL plan_cache_mode = force_custom_plan');
      const explain = `EXPLAIN (ANALYZE, FORMAT JSON) ${statements[name]}`;
      const { rows } = await client.query(explain, [...params]);
      await client.query('ROLLBACK');
      const seen = rowsSeen(rows[0]['QUERY PLAN'][0].Plan);
      assert.ok(seen <= 500 * ROWS_A_TASK, `${name}: ${seen} rows`);
    }
  } finally {
    client.release();
  }
});

test('the reasons for which tasks failed are found, and of a queue that is not there none', async () => {
  const queue = await withFailed(2, 'try_failed');
  await fail(queue, 2, 'processing_expired', 11);
  const rows = await world.db.query<{ reason: string }>('list_reasons', [queue]);
  assert.deepEqual(
    rows.map(({ reason }) => reason),
    ['processing_expired', 'try_failed'],
  );
  assert.deepEqual(await world.db.query('list_reasons', ['no-such-queue']), []);
});
