/** The decision table of docs/design.md, row by row, on the real statement. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type pg from 'pg';
import type { Inserter } from '../../src/inserter/inserter.ts';
import { PENDING, PROCESSING, STATUS, type Status, SUCCESS } from '../../src/task.ts';
import { createWorld, type Named, outcomeOf, submitOf, type World } from './insert-world.ts';

const DAY_MS = 86_400_000;
const VERSION_FLOOR_MS = 90 * DAY_MS;

let world: World;
let inserter: Inserter;
let wakes = 0;
const counted: string[] = [];
let tasks = 100;
const newTask = () => String(++tasks);

before(async () => {
  world = await createWorld('table');
  inserter = world.inserter({
    onStored: () => wakes++,
    count: (queue, outcome) => counted.push(`${queue} ${outcome}`),
  });
});
after(() => world.end());

const submit = (named: Named) => inserter.submit(submitOf(named));
const submitAll = (...named: Named[]) => inserter.submitBatch(named.map(submitOf));
const versionOf = async (taskId: string, version: string, queue?: string) =>
  (await world.states(taskId, queue)).find((row) => row.task_version === version);
const now = async (): Promise<number> => (await world.sql.query('SELECT docsched_now()::float8 AS now')).rows[0].now;

/** Submits a version and brings it to `status`. The attempt's id where it had one. */
async function bring(named: Named, status: Status): Promise<string> {
  await submit(named);
  if (status === 'Pending') return '';
  const attemptId = await world.claim(named);
  if (status === 'Success') await world.settle(attemptId, 'success', '{"pages":3}');
  if (status === 'Failed') await world.settle(attemptId, 'refused');
  if (status === 'Stopped') await world.cancel(named);
  assert.equal((await versionOf(named.taskId, named.taskVersion, named.queue))?.status, STATUS.indexOf(status));
  return attemptId;
}

describe('nothing known at this or a higher version', () => {
  test('an unknown task is created Pending, at its own place in line', async () => {
    const taskId = newTask();
    const began = await now();
    const outcome = await submit({ taskId, taskVersion: '3', priority: 2, payload: '{"a": 1}', maxRetries: 9 });
    const ended = await now();
    assert.equal(outcome.outcome, 'created');
    const [row, ...others] = await world.states(taskId);
    assert.ok(row && others.length === 0);
    assert.ok(row.create_at >= began && row.create_at <= ended);
    const { create_at } = row;
    assert.deepEqual(row, {
      ...row,
      task_version: '3',
      status: PENDING,
      reason: null,
      priority: 2,
      level: 2,
      hold: 0,
      place: row.id,
      retry_count: 0,
      max_retries: 9,
      attempt: 0,
      payload: '{"a": 1}',
      result: null,
      run_at: null,
      ready_at: null,
      pending_since: create_at,
      update_at: create_at,
      finished_at: null,
      attempt_id: null,
    });
    assert.deepEqual(outcome, {
      outcome: 'created',
      task: {
        queue: 'default',
        task_id: taskId,
        task_version: '3',
        status: 'Pending',
        reason: null,
        priority: 2,
        status_code: null,
        status_msg: null,
        retry_count: 0,
        max_retries: 9,
        attempt: 0,
        progress: null,
        run_at: null,
        next_retry_time: null,
        pending_since: create_at,
        deadline: null,
        started_at: null,
        finished_at: null,
        create_at,
        update_at: create_at,
      },
    });
    assert.equal((await world.floor(taskId))?.task_version, '3');
  });

  test('max_retries not named is the queue’s', async () => {
    await world.addQueue('seven_retries', { max_retries: 7 });
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', queue: 'seven_retries' });
    assert.equal((await versionOf(taskId, '1', 'seven_retries'))?.max_retries, 7);
  });

  test('the smallest and the largest ids and versions are stored as they are', async () => {
    const largest = '9223372036854775807';
    assert.equal(outcomeOf(await submit({ taskId: '0', taskVersion: '0' })), 'created');
    assert.equal(outcomeOf(await submit({ taskId: largest, taskVersion: largest })), 'created');
    assert.equal((await world.states('0'))[0]?.task_version, '0');
    assert.equal((await world.states(largest))[0]?.task_version, largest);
    assert.deepEqual(await submit({ taskId: largest, taskVersion: '9223372036854775806' }), {
      outcome: 'stale',
      latest: { task_version: largest, status: 'Pending' },
    });
  });

  test('the same task_id in two queues is two tasks', async () => {
    await world.addQueue('elsewhere');
    const taskId = newTask();
    await submit({ taskId, taskVersion: '5' });
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '2', queue: 'elsewhere' })), 'created');
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '2' })), 'stale');
  });

  test('a run_at ahead delays the task, and its pending time-out counts from there', async () => {
    const taskId = newTask();
    const runAt = Math.round(await now()) + DAY_MS;
    await submit({ taskId, taskVersion: '1', runAt });
    const row = await versionOf(taskId, '1');
    assert.deepEqual(
      [row?.hold, row?.ready_at, row?.run_at, row?.pending_since],
      [1, runAt, runAt, runAt],
      'held until run_at',
    );
  });

  test('a run_at in the past delays nothing', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', runAt: 1000 });
    const row = await versionOf(taskId, '1');
    assert.deepEqual([row?.hold, row?.ready_at, row?.run_at], [0, null, 1000]);
    assert.equal(row?.pending_since, row?.create_at);
  });
});

