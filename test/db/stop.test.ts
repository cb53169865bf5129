/** Policy `stop`: a lower version that would be Pending again is Stopped instead, however closely it races the higher. */
import assert from 'node:assert/strict';
import { after, before, type TestContext, test } from 'node:test';
import { isFinished, type Verdict } from '../../src/receiver/settle.ts';
import { loadStatements } from '../../src/schema.ts';
import type { TaskKey } from '../../src/task.ts';
import { createPromote } from '../../src/watcher/promote.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, newId, queueNames, type World } from '../support/world.ts';

const RETURNING: Verdict[] = ['parser_failed', 'try_failed', 'expired', 'busy', 'broken', 'unsent'];
const nextName = queueNames();
const statements = loadStatements();

let world: World;
let one: Instance;

before(async () => {
  world = await createWorld('stop');
  one = await world.instance();
});
after(() => world.end());

const low = (queue: string) => ({ queue, taskId: 1, taskVersion: 1 });
const high = (queue: string) => ({ queue, taskId: 1, taskVersion: 2 });
const stateOf = async (queue: string) => {
  const { status, hold, reason } = await world.task(low(queue));
  return [status, hold, reason];
};
const CLAIMABLE = [0, 0, null];
const WAITING = [0, 1, null];
const SUPERSEDED = [4, 0, 'superseded'];

const addQueue = (columns: Record<string, unknown> = {}) =>
  world.addQueue(nextName(), { version_policy: 'stop', retry_strategy: 'immediate', retry_jitter: 0, ...columns });

/** Version 1 is Processing. */
async function processing(columns: Record<string, unknown> = {}, maxRetries = 3) {
  const queue = await addQueue(columns);
  await world.submit({ ...low(queue), maxRetries });
  const attemptId = newId();
  await world.sql.query(
    `WITH claimed AS (
       UPDATE task_scheduler_tasks t SET status = 1, attempt = 1, attempt_id = $2, deadline = docsched_now() + 60000
       WHERE t.queue = $1 AND t.task_version = 1
       RETURNING t.id, t.deadline)
     INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, claimed_at, deadline,
       max_deadline)
     SELECT $2, c.id, $1, 1, 1, 1, 'none', docsched_now(), c.deadline, c.deadline FROM claimed c`,
    [queue, attemptId],
  );
  return { queue, attemptId };
}

/** Version 1 waits for a retry that is due. */
async function returned(): Promise<string> {
  const { queue, attemptId } = await processing();
  await settle(attemptId, 'broken');
  assert.deepEqual(await stateOf(queue), WAITING);
  return queue;
}

async function settle(attemptId: string, verdict: Verdict): Promise<void> {
  if (verdict === 'expired')
    await world.sql.query('UPDATE attempts SET deadline = 1 WHERE attempt_id = $1', [attemptId]);
  const { outcome } = await one.settler.settle({ attemptId, verdict, statusCode: '7', statusMsg: 'said' });
  assert.equal(outcome, 'applied');
}

/** One run; what it told. */
async function promote(): Promise<{ stopped: TaskKey[]; promoted: boolean }> {
  const told = { stopped: [] as TaskKey[], promoted: false };
  const onPromoted = () => {
    told.promoted = true;
  };
  await createPromote({ db: one.db, onPromoted, onStopped: (keys) => told.stopped.push(...keys) }).runOnce();
  return told;
}

/** A transaction of somebody else, rolled back at the end of the test unless it was ended before. */
async function begin(t: TestContext) {
  const client = await world.sql.connect();
  let ended = false;
  const end = async (how: 'COMMIT' | 'ROLLBACK' = 'COMMIT') => {
    if (ended) return;
    ended = true;
    await client.query(how);
    client.release();
  };
  t.after(() => end('ROLLBACK'));
  await client.query('BEGIN');
  return { client, end };
}

/** The submit of version 2, as far as the floor goes: locked, written, not committed. */
async function beginSubmit(t: TestContext, queue: string) {
  const submitting = await begin(t);
  await submitting.client.query('SELECT 1 FROM version_floors WHERE queue = $1 AND task_id = 1 FOR UPDATE', [queue]);
  await submitting.client.query('UPDATE version_floors SET task_version = 2 WHERE queue = $1', [queue]);
  return submitting;
}

/** What was left to be looked at again later is due now. */
const passTime = (queue: string) =>
  world.sql.query('UPDATE task_scheduler_tasks SET ready_at = 1 WHERE queue = $1 AND hold = 1', [queue]);

for (const verdict of RETURNING)
  test(`${verdict} of a lower version stops it`, async () => {
    const { queue, attemptId } = await processing();
    await world.submit(high(queue));
    await settle(attemptId, verdict);
    const task = await world.task(low(queue));
    const { closed_at, outcome } = await world.attempt(attemptId);
    assert.deepEqual(await stateOf(queue), SUPERSEDED);
    assert.deepEqual(
      [task.status_code, task.status_msg, task.retry_count, task.next_retry_time, task.ready_at, task.finished_at],
      [null, 'version 2 was accepted', 0, null, null, closed_at],
    );
    assert.equal(outcome, verdict === 'expired' ? 'in_doubt_expired' : verdict, 'the attempt says what became of it');
    const closed = await eventually(() => one.closed.find((row) => row.attempt_id === attemptId) ?? null);
    assert.deepEqual([closed?.status, closed && isFinished(closed)], [4, true], 'who waits for it is told');
    assert.equal((await world.task(high(queue))).status, 0);
  });

