/** Policy `stop`: an accepted version stops the lower ones that wait. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { Inserter } from '../../src/inserter/inserter.ts';
import { PENDING, PROCESSING, STATUS, STOPPED } from '../../src/task.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Named, outcomeOf, submitOf, type TaskState, type World } from './insert-world.ts';

const HOUR_MS = 3_600_000;

let world: World;
let inserter: Inserter;
const tries: string[][] = [];
let tasks = 100;
const newTask = () => String(++tasks);

before(async () => {
  world = await createWorld('stop_lower');
  await world.addQueue('stop', { version_policy: 'stop' });
  inserter = world.inserter({ onTried: (outcomes) => tries.push(outcomes) });
});
after(() => world.end());

const submit = (named: Named) => inserter.submit(submitOf({ queue: 'stop', ...named }));
const states = (taskId: string, queue = 'stop') => world.states(taskId, queue);
const showStates = (rows: TaskState[]) =>
  rows.map((row) => [row.task_version, STATUS[row.status], row.reason].filter((word) => word !== null).join(' '));
const key = (taskId: string, taskVersion: string) => ({ queue: 'stop', taskId, taskVersion });

test('the lower ones are Stopped as superseded, be they claimable, delayed or blocked', async () => {
  const taskId = newTask();
  await world.sql.query(`UPDATE queues SET own = '{"version_policy": "keep"}' WHERE queue = 'stop'`);
  await submit({ taskId, taskVersion: '1' });
  await submit({ taskId, taskVersion: '2' });
  await submit({ taskId, taskVersion: '3', runAt: Date.now() + HOUR_MS });
  await world.sql.query(`UPDATE queues SET own = '{"version_policy": "stop"}' WHERE queue = 'stop'`);
  const before = await states(taskId);
  assert.deepEqual(
    before.map((row) => row.hold),
    [2, 0, 1],
  );
  assert.equal(outcomeOf(await submit({ taskId, taskVersion: '4' })), 'created');
  const after = await states(taskId);
  assert.deepEqual(showStates(after), [
    '1 Stopped superseded',
    '2 Stopped superseded',
    '3 Stopped superseded',
    '4 Pending',
  ]);
  for (const [index, row] of after.slice(0, 3).entries()) {
    assert.ok(row.finished_at !== null && row.update_at > before[index]!.update_at);
    const { hold, ready_at, next_retry_time, status_code, status_msg, has_blocked } = row;
    assert.deepEqual(
      [hold, ready_at, next_retry_time, status_code, status_msg, has_blocked],
      [0, null, null, null, 'version 4 was accepted', false],
    );
  }
  assert.equal(after[3]?.hold, 0);
});

test('the new version takes the place of the one it stops, so a document edited all the time is not pushed back', async () => {
  const taskId = newTask();
  await submit({ taskId, taskVersion: '1', priority: 2 });
  for (const taskVersion of ['2', '3']) await submit({ taskId, taskVersion });
  const rows = await states(taskId);
  assert.deepEqual([rows[2]?.level, rows[2]?.place, rows[2]?.priority], [2, rows[0]?.id, 5]);
});

test('lower ones that are Processing or done stay as they are', async () => {
  for (const verdict of ['none', 'success', 'refused'] as const) {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    const attemptId = await world.claim(key(taskId, '1'));
    if (verdict !== 'none') await world.settle(attemptId, verdict);
    const [before] = await states(taskId);
    await submit({ taskId, taskVersion: '2' });
    assert.deepEqual((await states(taskId))[0], before);
  }
});

test('a refreshed and a recreated version stop lower ones too; what is not accepted or exists stops none', async () => {
  const taskId = newTask();
  const lower = async (version: string) =>
    world.sql.query(
      `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, place, status, level, priority, payload,
         max_retries, pending_since, create_at, update_at)
       VALUES ('stop', $1, $2, 0, 0, 5, 5, '{}', 3, 1, 1, 1)`,
      [taskId, version],
    );
  await submit({ taskId, taskVersion: '9' });
  await lower('1');
  assert.equal(outcomeOf(await submit({ taskId, taskVersion: '8' })), 'stale');
  assert.equal((await states(taskId))[0]?.status, PENDING);
  assert.equal(outcomeOf(await submit({ taskId, taskVersion: '9' })), 'refreshed');
  assert.equal((await states(taskId))[0]?.reason, 'superseded');
  await world.cancel(key(taskId, '9'));
  await lower('2');
  assert.equal(outcomeOf(await submit({ taskId, taskVersion: '9' })), 'recreated');
  assert.equal((await states(taskId))[1]?.reason, 'superseded');
  await world.claim(key(taskId, '9'));
  await lower('3');
  assert.equal(outcomeOf(await submit({ taskId, taskVersion: '9' })), 'existing');
  assert.equal((await states(taskId))[2]?.status, PENDING);
});

test('in a batch each version stops the ones before it', async () => {
  const taskId = newTask();
  const named = ['1', '2', '3'].map((taskVersion) => submitOf({ queue: 'stop', taskId, taskVersion }));
  await inserter.submitBatch([
    ...named,
    submitOf({ taskId, taskVersion: '1' }),
    submitOf({ taskId, taskVersion: '2' }),
  ]);
  assert.deepEqual(showStates(await states(taskId)), ['1 Stopped superseded', '2 Stopped superseded', '3 Pending']);
  assert.deepEqual(showStates(await states(taskId, 'default')), ['1 Pending', '2 Pending'], 'elsewhere they wait');
});

for (const [end, wanted] of [
  ['COMMIT', PROCESSING],
  ['ROLLBACK', STOPPED],
] as const)
  test(`a lower one that is being claimed is waited for: ${end}`, async (t) => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    const client = await world.begin();
    t.after(() => client.end());
    await client.query(
      `UPDATE task_scheduler_tasks SET status = 1, attempt_id = 'claimed_just_now_______' WHERE queue = 'stop' AND task_id = $1`,
      [taskId],
    );
    tries.length = 0;
    const higher = submit({ taskId, taskVersion: '2' });
    await eventually(() => tries.some((outcomes) => outcomes.includes('locked')));
    assert.equal((await states(taskId)).length, 1);
    await client.query(end);
    assert.equal(outcomeOf(await higher), 'created');
    assert.equal((await states(taskId))[0]?.status, wanted);
  });

test('thousands of lower ones from a time with policy keep are stopped by and by; none is claimable meanwhile', async () => {
  const taskId = newTask();
  const LOWER = 2_500;
  await world.sql.query(
    `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, place, status, hold, has_blocked, level, priority,
       payload, max_retries, pending_since, create_at, update_at)
     SELECT 'stop', $1, v, v, 0, CASE WHEN v = $2 THEN 0 ELSE 2 END, v = $2, 5, 5, '{}', 3, 1, 1, 1
     FROM generate_series(1, $2::int) v`,
    [taskId, LOWER],
  );
  await world.sql.query(`INSERT INTO version_floors VALUES ('stop', $1, $2, docsched_now())`, [taskId, LOWER]);
  const count = async (hold: number) =>
    (await states(taskId)).filter((row) => row.status === PENDING && row.hold === hold).length;
  await submit({ taskId, taskVersion: '5000' });
  assert.deepEqual([await count(0), await count(2)], [1, LOWER - 1_001]);
  await world.claim(key(taskId, '5000'));
  assert.equal(await count(0), 0);
  for (let left = LOWER; left > 0; ) {
    const stranded = await world.db.query<{ queue: string; task_id: string; task_version: string }>(
      'find_stranded_versions',
      [],
    );
    left = stranded.length;
    await world.db.query('order_versions', [
      stranded.map((row) => row.queue),
      stranded.map((row) => row.task_id),
      stranded.map((row) => row.task_version),
    ]);
    assert.equal(await count(0), 0);
  }
  const rows = await states(taskId);
  assert.ok(rows.slice(0, -1).every((row) => row.reason === 'superseded'));
});
