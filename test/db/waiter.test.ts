/**
 * Waiting for and following tasks: however many clients there are, they cost one statement a look; nobody misses the end,
 * nobody is told an older state after a newer one, and nothing is kept of those who left.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Db } from '../../src/db.ts';
import type { TaskKey, TaskRow } from '../../src/task.ts';
import { createWaiter, type Waiter } from '../../src/waiter.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, queueNames, type World } from '../support/world.ts';

/** A look, and the pause before the next. */
const LOOK_MS = 250;
const TIMEOUT_MS = 60_000;
const CLIENTS = 2_000;
const never = new AbortController().signal;
const nextName = queueNames();

let world: World;
let db: Db;
/** Each statement: how many keys it asked for. */
let looks: number[] = [];
let waiter: Waiter;

before(async () => {
  world = await createWorld('waiter');
  db = {
    ...world.db,
    query: (name, params) => {
      assert.equal(name, 'find_changed');
      looks.push((params[0] as unknown[]).length);
      return world.db.query(name, params);
    },
  };
  waiter = createWaiter({ db, log: world.log });
  waiter.start();
});
after(async () => {
  await waiter.stop();
  await world.end();
});

/** `count` Pending tasks of a queue of their own. */
async function pending(count: number): Promise<TaskKey[]> {
  const queue = await world.addQueue(nextName());
  await world.fill(queue, 5, count);
  return Array.from({ length: count }, (_, i) => ({ queue, taskId: String(i + 1), taskVersion: '1' }));
}

const FINISH = `status = 3, reason = 'refused', finished_at = docsched_now(), update_at = update_at + 1`;
const change = (queue: string, assignment: string, where = 'true') =>
  world.sql.query(`UPDATE task_scheduler_tasks SET ${assignment} WHERE queue = $1 AND ${where}`, [queue]);

/** Follows from the task's present state on; `seen` are the revisions told, null for gone. */
async function following(key: TaskKey, from: Waiter = waiter) {
  const { update_at } = await world.task(key);
  const seen: (string | null)[] = [];
  const rows: (TaskRow | null)[] = [];
  const tell = (row: TaskRow | null) => {
    rows.push(row);
    seen.push(row?.update_at ?? null);
    if (row === null) end();
  };
  const end = from.follow(key, String(update_at), tell);
  return { seen, rows, end, began: update_at };
}

/** Statements of so many looks' time. */
async function looksWithin(count: number): Promise<number[]> {
  looks = [];
  await sleep(count * LOOK_MS);
  return looks;
}

test('thousands of waiting clients cost as many statements as one, and none when they have left', async () => {
  const keys = await pending(CLIENTS / 4);
  const [alone] = await pending(1);
  const leave = new AbortController();
  const first = waiter.wait(alone!, TIMEOUT_MS, leave.signal);
  const forOne = await looksWithin(8);
  // Half of them wait and half follow; four for each task.
  const waits = Array.from({ length: CLIENTS }, (_, i) =>
    waiter.wait(keys[i % keys.length]!, TIMEOUT_MS, leave.signal),
  );
  const ends = Array.from({ length: CLIENTS }, (_, i) => waiter.follow(keys[i % keys.length]!, '0', () => {}));
  const forAll = await looksWithin(8);
  // By the clock 8 each. A statement for each client, or each task, would be hundreds.
  assert.ok(forOne.length <= 20 && forAll.length <= 20, `${forOne.length} looks for one, ${forAll.length} for all`);
  await eventually(() => assert.equal(looks.at(-1), keys.length + 1, 'each task is asked for once'));

  leave.abort();
  for (const end of ends) end();
  await Promise.all([first, ...waits]);
  await looksWithin(2); // A look that was under way.
  assert.deepEqual(await looksWithin(3), []);
});

test('what is left of those who came and went is nothing', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const keys = await pending(1_000);
  const comeAndGo = async (times: number) => {
    for (let i = 0; i < times; i++) {
      const leave = new AbortController();
      const waits = keys.map((key) => waiter.wait(key, TIMEOUT_MS, leave.signal));
      const ends = keys.map((key) => waiter.follow(key, '0', () => {}));
      leave.abort();
      for (const end of ends) end();
      await Promise.all(waits);
    }
    collect();
    return process.memoryUsage().heapUsed;
  };
  const before = await comeAndGo(5);
  const grown = (await comeAndGo(100)) - before;
  // Kept, 200,000 clients would be 100 MB.
  assert.ok(grown < 5_000_000, `${grown} bytes`);
});

test('all who wait for a task are told when another process finishes it', async () => {
  const keys = await pending(300);
  const done: number[] = [];
  const waits = keys.map((key, i) => waiter.wait(key, TIMEOUT_MS, never).then(() => done.push(i)));
  await change(keys[0]!.queue, FINISH, 'task_id <= 100');
  await Promise.all(waits.slice(0, 100));
  await looksWithin(2);
  assert.equal(done.length, 100, 'the others go on waiting');
  await world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1 AND task_id <= 200', [keys[0]!.queue]);
  await Promise.all(waits.slice(100, 200));
  waiter.finished(keys);
  await Promise.all(waits);
});

