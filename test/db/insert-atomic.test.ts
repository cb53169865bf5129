/** All or nothing, over several queues. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { Inserter } from '../../src/inserter/inserter.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Named, submitOf, type World } from './insert-world.ts';

let world: World;
let inserter: Inserter;
const tries: string[][] = [];
const counted: string[] = [];
let woken: string[] = [];
let tasks = 100;
const newTask = () => String(++tasks);

before(async () => {
  world = await createWorld('atomic');
  await world.addQueue('other');
  inserter = world.inserter({
    onTried: (outcomes) => tries.push(outcomes),
    onStored: (queues) => woken.push(...queues),
    count: (queue, outcome) => counted.push(`${queue} ${outcome}`),
  });
});
after(() => world.end());

const submit = (named: Named) => inserter.submit(submitOf(named));
const submitAtomic = (...named: Named[]) => inserter.submitAtomic(named.map(submitOf));
const isStored = async (taskId: string, queue?: string) => (await world.states(taskId, queue)).length > 0;

/** Nothing of the tasks named is stored by `work`: no row, no floor, no count, no wake-up. */
async function storesNothing(named: Named[], work: () => Promise<void>): Promise<void> {
  const look = () =>
    Promise.all(
      named.map(async ({ taskId, queue }) => [await world.states(taskId, queue), await world.floor(taskId, queue)]),
    );
  const before = await look();
  woken = [];
  await work();
  assert.deepEqual(await look(), before);
  assert.deepEqual(woken, []);
}

test('all are stored, in several queues, with an outcome for each', async () => {
  const [first, second, third] = [newTask(), newTask(), newTask()];
  await submit({ taskId: second, taskVersion: '1' });
  woken = [];
  counted.length = 0;
  const stored = await submitAtomic(
    { taskId: first, taskVersion: '1', queue: 'other' },
    { taskId: second, taskVersion: '1' },
    { taskId: third, taskVersion: '1' },
    { taskId: third, taskVersion: '2' },
  );
  assert.ok('accepted' in stored);
  assert.deepEqual(
    stored.accepted.map(({ outcome, task }) => [outcome, task.queue, task.task_id, task.task_version]),
    [
      ['created', 'other', first, '1'],
      ['refreshed', 'default', second, '1'],
      ['created', 'default', third, '1'],
      ['created', 'default', third, '2'],
    ],
  );
  assert.ok((await isStored(first, 'other')) && (await world.states(third)).length === 2);
  assert.deepEqual(woken.toSorted(), ['default', 'other']);
  assert.deepEqual(counted, ['other created', 'default refreshed', 'default created', 'default created']);
});

test('a stale entry is named, the first of several, and nothing is stored', async () => {
  const [good, stale, later] = [newTask(), newTask(), newTask()];
  for (const taskId of [stale, later]) await submit({ taskId, taskVersion: '5' });
  const batch = [
    { taskId: good, taskVersion: '1' },
    { taskId: good, taskVersion: '2' },
    { taskId: stale, taskVersion: '6' },
    { taskId: stale, taskVersion: '5' },
    { taskId: later, taskVersion: '4' },
  ];
  await storesNothing(batch, async () => {
    assert.deepEqual(await submitAtomic(...batch), {
      refused: { outcome: 'stale', latest: { task_version: '6', status: 'Pending' } },
      index: 3,
    });
  });
  assert.deepEqual(counted.at(-1), 'default stale');
});

test('an entry for a queue that is gone is named, and nothing is stored', async () => {
  const [good, gone] = [newTask(), newTask()];
  const batch = [
    { taskId: good, taskVersion: '1' },
    { taskId: gone, taskVersion: '1', queue: 'gone' },
  ];
  await storesNothing(batch, async () =>
    assert.deepEqual(await submitAtomic(...batch), { refused: { outcome: 'unknown_queue' }, index: 1 }),
  );
});

test('a recreated task keeps its old row when another entry is stale', async () => {
  const [failed, stale] = [newTask(), newTask()];
  await submit({ taskId: failed, taskVersion: '1' });
  await world.cancel({ taskId: failed, taskVersion: '1' });
  await submit({ taskId: stale, taskVersion: '2' });
  const batch = [
    { taskId: failed, taskVersion: '1' },
    { taskId: stale, taskVersion: '1' },
  ];
  await storesNothing(batch, async () => assert.ok('refused' in (await submitAtomic(...batch))));
});

test('as a whole waits for a held task, and is stored as a whole when that is free', async (t) => {
  const [free, held] = [newTask(), newTask()];
  const client = await world.begin();
  t.after(() => client.end());
  await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [held]);
  tries.length = 0;
  const stored = submitAtomic({ taskId: free, taskVersion: '1' }, { taskId: held, taskVersion: '2' });
  await eventually(() => tries.length >= 2);
  assert.deepEqual([await isStored(free), tries[0]], [false, ['created', 'locked']]);
  assert.equal((await submit({ taskId: free, taskVersion: '1' })).outcome, 'created', 'it holds nothing meanwhile');
  await client.query('COMMIT');
  assert.ok('accepted' in (await stored));
  assert.equal((await world.states(held)).length, 2);
});

test('that finds a task held for 2 s is given up on, naming it', async (t) => {
  const [free, held] = [newTask(), newTask()];
  const client = await world.begin();
  t.after(() => client.end());
  await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [held]);
  const batch = [
    { taskId: free, taskVersion: '1' },
    { taskId: held, taskVersion: '2' },
  ];
  await storesNothing(batch, async () => {
    const began = performance.now();
    assert.deepEqual(await submitAtomic(...batch), { refused: { outcome: 'locked' }, index: 1 });
    const ms = performance.now() - began;
    assert.ok(ms > 1_000 && ms < 8_000, `${ms} ms`);
  });
});

test('a stale entry before a held one is answered at once', async (t) => {
  const [stale, held] = [newTask(), newTask()];
  await submit({ taskId: stale, taskVersion: '2' });
  const client = await world.begin();
  t.after(() => client.end());
  await client.query(`SELECT docsched_enqueue('default', $1, 1, 'null')`, [held]);
  tries.length = 0;
  const answer = await submitAtomic({ taskId: stale, taskVersion: '1' }, { taskId: held, taskVersion: '2' });
  assert.deepEqual(
    [answer, tries.length],
    [{ refused: { outcome: 'stale', latest: { task_version: '2', status: 'Pending' } }, index: 0 }, 1],
  );
});

test('a thousand entries go in one commit', async () => {
  const named = Array.from({ length: 1000 }, () => ({ taskId: newTask(), taskVersion: '1' }));
  const stored = await submitAtomic(...named);
  assert.ok('accepted' in stored && stored.accepted.length === 1000);
  const { rows } = await world.sql.query(
    'SELECT count(DISTINCT xmin::text)::int AS commits FROM task_scheduler_tasks WHERE task_id BETWEEN $1 AND $2',
    [named[0]!.taskId, named.at(-1)!.taskId],
  );
  assert.equal(rows[0].commits, 1);
});