describe('a higher version', () => {
  for (const status of STATUS)
    test(`that is ${status} makes a lower one stale: nothing is stored`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '2' }, status);
      const before = [await world.states(taskId), await world.floor(taskId)];
      assert.deepEqual(await submit({ taskId, taskVersion: '1' }), {
        outcome: 'stale',
        latest: { task_version: '2', status },
      });
      assert.deepEqual([await world.states(taskId), await world.floor(taskId)], before);
    });

  for (const status of STATUS)
    test(`makes a lower one stale that is itself ${status}, and leaves it alone`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      await submit({ taskId, taskVersion: '2' });
      const before = await world.states(taskId);
      assert.equal(outcomeOf(await submit({ taskId, taskVersion: '1', priority: 1, payload: '"new"' })), 'stale');
      assert.deepEqual(await world.states(taskId), before);
    });

  test('that is cleaned up still makes a lower one stale, and its state is no longer known', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '2' }, 'Success');
    await world.cleanUp({ taskId, taskVersion: '2' });
    await world.ageFloor(taskId, VERSION_FLOOR_MS - 60_000);
    assert.deepEqual(await submit({ taskId, taskVersion: '1' }), {
      outcome: 'stale',
      latest: { task_version: '2', status: null },
    });
    assert.deepEqual(await world.states(taskId), []);
  });

  test('that is cleaned up is named as the latest even while a lower one is still there', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '2' }, 'Success');
    await bring({ taskId, taskVersion: '5' }, 'Failed');
    await world.cleanUp({ taskId, taskVersion: '5' });
    assert.deepEqual(await submit({ taskId, taskVersion: '1' }), {
      outcome: 'stale',
      latest: { task_version: '5', status: null },
    });
  });

  test('that is cleaned up is forgotten version_floor_ms after the last accepted submit', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '2' }, 'Success');
    await world.cleanUp({ taskId, taskVersion: '2' });
    await world.ageFloor(taskId, VERSION_FLOOR_MS + 1);
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '1' })), 'created');
    assert.equal((await world.floor(taskId))?.task_version, '1');
  });

  test('that is still there makes a lower one stale however old its floor is', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '2' }, 'Failed');
    await world.ageFloor(taskId, 10 * VERSION_FLOOR_MS);
    assert.deepEqual(await submit({ taskId, taskVersion: '1' }), {
      outcome: 'stale',
      latest: { task_version: '2', status: 'Failed' },
    });
  });

  test('is remembered anew by each accepted submit of it, and not by a stale one', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '2' }, 'Success');
    await world.ageFloor(taskId, VERSION_FLOOR_MS - 1000);
    const aged = await world.floor(taskId);
    await submit({ taskId, taskVersion: '1' });
    assert.deepEqual(await world.floor(taskId), aged, 'a stale submit');
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '2' })), 'existing');
    const renewed = (await world.floor(taskId))?.accepted_at ?? 0;
    assert.ok(Math.abs((await now()) - renewed) < 60_000, 'an accepted submit');
  });
});

