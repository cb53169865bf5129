/** The lane of held tasks: how it tries, in which order it answers, what it refuses. The database is the test's own. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { Submit, SubmitOutcome } from '../../src/inserter/inserter.ts';
import { createLane } from '../../src/inserter/lane.ts';
import { eventually } from '../support/eventually.ts';

const CREATED: SubmitOutcome = { outcome: 'created', task: {} };
const LOCKED: SubmitOutcome = { outcome: 'locked' };

/** A lane over tasks of which some are held; `tried` has the versions of each statement, `triedAt` its time. */
function createStage() {
  const held = new Set<string>();
  const tried: string[][] = [];
  const triedAt: number[] = [];
  let failing = false;
  const lane = createLane({
    run: async (submits) => {
      triedAt.push(performance.now());
      tried.push(submits.map(({ taskId, taskVersion }) => `${taskId}/${taskVersion}`));
      if (failing) throw new Error('gone');
      return submits.map(({ taskId }) => (held.has(taskId) ? LOCKED : CREATED));
    },
    keyOf: ({ taskId }) => taskId,
  });
  const submitOf = (taskId: string, taskVersion = '1', payload = 'null') =>
    ({ queue: 'default', taskId, taskVersion, payload }) as Submit;
  const wait = (submit: Submit, arrivedAtMs = performance.now()) => lane.wait(submit, arrivedAtMs);
  /** Is not given up on during a test. */
  const waitLong = (submit: Submit) => wait(submit, performance.now() + 60_000);
  return { lane, held, tried, triedAt, submitOf, wait, waitLong, fail: (now: boolean) => (failing = now) };
}

test('what is free at the first try is answered, in the order of arrival', async () => {
  const { lane, tried, submitOf, wait } = createStage();
  const answered: string[] = [];
  const waiting = ['1', '2', '3'].map((version) => wait(submitOf('a', version)).then(() => answered.push(version)));
  assert.ok(lane.holds(submitOf('a', '4')) && !lane.holds(submitOf('b')));
  await Promise.all(waiting);
  assert.deepEqual([answered, tried], [['1', '2', '3'], [['a/1', 'a/2', 'a/3']]]);
  assert.ok(!lane.holds(submitOf('a')));
});

test('a held task is tried less and less often, at least ten times a second, and others are not held up by it', async () => {
  const { held, tried, triedAt, submitOf, wait, waitLong } = createStage();
  held.add('a');
  const began = performance.now();
  const slow = waitLong(submitOf('a'));
  assert.deepEqual(await wait(submitOf('b')), CREATED);
  await eventually(() => tried.length >= 12);
  held.clear();
  assert.deepEqual(await slow, CREATED);
  const ms = performance.now() - began;
  assert.ok(tried.length <= 6 + ms / 100, `${tried.length} tries in ${ms} ms`);
  // The least: the others may have waited for the machine.
  const pauses = triedAt.slice(1).map((at, i) => at - triedAt[i]!);
  assert.ok(Math.min(...pauses.slice(7)) < 150, `${pauses}`);
});

test('what has waited for 1.9 s is given up on; what came later waits on', async () => {
  const { held, submitOf, wait, waitLong } = createStage();
  held.add('a');
  const now = performance.now();
  const [old, young] = [wait(submitOf('a', '1'), now - 1_800), waitLong(submitOf('a', '2'))];
  assert.deepEqual(await old, LOCKED);
  const ms = performance.now() - now;
  assert.ok(ms >= 100 && ms < 1_500, `${ms} ms`);
  held.clear();
  assert.deepEqual(await young, CREATED);
});

test('of one task sixteen are tried at a time, of all 256, and each has its turn', async () => {
  const { held, tried, submitOf, waitLong } = createStage();
  const ids = Array.from({ length: 300 }, (_, n) => `t${n}`);
  for (const id of ids) held.add(id);
  const waiting = ids.map((id) => waitLong(submitOf(id)));
  const many = Array.from({ length: 40 }, (_, n) => waitLong(submitOf('many', String(n))));
  await Promise.all(many);
  assert.deepEqual(
    tried.map((versions) => versions.filter((name) => name.startsWith('many/')).length).filter((n) => n > 0),
    [16, 16, 8],
  );
  await eventually(() => new Set(tried.flat().filter((name) => name.startsWith('t'))).size === 300);
  assert.ok(tried.every((versions) => versions.length <= 256));
  held.clear();
  assert.deepEqual(new Set(await Promise.all(waiting)), new Set([CREATED]));
});

test('beyond 5000 waiting, or 128 MiB, a submit is refused at once', async () => {
  const { held, submitOf, waitLong } = createStage();
  held.add('a').add('b');
  const large = 'x'.repeat(100 * 1024 * 1024);
  const atOnce = (submit: Submit) => Promise.race([waitLong(submit), turn('not at once')]);
  const waiting = [waitLong(submitOf('b', '1', large))];
  assert.deepEqual(await atOnce(submitOf('b', '2', large)), LOCKED);
  for (let n = 1; n < 5_000; n++) waiting.push(waitLong(submitOf('a', String(n))));
  assert.deepEqual(await atOnce(submitOf('c')), LOCKED);
  held.clear();
  assert.deepEqual(new Set(await Promise.all(waiting)), new Set([CREATED]));
  assert.deepEqual(await waitLong(submitOf('c')), CREATED);
});

test('a statement that fails is the answer of those it tried, and the lane goes on', async () => {
  const { lane, submitOf, wait, fail } = createStage();
  fail(true);
  const outcome = await wait(submitOf('a'));
  assert.ok(outcome.outcome === 'failed' && String(outcome.error).includes('gone'));
  fail(false);
  assert.deepEqual(await wait(submitOf('a')), CREATED);
  await lane.idle();
});