test('a lower version is stopped also when the higher one was cleaned up', async () => {
  const { queue, attemptId } = await processing();
  await world.submit(high(queue));
  await world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1 AND task_version = 2', [queue]);
  await settle(attemptId, 'busy');
  assert.deepEqual(await stateOf(queue), SUPERSEDED);
});

test('what does not return to Pending ends as ever: Success, refused, or Failed without a retry left', async () => {
  for (const [verdict, maxRetries, wanted] of [
    ['success', 3, [2, 0, null]],
    ['refused', 3, [3, 0, 'refused']],
    ['parser_failed', 0, [3, 0, 'parser_failed']],
  ] as const) {
    const { queue, attemptId } = await processing({}, maxRetries);
    await world.submit(high(queue));
    await settle(attemptId, verdict);
    assert.deepEqual(await stateOf(queue), wanted);
  }
});

test('the highest version returns to Pending, and so does every version of a queue with policy keep', async () => {
  for (const policy of ['stop', 'keep']) {
    const { queue, attemptId } = await processing({ version_policy: policy });
    if (policy === 'keep') await world.submit(high(queue));
    await settle(attemptId, 'parser_failed');
    assert.deepEqual(await stateOf(queue), WAITING);
    const { promoted, stopped } = await promote();
    assert.deepEqual([promoted, stopped], [true, []]);
    assert.deepEqual(await stateOf(queue), policy === 'keep' ? [0, 2, null] : CLAIMABLE);
  }
});

test('a version that returned before the higher one was accepted is stopped when it falls due, and that is told', async (t) => {
  const queue = await returned();
  await (await beginSubmit(t, queue)).end();
  const { promoted, stopped } = await promote();
  assert.deepEqual([promoted, stopped], [false, [{ queue, taskId: '1', taskVersion: '1' }]]);
  assert.deepEqual(await stateOf(queue), SUPERSEDED);
  const task = await world.task(low(queue));
  assert.deepEqual(
    [task.status_code, task.status_msg, task.ready_at, task.next_retry_time],
    [null, 'version 2 was accepted', null, null],
  );
  assert.ok(task.finished_at! > 0);
});

test('a version that returns while the submit of the higher one is under way never becomes claimable', async (t) => {
  const { queue, attemptId } = await processing();
  const submitting = await beginSubmit(t, queue);
  await settle(attemptId, 'parser_failed');
  assert.deepEqual(await stateOf(queue), WAITING, 'the settle cannot see what is not committed');
  assert.deepEqual(await promote(), { stopped: [], promoted: false });
  assert.deepEqual(await stateOf(queue), WAITING);
  await submitting.end();
  await passTime(queue);
  assert.equal((await promote()).stopped.length, 1);
  assert.deepEqual(await stateOf(queue), SUPERSEDED);
});

test('a version that waits for a submit under way becomes claimable within a second once that is rolled back', async (t) => {
  const queue = await returned();
  const submitting = await beginSubmit(t, queue);
  await promote();
  assert.deepEqual(await stateOf(queue), WAITING);
  const { ready_at } = await world.task(low(queue));
  assert.ok(ready_at! <= (await world.now()) + 1_000);
  await submitting.end('ROLLBACK');
  await passTime(queue);
  assert.deepEqual(await promote(), { stopped: [], promoted: true });
  assert.deepEqual(await stateOf(queue), CLAIMABLE);
});

test('a submit of the higher version waits for a promotion under way, and then finds the lower one claimable', async (t) => {
  const queue = await returned();
  const promoting = await begin(t);
  const { rows } = await promoting.client.query(statements.promote_tasks!);
  assert.ok(rows.some((row) => row.queue === queue && row.hold === 0));
  await assert.rejects(
    world.sql.query('SELECT 1 FROM version_floors WHERE queue = $1 FOR UPDATE NOWAIT', [queue]),
    /could not obtain lock/,
  );
  await promoting.end();
  await world.sql.query('SELECT 1 FROM version_floors WHERE queue = $1 FOR UPDATE NOWAIT', [queue]);
  assert.deepEqual(await stateOf(queue), CLAIMABLE);
});

test('queues of policy keep take no lock on floors', async (t) => {
  const { queue, attemptId } = await processing({ version_policy: 'keep' });
  const submitting = await beginSubmit(t, queue);
  await settle(attemptId, 'broken');
  assert.equal((await promote()).promoted, true);
  assert.deepEqual(await stateOf(queue), CLAIMABLE);
  await submitting.end();
});

test('many versions that wait for submits under way keep no other task from falling due', async (t) => {
  const [many, other] = [await addQueue(), await addQueue({ version_policy: 'keep' })];
  await world.fill(many, 5, 700);
  await world.fill(other, 5, 1);
  await world.sql.query(
    `UPDATE task_scheduler_tasks SET hold = 1, ready_at = CASE queue WHEN $1 THEN 1 ELSE 2 END WHERE queue IN ($1, $2)`,
    [many, other],
  );
  await world.sql.query(
    `INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
     SELECT queue, task_id, 1, 1 FROM task_scheduler_tasks WHERE queue = $1`,
    [many],
  );
  const submitting = await begin(t);
  await submitting.client.query('UPDATE version_floors SET task_version = 2 WHERE queue = $1', [many]);
  assert.equal((await promote()).promoted, true);
  assert.deepEqual(await stateOf(other), CLAIMABLE);
  assert.ok((await world.tasks(many)).every((task) => task.hold === 1));
  await submitting.end();
  await passTime(many);
  assert.equal((await promote()).stopped.length, 700);
});