describe('the same version', () => {
  for (const status of ['Processing', 'Success'] as const)
    test(`that is ${status} exists: nothing changes, and the task is returned`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1', priority: 4 }, status);
      const before = await world.states(taskId);
      const woken = wakes;
      const outcome = await submit({ taskId, taskVersion: '1', priority: 1, payload: '"other"', maxRetries: 9 });
      assert.equal(outcome.outcome, 'existing');
      assert.ok('task' in outcome);
      assert.deepEqual([outcome.task.status, outcome.task.priority], [status, 4]);
      assert.ok(!JSON.stringify(outcome).includes('pages'), 'a submit’s answer carries no result');
      assert.deepEqual(await world.states(taskId), before);
      assert.equal(wakes, woken, 'there is nothing to push');
    });

  test('that is Pending is refreshed: content is replaced, its place and its clock stay', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', priority: 4, maxRetries: 2 });
    await submit({ taskId: newTask(), taskVersion: '1' });
    await world.age(taskId, 5000);
    const old = (await versionOf(taskId, '1'))!;
    const traceparent = '00-0000000000000000000000000000000a-000000000000000a-01';
    const outcome = await submit({ taskId, taskVersion: '1', priority: 3, payload: '"new"', traceparent });
    assert.equal(outcome.outcome, 'refreshed');
    const row = (await versionOf(taskId, '1'))!;
    assert.ok(row.update_at > old.update_at);
    assert.deepEqual(row, {
      ...old,
      priority: 3,
      level: 3,
      payload: '"new"',
      traceparent,
      update_at: row.update_at,
    });
  });

  test('that is Pending takes a max_retries that is named, and only then', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', maxRetries: 2 });
    await submit({ taskId, taskVersion: '1' });
    assert.equal((await versionOf(taskId, '1'))?.max_retries, 2);
    await submit({ taskId, taskVersion: '1', maxRetries: 0 });
    assert.equal((await versionOf(taskId, '1'))?.max_retries, 0);
  });

  test('that waits for its retry keeps its retry_count, its back-off and its rank below first tries', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', priority: 2 });
    await world.settle(await world.claim({ taskId, taskVersion: '1' }), 'parser_failed');
    const old = (await versionOf(taskId, '1'))!;
    assert.deepEqual([old.status, old.hold, old.retry_count, old.level], [PENDING, 1, 1, 3]);
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '1', priority: 1 })), 'refreshed');
    const row = (await versionOf(taskId, '1'))!;
    assert.deepEqual(
      [row.hold, row.ready_at, row.next_retry_time, row.pending_since, row.retry_count, row.attempt, row.place],
      [1, old.ready_at, old.next_retry_time, old.pending_since, 1, 1, old.place],
    );
    assert.deepEqual([row.priority, row.level], [1, 2], 'demoted by one from its new priority');
  });

  test('that waits for its retry is not brought forward by a run_at in the past', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await world.settle(await world.claim({ taskId, taskVersion: '1' }), 'parser_failed');
    const old = (await versionOf(taskId, '1'))!;
    await submit({ taskId, taskVersion: '1', runAt: 1000 });
    const row = (await versionOf(taskId, '1'))!;
    assert.deepEqual([row.hold, row.ready_at, row.pending_since], [1, old.ready_at, old.pending_since]);
  });

  test('that is Pending is put off by a run_at ahead, and due again by one in the past', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await world.age(taskId, 60_000);
    const runAt = Math.round(await now()) + DAY_MS;
    await submit({ taskId, taskVersion: '1', runAt });
    const delayed = (await versionOf(taskId, '1'))!;
    assert.deepEqual([delayed.hold, delayed.ready_at, delayed.pending_since], [1, runAt, runAt]);
    await submit({ taskId, taskVersion: '1' });
    assert.equal((await versionOf(taskId, '1'))?.ready_at, runAt, 'not named: it stays');
    await submit({ taskId, taskVersion: '1', runAt: 1000 });
    const due = (await versionOf(taskId, '1'))!;
    assert.deepEqual([due.hold, due.ready_at, due.run_at], [0, null, 1000]);
    assert.ok(due.pending_since <= (await now()), 'the time-out does not count from a time that no longer holds');
  });

  test('that is Pending does not get a new time-out from a run_at that has passed', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await world.age(taskId, 60_000);
    const { pending_since } = (await versionOf(taskId, '1'))!;
    await submit({ taskId, taskVersion: '1', runAt: Math.round(await now()) - 1 });
    assert.equal((await versionOf(taskId, '1'))?.pending_since, pending_since);
  });

  for (const status of ['Failed', 'Stopped'] as const)
    test(`that is ${status} is recreated: a new row at the end of the line, nothing of the old one`, async () => {
      const taskId = newTask();
      const attemptId = await bring({ taskId, taskVersion: '1', priority: 1, maxRetries: 9, runAt: 1000 }, status);
      const old = (await versionOf(taskId, '1'))!;
      await world.age(taskId, 5000);
      const outcome = await submit({ taskId, taskVersion: '1', payload: '"new"' });
      assert.equal(outcome.outcome, 'recreated');
      const rows = await world.states(taskId);
      assert.equal(rows.length, 1);
      const row = rows[0]!;
      assert.ok(row.id > old.id && row.create_at >= old.create_at);
      assert.deepEqual(row, {
        ...row,
        status: PENDING,
        reason: null,
        priority: 5,
        level: 5,
        place: row.id,
        retry_count: 0,
        max_retries: 3,
        attempt: 0,
        payload: '"new"',
        status_code: null,
        status_msg: null,
        run_at: null,
        started_at: null,
        finished_at: null,
        pending_since: row.create_at,
      });
      await world.settle(attemptId, 'success', '"of the old attempt"');
      assert.deepEqual(await world.states(taskId), rows, 'a callback of the old attempt changes nothing');
    });

  test('recreated and pushed again, is not settled by the attempt of the old row', async () => {
    const taskId = newTask();
    const cancelled = await bring({ taskId, taskVersion: '1' }, 'Stopped');
    await submit({ taskId, taskVersion: '1' });
    const current = await world.claim({ taskId, taskVersion: '1' });
    assert.equal(await world.settle(cancelled, 'success', '"old"'), false, 'it closes its attempt and moves nothing');
    assert.equal((await versionOf(taskId, '1'))?.status, PROCESSING);
    assert.equal(await world.settle(current, 'success', '"new"'), true);
    assert.deepEqual(
      [(await versionOf(taskId, '1'))?.status, (await versionOf(taskId, '1'))?.result],
      [SUCCESS, '"new"'],
    );
  });

  for (const status of ['Pending', 'Failed'] as const)
    test(`that is ${status} gets a larger update_at by each submit, whatever the clock says`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      await world.age(taskId, -DAY_MS);
      for (let i = 0; i < 3; i++) {
        const { update_at } = (await versionOf(taskId, '1'))!;
        await submit({ taskId, taskVersion: '1' });
        assert.equal((await versionOf(taskId, '1'))?.update_at, update_at + 1);
      }
    });

  test('that is blocked or freed gets a larger update_at, whatever the clock says', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await world.age(taskId, -DAY_MS);
    const { update_at } = (await versionOf(taskId, '1'))!;
    await submit({ taskId, taskVersion: '2' });
    assert.equal((await versionOf(taskId, '1'))?.update_at, update_at + 1);
    await world.cancel({ taskId, taskVersion: '2' });
    assert.equal((await versionOf(taskId, '1'))?.update_at, update_at + 2);
  });

  test('whose row is cleaned up is created', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '1' }, 'Success');
    const { id } = (await versionOf(taskId, '1'))!;
    await world.cleanUp({ taskId, taskVersion: '1' });
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '1' })), 'created');
    assert.ok((await versionOf(taskId, '1'))!.id > id);
  });
});

