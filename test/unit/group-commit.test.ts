/** Group commit: what shares a commit, what does not, and who hears of a failure. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AppError } from '../../src/errors.ts';
import { createGroupCommit } from '../../src/group-commit.ts';

type Entry = { key: string; n: number; size?: number };
type Run = { entries: Entry[]; commit(): void; fail(error: Error): void };

/** A group commit whose commits happen when the test says so. */
function createStage() {
  const runs: Run[] = [];
  let arrived = () => {};
  const group = createGroupCommit<Entry, string>({
    run: (entries) =>
      new Promise((resolve, reject) => {
        runs.push({ entries, commit: () => resolve(entries.map(({ n }) => `done ${n}`)), fail: reject });
        arrived();
      }),
    keyOf: ({ key }) => key,
    sizeOf: ({ size = 1 }) => size,
  });
  let next = 0;
  const entry = (key = `own ${next}`, size = 1): Entry => ({ key, n: next++, size });
  /** The run number `count`, once it is on its way. */
  const run = async (count: number): Promise<Run> => {
    while (runs.length < count)
      await new Promise<void>((resolve) => {
        arrived = resolve;
      });
    return runs[count - 1]!;
  };
  return { group, runs, run, entry };
}
const turn = () => new Promise((resolve) => setImmediate(resolve));
const numbers = ({ entries }: Run) => entries.map(({ n }) => n);

test('calls of one turn of the event loop share a commit, and each gets its own result', async () => {
  const { group, run, runs, entry } = createStage();
  const calls = [group.add(entry()), group.add(entry()), group.add(entry())];
  (await run(1)).commit();
  assert.deepEqual(await Promise.all(calls), ['done 0', 'done 1', 'done 2']);
  assert.equal(runs.length, 1);
});

test('a call settles only after the commit of its group', async () => {
  const { group, run, entry } = createStage();
  let settled = false;
  const call = group.add(entry()).then(() => {
    settled = true;
  });
  const first = await run(1);
  await turn();
  assert.equal(settled, false);
  assert.equal(group.pending(), 1);
  first.commit();
  await call;
  assert.equal(group.pending(), 0);
});

test('two groups at most are on their way; what comes meanwhile grows the next one', async () => {
  const { group, run, runs, entry } = createStage();
  const calls = [group.add(entry())];
  await run(1);
  calls.push(group.add(entry()));
  const second = await run(2);
  for (let n = 0; n < 5; n++) {
    calls.push(group.add(entry()));
    await turn();
  }
  assert.equal(runs.length, 2);
  second.commit();
  const third = await run(3);
  assert.deepEqual(numbers(third), [2, 3, 4, 5, 6]);
  third.commit();
  runs[0]!.commit();
  await Promise.all(calls);
});

test('entries with the same key are never on their way at once, and keep their order', async () => {
  const { group, run, runs, entry } = createStage();
  const calls = [entry('a'), entry('a'), entry('b'), entry('a'), entry('b'), entry('c')].map(group.add);
  const first = await run(1);
  assert.deepEqual(numbers(first), [0, 2, 5]);
  await turn();
  assert.equal(runs.length, 1, 'all that wait have keys that are on their way');
  calls.push(group.add(entry('d')));
  assert.deepEqual(numbers(await run(2)), [6], 'which holds up nobody else');
  first.commit();
  const third = await run(3);
  assert.deepEqual(numbers(third), [1, 4]);
  third.commit();
  assert.deepEqual(numbers(await run(4)), [3]);
  for (const one of runs) one.commit();
  assert.deepEqual(
    await Promise.all(calls),
    [0, 1, 2, 3, 4, 5, 6].map((n) => `done ${n}`),
  );
});

test('a key that failed is free again', async () => {
  const { group, run, entry } = createStage();
  const [failed, kept] = [group.add(entry('a')), group.add(entry('a'))];
  (await run(1)).fail(new Error('gone'));
  await assert.rejects(failed, /gone/);
  (await run(2)).commit();
  assert.equal(await kept, 'done 1');
});

test('an entry that did not fit is not overtaken by a later one with its key', async () => {
  const { group, run, runs, entry } = createStage();
  const half = 9 * 1024 * 1024;
  const calls = [entry('a', half), entry('b', half), entry('b', 1)].map(group.add);
  const [first, second] = [await run(1), await run(2)];
  assert.deepEqual([numbers(first), numbers(second)], [[0], [1]]);
  second.commit();
  assert.deepEqual(numbers(await run(3)), [2]);
  for (const one of runs) one.commit();
  await Promise.all(calls);
});

test('a group holds 256 entries and 16 MiB at most; a larger entry goes alone', async () => {
  const { group, run, runs, entry } = createStage();
  const calls = Array.from({ length: 300 }, () => group.add(entry()));
  assert.equal((await run(1)).entries.length, 256);
  assert.equal((await run(2)).entries.length, 44);
  for (const one of runs) one.commit();
  await Promise.all(calls);
  const large = [entry('x', 20 * 1024 * 1024), entry('y')].map(group.add);
  assert.deepEqual(numbers(await run(3)), [300]);
  assert.deepEqual(numbers(await run(4)), [301]);
  for (const one of runs) one.commit();
  await Promise.all(large);
});

test('a commit that fails rejects its own group and no other', async () => {
  const { group, run, entry } = createStage();
  const lost = [group.add(entry()), group.add(entry())];
  const first = await run(1);
  const kept = group.add(entry());
  const second = await run(2);
  first.fail(new Error('gone'));
  second.commit();
  for (const call of lost) await assert.rejects(call, /gone/);
  assert.equal(await kept, 'done 2');
});

test('too much waiting is refused as overloaded, and admitted again once there is room', async () => {
  const { group, run, runs, entry } = createStage();
  const ended: Promise<unknown>[] = [];
  const call = (one: Entry) => ended.push(group.add(one));
  call(entry());
  await run(1);
  call(entry());
  await run(2);
  for (let n = 0; n < 5000; n++) call(entry());
  const overloaded = (error: unknown) =>
    error instanceof AppError && error.code === 'overloaded' && error.extras.retryAfterS === 1;
  await assert.rejects(group.add(entry()), overloaded);
  runs[0]!.commit();
  await run(3);
  call(entry());
  await assert.rejects(group.add(entry('big', 129 * 1024 * 1024)), overloaded, 'and so by bytes');
  for (let n = 1; group.pending() > 0; n++) {
    (await run(n)).commit();
    await turn();
  }
  await Promise.all(ended);
});

test('idle resolves when nothing is waiting or on its way, failed or not', async () => {
  const { group, run, entry } = createStage();
  await group.idle();
  const failed = group.add(entry());
  let idle = false;
  const waited = group.idle().then(() => {
    idle = true;
  });
  const first = await run(1);
  await turn();
  assert.equal(idle, false);
  first.fail(new Error('gone'));
  await assert.rejects(failed);
  await waited;
});
