/**
 * A task that another transaction holds: its submits wait apart, for 2 s at most, and nobody else waits for it. That
 * others were done before is seen from a held one that is stored after them: it was not given up on by then.
 */
import assert from 'node:assert/strict';
import { after, before, describe, type TestContext, test } from 'node:test';
import type pg from 'pg';
import type { Inserter } from '../../src/inserter/inserter.ts';
import { createWorld, type Named, outcomeOf, submitOf, type World } from '../db/insert-world.ts';
import { eventually } from '../support/eventually.ts';

let world: World;
let inserter: Inserter;
/** Outcomes of each statement the inserter ran. */
const tries: string[][] = [];
const counted: string[] = [];
let tasks = 100;
const newTask = () => String(++tasks);

before(async () => {
  world = await createWorld('locked');
  inserter = world.inserter({
    onTried: (outcomes) => tries.push(outcomes),
    count: (queue, outcome) => counted.push(`${queue} ${outcome}`),
  });
});
after(() => world.end());

const submit = (named: Named) => inserter.submit(submitOf(named));
const submitAll = (...named: Named[]) => inserter.submitBatch(named.map(submitOf));
const versionsOf = async (taskId: string) => (await world.states(taskId)).map((row) => row.task_version);

/** Ways to hold a task: a first submit that is not committed, or a known task's floor, or its row. */
const HOLDS = {
  'submitted for the first time': (client: pg.Client, taskId: string) =>
    client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [taskId]),
  'locked by its floor': async (client: pg.Client, taskId: string) => {
    await submit({ taskId, taskVersion: '1' });
    await client.query('SELECT 1 FROM version_floors WHERE task_id = $1 FOR UPDATE', [taskId]);
  },
  'submitted again': async (client: pg.Client, taskId: string) => {
    await submit({ taskId, taskVersion: '1' });
    await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [taskId]);
  },
};

/** A transaction that is rolled back at the end of the test, unless it ended before. */
async function begin(t: TestContext): Promise<pg.Client> {
  const client = await world.begin();
  t.after(() => client.end());
  return client;
}

/** Resolves once a statement that found a task locked has come back after this call. */
async function triedInVain(): Promise<void> {
  const before = tries.length;
  await eventually(() => tries.slice(before).some((outcomes) => outcomes.includes('locked')));
}

for (const [how, hold] of Object.entries(HOLDS))
  describe(`a task ${how} by another transaction`, () => {
    test('holds up its own submits and no others', async (t) => {
      const taskId = newTask();
      const client = await begin(t);
      await hold(client, taskId);
      const held = submit({ taskId, taskVersion: '2' });
      const others = await Promise.all(
        Array.from({ length: 50 }, () => submit({ taskId: newTask(), taskVersion: '1' })),
      );
      assert.deepEqual(new Set(others.map(outcomeOf)), new Set(['created']));
      await triedInVain();
      await client.query('COMMIT');
      assert.equal(outcomeOf(await held), 'created');
      assert.deepEqual(await versionsOf(taskId), ['1', '2']);
    });

    test('is given up on after 2 s, and nothing is stored', async (t) => {
      const taskId = newTask();
      const client = await begin(t);
      await hold(client, taskId);
      const before = [await world.states(taskId), await world.floor(taskId)];
      counted.length = 0;
      const began = performance.now();
      assert.deepEqual(await submit({ taskId, taskVersion: '2' }), { outcome: 'locked' });
      const ms = performance.now() - began;
      assert.ok(ms > 1_700 && ms < 8_000, `${ms} ms`);
      assert.deepEqual(counted, ['default locked']);
      assert.deepEqual([await world.states(taskId), await world.floor(taskId)], before);
      await client.query('ROLLBACK');
      assert.match(outcomeOf(await submit({ taskId, taskVersion: '2' })), /created/, 'it is free again');
    });
  });