describe('only lower versions', () => {
  test('Pending: the new one is created, and they wait behind it', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await submit({ taskId, taskVersion: '2' });
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '3' })), 'created');
    const rows = await world.states(taskId);
    assert.deepEqual(
      rows.map((row) => [row.task_version, row.status, row.hold]),
      [
        ['1', PENDING, 2],
        ['2', PENDING, 2],
        ['3', PENDING, 0],
      ],
    );
  });

  test('Processing: the new one is created, and both may run together', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '1' }, 'Processing');
    assert.equal(outcomeOf(await submit({ taskId, taskVersion: '2' })), 'created');
    await world.claim({ taskId, taskVersion: '2' });
    assert.deepEqual(
      (await world.states(taskId)).map((row) => row.status),
      [PROCESSING, PROCESSING],
    );
  });

  for (const status of ['Success', 'Failed', 'Stopped'] as const)
    test(`${status}: the new one is created, and they stay as they are`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      const old = await versionOf(taskId, '1');
      assert.equal(outcomeOf(await submit({ taskId, taskVersion: '2' })), 'created');
      assert.deepEqual(await versionOf(taskId, '1'), old);
      assert.equal((await versionOf(taskId, '2'))?.hold, 0);
    });

  test('the highest that waits takes the best level and place of all that wait', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', priority: 4 });
    await submit({ taskId, taskVersion: '2', priority: 2 });
    await submit({ taskId, taskVersion: '3', priority: 5 });
    const [one, two, three] = await world.states(taskId);
    assert.deepEqual([two?.level, two?.place], [2, two?.id], 'better than version 1 by its own level');
    assert.deepEqual([three?.level, three?.place, three?.priority], [2, two?.id, 5]);
    assert.deepEqual([one?.level, one?.place], [4, one?.id]);
  });

  test('a document edited all the time keeps the place of its first waiting version', async () => {
    const taskId = newTask();
    for (const taskVersion of ['1', '2', '3', '4']) await submit({ taskId, taskVersion });
    const rows = await world.states(taskId);
    assert.equal(rows[3]?.place, rows[0]?.id);
  });

  test('a refresh of the highest keeps the place it took from a lower one', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', priority: 3 });
    await submit({ taskId, taskVersion: '2' });
    await submit({ taskId, taskVersion: '2', priority: 4 });
    const [one, two] = await world.states(taskId);
    assert.deepEqual([two?.priority, two?.level, two?.place], [4, 3, one?.id]);
  });

  test('once the highest is claimed, the next is first in line again', async () => {
    const taskId = newTask();
    for (const taskVersion of ['1', '2', '3']) await submit({ taskId, taskVersion });
    await world.claim({ taskId, taskVersion: '3' });
    const rows = await world.states(taskId);
    assert.deepEqual(
      rows.map((row) => row.hold),
      [2, 0, 0],
    );
    assert.equal(rows[1]?.place, rows[0]?.id);
  });

  test('are not blocked by a higher one that is not yet due, until a refresh makes it due', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await submit({ taskId, taskVersion: '2', runAt: Math.round(await now()) + DAY_MS });
    assert.deepEqual(
      (await world.states(taskId)).map((row) => row.hold),
      [0, 1],
    );
    await submit({ taskId, taskVersion: '2', runAt: 1000 });
    const [one, two] = await world.states(taskId);
    assert.deepEqual([one?.hold, two?.hold, two?.place], [2, 0, one?.id]);
    await submit({ taskId, taskVersion: '2', runAt: Math.round(await now()) + DAY_MS });
    assert.deepEqual(
      (await world.states(taskId)).map((row) => row.hold),
      [0, 1],
      'put off again, it lets the lower one go first',
    );
  });

  test('not yet due, give no place away', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1', priority: 1, runAt: Math.round(await now()) + DAY_MS });
    await submit({ taskId, taskVersion: '2' });
    const [one, two] = await world.states(taskId);
    assert.deepEqual([one?.hold, two?.hold, two?.level, two?.place], [1, 0, 5, two?.id]);
  });
});