test('what this instance finished is told at once, without waiting for the next look', async () => {
  const idle = createWaiter({ db, log: world.log }); // Never started: it looks only when it is told.
  const keys = await pending(50);
  const followers = await Promise.all(keys.map((key) => following(key, idle)));
  const waits = keys.map((key) => idle.wait(key, TIMEOUT_MS, never));
  await change(keys[0]!.queue, FINISH);
  looks = [];
  for (const key of keys) idle.finished([key]);
  await Promise.all(waits);
  await eventually(() => followers.every(({ seen }) => seen.length === 1));
  assert.ok(looks.length <= 2, `${looks.length} statements for fifty that finished together`);
  assert.equal(followers[7]!.rows[0]!.status, 3);
});

test('more tasks than one statement bears are asked for in several', async () => {
  const keys = await pending(5_001);
  const leave = new AbortController();
  const waits = keys.map((key) => waiter.wait(key, TIMEOUT_MS, leave.signal));
  await looksWithin(2);
  await eventually(() => looks.length >= 4);
  assert.deepEqual(looks.slice(-2).toSorted(), [1, 5_000]);
  leave.abort();
  await Promise.all(waits);
});

test('followers are told each change once, the newest always, never an older one after a newer one', async () => {
  const keys = await pending(20);
  const queue = keys[0]!.queue;
  const early = await Promise.all(keys.map((key) => following(key)));
  const late: Awaited<ReturnType<typeof following>>[] = [];
  for (let i = 0; i < 40; i++) {
    await change(queue, 'priority = 1 + update_at % 5, update_at = update_at + 1', `task_id % 4 <> ${i % 4}`);
    if (i % 4 === 0) late.push(...(await Promise.all(keys.map((key) => following(key)))));
    if (i % 8 === 0) waiter.finished(keys);
    await sleep(20);
  }
  const last = new Map((await world.tasks(queue)).map((task) => [String(task.task_id), task.update_at]));
  for (const [i, follower] of [...early, ...late].entries()) {
    const newest = last.get(keys[i % keys.length]!.taskId)!;
    if (newest === follower.began) continue;
    await eventually(() => assert.equal(follower.seen.at(-1), String(newest)));
    const numbers = follower.seen.map(Number);
    assert.ok(numbers[0]! > follower.began);
    assert.deepEqual(
      numbers,
      [...new Set(numbers)].toSorted((a, b) => a - b),
    );
  }
  await looksWithin(2);
  for (const { seen } of early) assert.ok(seen.length < 30, 'states between two looks are passed over');
  await world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1', [queue]);
  await eventually(() => [...early, ...late].every(({ seen }) => seen.at(-1) === null));
  for (const { end } of [...early, ...late]) end();
});

test('who comes to a task that others follow is told what changed before it came', async () => {
  const [key] = await pending(1);
  const first = await following(key!);
  await change(key!.queue, 'priority = 1, update_at = update_at + 1');
  await eventually(() => first.seen.length === 1);
  const rows: TaskRow[] = [];
  const end = waiter.follow(key!, String(first.began), (row) => void rows.push(row!));
  await eventually(() => rows.length === 1);
  assert.equal(rows[0]!.priority, 1);
  assert.equal(first.seen.length, 1, 'and the others are not told again');
  first.end();
  end();
});

test('who waits for a task that another still follows at its end is told', async () => {
  const [key] = await pending(1);
  const slow = await following(key!);
  await change(key!.queue, FINISH);
  await eventually(() => slow.seen.length === 1);
  await waiter.wait(key!, TIMEOUT_MS, never);
  slow.end();
});

test('a look that fails loses nothing', async () => {
  let fails = true;
  const failing: Db = {
    ...world.db,
    query: (name, params) => (fails ? Promise.reject(new Error('away')) : world.db.query(name, params)),
  };
  const own = createWaiter({ db: failing, log: world.log });
  own.start();
  const [key] = await pending(1);
  const follower = await following(key!, own);
  const waiting = own.wait(key!, TIMEOUT_MS, never);
  await change(key!.queue, 'priority = 1, update_at = update_at + 1');
  own.finished([{ ...key!, taskId: '999' }]);
  await sleep(2 * LOOK_MS);
  assert.deepEqual(follower.seen, []);
  fails = false;
  await eventually(() => follower.seen.length === 1);
  await change(key!.queue, FINISH);
  await waiting;
  await eventually(() => follower.seen.length === 2);
  await own.stop();
});

test('waiting ends when the time is over, when the client leaves, and when the instance stops', async () => {
  const [key] = await pending(1);
  const own = createWaiter({ db, log: world.log });
  own.start();
  await own.wait(key!, 50, never);
  const leave = new AbortController();
  const left = own.wait(key!, TIMEOUT_MS, leave.signal);
  leave.abort();
  await left;
  await own.wait(key!, TIMEOUT_MS, leave.signal);
  const stopped = own.wait(key!, TIMEOUT_MS, never);
  await own.stop();
  await stopped;
});