describe('submits of a held task', () => {
  test('are stale once a higher version is committed, and are not held against one that was rolled back', async (t) => {
    for (const [end, wanted] of [
      ['COMMIT', 'stale'],
      ['ROLLBACK', 'created'],
    ]) {
      const taskId = newTask();
      const client = await begin(t);
      await client.query(`SELECT docsched_enqueue('default', $1, 2, 'null')`, [taskId]);
      const lower = submit({ taskId, taskVersion: '1' });
      await triedInVain();
      await client.query(end!);
      assert.equal(outcomeOf(await lower), wanted);
    }
  });

  test('wait for a claim of the same version on its way, and then find it Processing', async (t) => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    const client = await begin(t);
    await client.query(
      `UPDATE task_scheduler_tasks SET status = 1, attempt_id = 'claimed_just_now_______' WHERE task_id = $1`,
      [taskId],
    );
    const same = submit({ taskId, taskVersion: '1', payload: '"late"' });
    await triedInVain();
    await client.query('COMMIT');
    assert.equal(outcomeOf(await same), 'existing');
    assert.equal((await world.states(taskId))[0]?.payload, '"version 1"');
  });

  test('do not wait for whoever holds a row that they would not change', async (t) => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await world.claim({ taskId, taskVersion: '1' });
    const client = await begin(t);
    await client.query('SELECT 1 FROM task_scheduler_tasks WHERE task_id = $1 FOR UPDATE', [taskId]);
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '1' })), 'existing', 'it was not given up on');
  });

  test('keep their order, and those that come later are not tried before them', async (t) => {
    const taskId = newTask();
    const client = await begin(t);
    await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [taskId]);
    const held = ['2', '3', '4'].map((taskVersion) => submit({ taskId, taskVersion }));
    await triedInVain();
    held.push(submit({ taskId, taskVersion: '5' }));
    await client.query('COMMIT');
    assert.deepEqual((await Promise.all(held)).map(outcomeOf), Array(4).fill('created'));
    assert.deepEqual(await versionsOf(taskId), ['1', '2', '3', '4', '5']);
  });

  test('are not tried with others any more while it is known to be held', async (t) => {
    const taskId = newTask();
    const client = await begin(t);
    await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [taskId]);
    const held = [submit({ taskId, taskVersion: '2' })];
    await triedInVain();
    tries.length = 0;
    for (let i = 0; i < 20; i++) {
      held.push(submit({ taskId, taskVersion: '2' }));
      await Promise.all([
        submit({ taskId: newTask(), taskVersion: '1' }),
        submit({ taskId: newTask(), taskVersion: '1' }),
      ]);
    }
    const mixed = tries.filter((outcomes) => new Set(outcomes).size > 1);
    assert.deepEqual(mixed, []);
    await client.query('COMMIT');
    assert.deepEqual(new Set((await Promise.all(held)).map(outcomeOf)), new Set(['created', 'refreshed']));
  });

  test('hold no connection while they wait', async (t) => {
    const client = await begin(t);
    const held = Array.from({ length: 30 }, newTask);
    for (const taskId of held) await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [taskId]);
    const waiting = held.map((taskId) => submit({ taskId, taskVersion: '2' }));
    await triedInVain();
    for (let i = 0; i < 20; i++) {
      const { rows } = await world.sql.query(
        `SELECT count(*)::int AS n FROM pg_stat_activity
         WHERE datname = current_database() AND state <> 'idle' AND query LIKE '%docsched_submit%'
           AND now() - query_start > interval '300 ms' AND pid <> pg_backend_pid()`,
      );
      assert.equal(rows[0].n, 0, 'none is in a statement for long');
    }
    await client.query('COMMIT');
    assert.deepEqual(new Set((await Promise.all(waiting)).map(outcomeOf)), new Set(['created']));
  });

  test('are stored before the inserter is idle', async (t) => {
    const taskId = newTask();
    const client = await begin(t);
    await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [taskId]);
    const held = submit({ taskId, taskVersion: '2' });
    await triedInVain();
    const idle = inserter.idle();
    await client.query('COMMIT');
    await idle;
    assert.deepEqual(await versionsOf(taskId), ['1', '2']);
    assert.equal(outcomeOf(await held), 'created');
  });
});

describe('a batch with a held task', () => {
  test('stores the others at once and its own entries, in order, when it is free', async (t) => {
    const [held, other] = [newTask(), newTask()];
    const client = await begin(t);
    await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [held]);
    const batch = submitAll(
      { taskId: held, taskVersion: '2' },
      { taskId: other, taskVersion: '1' },
      { taskId: held, taskVersion: '3' },
      { taskId: held, taskVersion: '2' },
    );
    await triedInVain();
    assert.deepEqual(await versionsOf(other), ['1']);
    await client.query('COMMIT');
    assert.deepEqual((await batch).map(outcomeOf), ['created', 'created', 'created', 'stale']);
  });

  test('is answered after 2 s with an outcome for each', async (t) => {
    const [held, other] = [newTask(), newTask()];
    const client = await begin(t);
    await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [held]);
    const outcomes = await submitAll(
      { taskId: held, taskVersion: '2' },
      { taskId: other, taskVersion: '1' },
      { taskId: held, taskVersion: '3' },
    );
    assert.deepEqual(outcomes.map(outcomeOf), ['locked', 'created', 'locked']);
  });

  test('whose row is held in the middle of it keeps what came before', async (t) => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '2' });
    await world.cancel({ taskId, taskVersion: '2' });
    await submit({ taskId, taskVersion: '1' });
    const client = await begin(t);
    await client.query('SELECT 1 FROM task_scheduler_tasks WHERE task_id = $1 AND task_version = 2 FOR UPDATE', [
      taskId,
    ]);
    const batch = submitAll(
      { taskId, taskVersion: '2' },
      { taskId, taskVersion: '3' },
      { taskId, taskVersion: '2', payload: '"late"' },
    );
    await triedInVain();
    await client.query('COMMIT');
    assert.deepEqual((await batch).map(outcomeOf), ['recreated', 'created', 'stale']);
  });
});

test('many new tasks held by one transaction hold up neither those in their group nor others', async (t) => {
  const client = await begin(t);
  const held = Array.from({ length: 200 }, newTask);
  await client.query(`SELECT docsched_enqueue('default', h, 1, 'null') FROM unnest($1::bigint[]) h`, [held]);
  const among = Array.from({ length: 20 }, newTask);
  const submitThem = (ids: string[], taskVersion: string) => ids.map((taskId) => submit({ taskId, taskVersion }));
  const waiting = submitThem(held, '2');
  assert.deepEqual(new Set((await Promise.all(submitThem(among, '1'))).map(outcomeOf)), new Set(['created']));
  const others = submitThem(Array.from({ length: 20 }, newTask), '1');
  assert.deepEqual(new Set((await Promise.all(others)).map(outcomeOf)), new Set(['created']));
  await client.query('COMMIT');
  assert.deepEqual(new Set((await Promise.all(waiting)).map(outcomeOf)), new Set(['created']));
});