describe('a batch', () => {
  test('is decided as if its entries came one after another', async () => {
    const taskId = newTask();
    const other = newTask();
    const outcomes = await submitAll(
      { taskId, taskVersion: '1', payload: '"a"' },
      { taskId, taskVersion: '1', payload: '"b"' },
      { taskId: other, taskVersion: '1' },
      { taskId, taskVersion: '2', payload: '"c"' },
      { taskId, taskVersion: '1', payload: '"d"' },
      { taskId, taskVersion: '2', payload: '"e"' },
    );
    assert.deepEqual(outcomes.map(outcomeOf), ['created', 'refreshed', 'created', 'created', 'stale', 'refreshed']);
    const rows = await world.states(taskId);
    assert.deepEqual(
      rows.map((row) => [row.task_version, row.payload, row.hold]),
      [
        ['1', '"b"', 2],
        ['2', '"e"', 0],
      ],
    );
    assert.equal(rows[1]?.place, rows[0]?.id);
  });

  test('recreates a finished task once and refreshes it then', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '1' }, 'Failed');
    const outcomes = await submitAll(
      { taskId, taskVersion: '1', payload: '"a"' },
      { taskId, taskVersion: '1', payload: '"b"' },
    );
    assert.deepEqual(outcomes.map(outcomeOf), ['recreated', 'refreshed']);
    assert.deepEqual(
      (await world.states(taskId)).map((row) => row.payload),
      ['"b"'],
    );
  });

  test('forgets an expired floor once: the next lower version in it is stale again', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '9' }, 'Success');
    await world.cleanUp({ taskId, taskVersion: '9' });
    await world.ageFloor(taskId, VERSION_FLOOR_MS + 1);
    const outcomes = await submitAll({ taskId, taskVersion: '5' }, { taskId, taskVersion: '4' });
    assert.deepEqual(outcomes, [outcomes[0], { outcome: 'stale', latest: { task_version: '5', status: 'Pending' } }]);
  });

  test('keeps the order of its entries as places in line', async () => {
    const ids = [newTask(), newTask(), newTask()].toReversed();
    await submitAll(...ids.map((taskId) => ({ taskId, taskVersion: '1' })));
    const places = await Promise.all(ids.map(async (taskId) => (await world.states(taskId))[0]!.place));
    assert.deepEqual(
      places,
      places.toSorted((a, b) => a - b),
    );
  });

  test('with an entry for a queue that is gone stores the others, counts them and wakes the pushers', async () => {
    const [first, second, third] = [newTask(), newTask(), newTask()];
    counted.length = 0;
    const woken = wakes;
    const outcomes = await submitAll(
      { taskId: first, taskVersion: '1' },
      { taskId: second, taskVersion: '1', queue: 'gone' },
      { taskId: third, taskVersion: '1' },
    );
    assert.deepEqual(outcomes.map(outcomeOf), ['created', 'unknown_queue', 'created']);
    assert.equal((await world.states(first)).length + (await world.states(third)).length, 2);
    assert.equal(wakes, woken + 1);
    assert.deepEqual(counted, ['default created', 'default created'], 'an unknown name never becomes a label');
    assert.equal(await world.floor(second, 'gone'), undefined);
  });
});

describe('submits at the same time', () => {
  test('for a queue that is gone fail alone: those that share their commit are answered', async () => {
    const taskId = newTask();
    const [good, bad] = await Promise.all([
      submit({ taskId, taskVersion: '1' }),
      submit({ taskId, taskVersion: '1', queue: 'gone' }),
    ]);
    assert.deepEqual([good.outcome, bad.outcome], ['created', 'unknown_queue']);
  });

  test('of one new task create it once', async () => {
    const taskId = newTask();
    const inserters = [inserter, world.inserter(), world.inserter()];
    const outcomes = await Promise.all(
      Array.from({ length: 30 }, (_, index) => inserters[index % 3]!.submit(submitOf({ taskId, taskVersion: '1' }))),
    );
    assert.equal(outcomes.filter(({ outcome }) => outcome === 'created').length, 1);
    assert.equal(outcomes.filter(({ outcome }) => outcome === 'refreshed').length, 29);
    assert.equal((await world.states(taskId)).length, 1);
  });

  test('that are stale do not keep the version they name from moving up', async () => {
    const taskId = newTask();
    await submit({ taskId, taskVersion: '1' });
    await submit({ taskId, taskVersion: '2' });
    await inFlight({ taskId, taskVersion: '1' }, async (client) => {
      await world.claim({ taskId, taskVersion: '2' });
      await client.query('COMMIT');
    });
    assert.equal((await versionOf(taskId, '1'))?.hold, 0);
  });

  test('that share tasks in opposite orders never end in a deadlock that a caller sees', async () => {
    const ids = Array.from({ length: 20 }, newTask);
    const other = world.inserter();
    const forward = ids.map((taskId) => submitOf({ taskId, taskVersion: '1' }));
    const rounds = await Promise.all(
      Array.from({ length: 6 }, (_, round) =>
        round % 2 ? inserter.submitBatch(forward) : other.submitBatch(forward.toReversed()),
      ),
    );
    assert.equal(rounds.flat().filter(({ outcome }) => outcome === 'created').length, ids.length);
  });

  /** Runs `work` while another connection has submitted but not committed. */
  async function inFlight(named: Named, work: (client: pg.Client) => Promise<void>): Promise<void> {
    const client = await world.begin();
    try {
      await client.query('SELECT docsched_enqueue($1, $2, $3, $4)', [
        'default',
        named.taskId,
        named.taskVersion,
        'null',
      ]);
      await work(client);
    } finally {
      await client.end();
    }
  }
});
