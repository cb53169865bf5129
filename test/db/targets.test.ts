/** Several targets of a queue: which of them a claim is for, and when one is left alone, tried, and taken back. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { ClaimedTask } from '../../src/pusher/claim.ts';
import { createPromote } from '../../src/watcher/promote.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, queueNames, type World } from '../support/world.ts';

const MINUTE_MS = 60_000;
const nextName = queueNames();

let world: World;
let one: Instance;

before(async () => {
  world = await createWorld('targets');
  one = await world.instance();
});
after(() => world.end());

type TargetRow = {
  failures: number;
  not_before: number;
  failed_at: number;
  ramp_from: number;
  ramp_claimed: number;
  error: string | null;
};

/** A queue with these targets, which no other test uses, and tasks to claim. */
async function addQueue(count: number, columns: Record<string, unknown> = {}) {
  const name = nextName();
  const urls = Array.from({ length: count }, (_, i) => `http://${'abcdef'[i]}.${name}.test/parse`);
  await world.addQueue(name, { concurrency_limit: 100_000, targets: urls.map((url) => ({ url })), ...columns });
  await world.fill(name, 5, 400);
  return { queue: name, urls, a: urls[0]!, b: urls[1]! };
}
const claim = async (queue: string, room: number, from = one) => from.claim(await world.queue(queue), room);
const targetsOf = async (queue: string, from = one) => from.laneOf(await world.queue(queue)).targets;
const manyInstances = (count: number) => Promise.all(Array.from({ length: count }, () => world.instance()));
/** How many of the tasks are for each of the URLs. */
const shares = (urls: readonly string[], tasks: readonly ClaimedTask[]): number[] =>
  urls.map((url) => tasks.filter((task) => task.target.url === url).length);
const settle = (tasks: readonly ClaimedTask[], verdict: 'success' | 'broken' = 'success', from = one) =>
  Promise.all(tasks.map((task) => from.settler.settle({ attemptId: task.attempt_id, verdict })));
const rowOf = async (url: string): Promise<TargetRow> =>
  (await world.rows<TargetRow>('SELECT * FROM targets WHERE url = $1', [url]))[0]!;
const setTarget = (url: string, { failures = 0, notBeforeInMs = 0, rampForMs = MINUTE_MS, rampClaimed = 0 }) =>
  world.sql.query(
    `INSERT INTO targets (url, failures, not_before, failed_at, ramp_from, ramp_claimed)
     VALUES ($1, $2, docsched_now() + $3, docsched_now() - 60000, docsched_now() - $4, $5)
     ON CONFLICT (url) DO UPDATE SET failures = excluded.failures, not_before = excluded.not_before,
       ramp_from = excluded.ramp_from, ramp_claimed = excluded.ramp_claimed`,
    [url, failures, notBeforeInMs, rampForMs, rampClaimed],
  );
/** How many pushes a target taken back takes in all until `at`, before the ten seconds are over. */
const ramped = ({ ramp_from }: TargetRow, at: number): number => Math.round(4 * 2 ** ((at - ramp_from) / 1000));
/** For how many seconds it is left alone, from when it failed or was busy. */
const leftAloneS = async (url: string): Promise<number> => {
  const { not_before, failed_at } = await rowOf(url);
  return Math.round((not_before - failed_at) / 1000);
};
/** A minute more for a target that is left alone: what follows may take longer than what the test is about. */
const prolong = (url: string) =>
  world.sql.query('UPDATE targets SET not_before = not_before + 60000 WHERE url = $1', [url]);
/** The end of what is left of a wait, without the wait. */
const pass = (url: string) => world.sql.query('UPDATE targets SET not_before = docsched_now() WHERE url = $1', [url]);

test('tasks go to the target with the fewest open attempts, whoever pushed and ended them', async () => {
  const { queue, urls, a } = await addQueue(2);
  const first = (await claim(queue, 10)).tasks;
  assert.deepEqual(shares(urls, first), [5, 5]);
  await settle(first.filter((task) => task.target.url === a));
  const other = await world.instance();
  const second = (await claim(queue, 3, other)).tasks;
  assert.deepEqual(shares(urls, second), [3, 0]);
  assert.deepEqual(shares(urls, (await claim(queue, 8, other)).tasks), [5, 3]);
  assert.deepEqual(
    (await Promise.all(second.map((task) => world.attempt(task.attempt_id)))).map((attempt) => attempt.target),
    [a, a, a],
  );
});

test('an instance knows at once of the attempts that end in it', async () => {
  const { queue, urls, b } = await addQueue(2);
  const first = (await claim(queue, 10)).tasks;
  const targets = await targetsOf(queue);
  const ended = first.filter((task) => task.target.url === b).slice(0, 4);
  await settle(ended); // Should a second pass meanwhile, a look finds the same.
  targets.closed(ended.map((task) => ({ target: task.target.url })));
  assert.deepEqual(shares(urls, (await claim(queue, 4)).tasks), [0, 4]);
});

test('with targets that have as many open attempts it is not always the same one', async () => {
  const { queue, urls } = await addQueue(2);
  const seen = new Set<string>();
  await eventually(async () => {
    const { tasks } = await claim(queue, 1);
    for (const task of tasks) seen.add(task.target.url);
    (await targetsOf(queue)).closed(tasks.map((task) => ({ target: task.target.url })));
    await settle(tasks);
    return seen.size === urls.length;
  });
});

test('a target is what the queue says of it: mode, batch and time-out', async () => {
  const { queue, a } = await addQueue(0, { targets: [{ url: 'http://x.test/', mode: 'sync', batch: 4 }] });
  assert.equal(a, undefined);
  assert.deepEqual((await claim(queue, 1)).tasks[0]!.target, {
    url: 'http://x.test/',
    mode: 'sync',
    batch: 4,
    push_timeout_ms: 10_000,
  });
});

for (const failures of [0, 3])
  test(`a target with ${failures} failures on record is left alone until not_before, and takes no slots`, async () => {
    const { queue, a } = await addQueue(1);
    await setTarget(a, { failures, notBeforeInMs: MINUTE_MS });
    const round = await claim(queue, 5);
    assert.deepEqual([round.tasks, round.more], [[], false]);
    assert.equal((await one.limiter.usage([queue])).get(queue), 0);
    assert.equal((await rowOf(a)).ramp_claimed, 0);
  });

test('what a parser says is kept as far as PostgreSQL can store it, and never keeps its target from being left alone', async () => {
  const { queue, a } = await addQueue(1);
  const { tasks } = await claim(queue, 1);
  await (await targetsOf(queue)).broken(tasks[0]!, `no such\0 page \ud800 ${'x'.repeat(5_000)}`);
  const { failures, error } = await rowOf(a);
  assert.equal(failures, 1);
  assert.match(error!, /^no such\ufffd page \ufffd x{1,2000}$/);
});

test('while one target is broken the others take all, and no task is lost or uses up a retry', async () => {
  const { queue, urls, b } = await addQueue(3);
  const targets = await targetsOf(queue);
  const { tasks } = await claim(queue, 6);
  const refused = tasks.filter((task) => task.target.url === b);
  assert.equal(refused.length, 2);
  await targets.broken(refused[0]!, 'connect ECONNREFUSED');
  await prolong(b);
  await settle(refused, 'broken');
  await createPromote({ db: one.db, onPromoted: () => {}, onStopped: () => {} }).runOnce();
  const round = await claim(queue, 10);
  assert.deepEqual([shares(urls, round.tasks)[1], round.tasks.length], [0, 10]);
  for (const { task_id } of refused) {
    assert.ok(
      round.tasks.some((task) => task.task_id === task_id),
      `task ${task_id} is pushed elsewhere`,
    );
    const { attempt, retry_count } = await world.task({ queue, taskId: task_id, taskVersion: 1 });
    assert.deepEqual([attempt, retry_count], [2, 0]);
  }
  const other = await world.instance();
  assert.equal(shares(urls, (await claim(queue, 10, other)).tasks)[1], 0, 'other instances know');
});

test('a broken target is left alone for 1 s, 2 s, 4 s ... 60 s; pushes that were on the way together count once', async () => {
  const { queue, a } = await addQueue(1);
  const waited: number[] = [];
  for (let i = 1; i <= 8; i++) {
    const from = await world.instance();
    const { tasks } = await claim(queue, 4, from);
    assert.equal(tasks.length, i === 1 ? 4 : 1);
    const targets = await targetsOf(queue, from);
    await Promise.all(tasks.map((task) => targets.broken(task, `failure ${i}`)));
    await (await targetsOf(queue)).broken(tasks[0]!, 'told late by another instance');
    const { failures, error } = await rowOf(a);
    assert.deepEqual([failures, error], [i, `failure ${i}`]);
    waited.push(await leftAloneS(a));
    await pass(a);
  }
  assert.deepEqual(waited, [1, 2, 4, 8, 16, 32, 60, 60]);
});

test('when its time is over one push of all instances together tries a broken target; the rest goes elsewhere', async () => {
  const { queue, urls, a } = await addQueue(2);
  await setTarget(a, { failures: 3 });
  const instances = await manyInstances(8);
  const tryOnce = async () => {
    const rounds = await Promise.all(instances.map((from) => claim(queue, 5, from)));
    const tasks = rounds.flatMap((round) => round.tasks);
    assert.equal(tasks.length, 40);
    return shares(urls, tasks)[0];
  };
  const began = await world.now();
  assert.equal(await tryOnce(), 1);
  const { not_before } = await rowOf(a);
  assert.ok(not_before >= began + 8_000 && not_before <= (await world.now()) + 8_000, 'the next try is after 2^3 s');
  assert.equal(await tryOnce(), 0);
});

test('a try is not used up by a claim that found no task', async () => {
  const { queue, a } = await addQueue(1);
  await setTarget(a, { failures: 5, notBeforeInMs: -5_000 });
  const { not_before } = await rowOf(a);
  await world.sql.query('UPDATE task_scheduler_tasks SET hold = 2 WHERE queue = $1', [queue]);
  assert.deepEqual((await claim(queue, 5)).tasks, []);
  assert.equal((await rowOf(a)).not_before, not_before);
  await world.sql.query('UPDATE task_scheduler_tasks SET hold = 0 WHERE queue = $1', [queue]);
  assert.equal((await claim(queue, 5)).tasks.length, 1);
});

test('the first clear answer of a broken target takes it back, few pushes at first; an answer from before does not', async () => {
  const { queue, a } = await addQueue(1);
  const early = (await claim(queue, 2)).tasks;
  const targets = await targetsOf(queue);
  await targets.broken(early[0]!, 'connect ECONNREFUSED');
  assert.match(targets.trouble()!, /\/parse failed once and gets one push at a time until it answers: connect ECONN/);
  targets.answered(early[1]!);
  await pass(a);
  const from = await world.instance();
  const late = (await claim(queue, 5, from)).tasks;
  assert.equal(late.length, 1);
  assert.equal((await rowOf(a)).failures, 1);
  const others = await targetsOf(queue, from);
  assert.match(others.trouble()!, /connect ECONNREFUSED/, 'an instance that saw no failure says so too');
  const instances = await manyInstances(4);
  others.answered(late[0]!);
  await eventually(async () => (await rowOf(a)).failures === 0);
  const back = await rowOf(a);
  assert.deepEqual([back.error, back.ramp_claimed, others.trouble()], [null, 0, null]);
  const claimed = await Promise.all(instances.map((one) => claim(queue, 50, one)));
  const total = claimed.flatMap(({ tasks }) => tasks).length;
  assert.ok(total >= 1 && total <= ramped(back, await world.now()), `${total} at once`);
  // The instance that found it broken had nothing to claim since, and learns of its recovery all the same.
  await eventually(() => targets.trouble() === null);
});

test('a target taken back takes 4 pushes, twice as many each second, all after ten', async () => {
  const { queue, urls, a } = await addQueue(1);
  for (const [rampForMs, rampClaimed] of [
    [0, 0],
    [0, 4],
    [3_000, 10],
    [5_000, 500],
    [10_000, 500],
  ] as const) {
    await setTarget(a, { rampForMs, rampClaimed });
    const before = await world.now();
    const { tasks } = await claim(queue, 100);
    const after = await world.now();
    const row = await rowOf(a);
    const [least, most] = [before, after].map((at) => Math.min(100, Math.max(0, ramped(row, at) - rampClaimed)));
    assert.ok(
      tasks.length >= least! && tasks.length <= most!,
      `${tasks.length} after ${rampForMs} ms and ${rampClaimed}, not ${least} to ${most}`,
    );
    if (after - row.ramp_from < 10_000) assert.equal(row.ramp_claimed, rampClaimed + tasks.length);
  }
  const other = await addQueue(2);
  await setTarget(other.b, { rampForMs: 0 });
  assert.deepEqual((await claim(other.queue, 100)).tasks.length, 100, 'what it does not take another one does');
  assert.equal(urls.length, 1);
});

test('all instances together keep to the rate of a target taken back', async () => {
  const { queue, a } = await addQueue(1);
  const instances = await manyInstances(8);
  await setTarget(a, { rampForMs: 2_000 });
  const rounds = await Promise.all(instances.map((from) => claim(queue, 10, from)));
  const most = ramped(await rowOf(a), await world.now());
  const total = rounds.flatMap(({ tasks }) => tasks).length;
  assert.ok(total >= 10 && total <= most, `${total}, at most ${most}`);
});

test('a busy target is left alone as it says, by all instances, 60 s at most; then it begins slowly', async () => {
  const { queue, urls, a, b } = await addQueue(2);
  const { tasks } = await claim(queue, 20);
  const targets = await targetsOf(queue);
  const of = (url: string) => tasks.filter((task) => task.target.url === url);
  const [other, late] = await manyInstances(2);
  await targets.busy(of(a)[0]!, 30_000);
  await (await targetsOf(queue, other)).busy(of(a)[1]!, 50_000);
  await targets.busy(of(b)[0]!, 3_600_000);
  assert.deepEqual(await Promise.all(urls.map(leftAloneS)), [30, 60], 'what was on the way together counts once');
  assert.equal(targets.trouble(), null, 'a busy parser is no trouble');
  for (const from of [one, other!]) {
    const { tasks: none } = await claim(queue, 10, from);
    assert.deepEqual(none, []);
  }
  await world.sql.query('UPDATE targets SET not_before = docsched_now(), ramp_from = docsched_now() WHERE url = $1', [
    a,
  ]);
  const again = (await claim(queue, 50, late!)).tasks;
  const most = ramped(await rowOf(a), await world.now());
  assert.ok(again.length >= 4 && again.length <= most, `${again.length}, at most ${most}`);
  assert.ok(again.every((task) => task.target.url === a));
});

test('a broken target that answers that it is busy is there again', async () => {
  const { queue, a } = await addQueue(1);
  await setTarget(a, { failures: 4 });
  const { tasks } = await claim(queue, 5);
  await (await targetsOf(queue)).busy(tasks[0]!, 2_000);
  const { failures, not_before, ramp_from } = await rowOf(a);
  assert.equal(failures, 0);
  assert.ok(Math.abs(ramp_from - not_before) < 1_000, `from ${ramp_from}, not from ${not_before}`);
});

test('when more than half of its pushes fail a target is left alone like a broken one, until one succeeds', async () => {
  const { queue, urls, a } = await addQueue(1);
  const { tasks } = await claim(queue, 40);
  const targets = await targetsOf(queue);
  for (const task of tasks.slice(0, 9)) await targets.failed(task, 'the parser answered 500');
  assert.equal(await rowOf(a), undefined, 'nine failures may be nine bad documents');
  for (const task of tasks.slice(9, 18)) targets.answered(task);
  await targets.failed(tasks[18]!, 'the parser answered 503');
  const { failures, error } = await rowOf(a);
  assert.deepEqual([failures, error], [1, 'the parser answered 503']);
  await targets.failed(tasks[19]!, 'the parser answered 500');
  assert.equal((await rowOf(a)).failures, 1, 'what was on the way tells nothing new');
  await prolong(a);
  assert.deepEqual((await claim(queue, 10)).tasks, []);

  await pass(a);
  const from = await world.instance();
  const [first] = (await claim(queue, 10, from)).tasks;
  await (await targetsOf(queue, from)).failed(first!, 'the parser answered 500');
  assert.equal((await rowOf(a)).failures, 2, 'one failure is enough while it is tried');

  await pass(a);
  const next = await world.instance();
  const [second] = (await claim(queue, 10, next)).tasks;
  assert.notEqual(second!.task_id, first!.task_id, 'the task that failed has moved on by its back-off');
  (await targetsOf(queue, next)).answered(second!);
  await eventually(async () => (await rowOf(a)).failures === 0);
  assert.deepEqual(shares(urls, [second!]), [1]);
});

test('the pusher is woken when a target may be asked again', async () => {
  const { queue } = await addQueue(1);
  const lane = one.laneOf(await world.queue(queue));
  const lateMs: number[] = [];
  // A second late is what a timer makes that comes a moment early and then waits for the next look.
  while (lateMs.length < 3 && !lateMs.some((ms) => ms < 500)) {
    const task = await eventually(async () => (await claim(queue, 1)).tasks[0] ?? null);
    const { woken } = lane;
    const began = performance.now();
    await lane.targets.busy(task!, 1_500);
    await eventually(() => lane.woken > woken);
    lateMs.push(performance.now() - began - 1_500);
  }
  assert.ok(Math.min(...lateMs) > -100 && Math.min(...lateMs) < 500, `late by ${lateMs} ms`);
  await eventually(async () => (await claim(queue, 1)).tasks.length === 1);
});

test('what each target does is shown', async () => {
  const { queue, urls } = await addQueue(4);
  await setTarget(urls[1]!, { failures: 2, notBeforeInMs: MINUTE_MS });
  await setTarget(urls[2]!, { failures: 1 });
  await setTarget(urls[3]!, { rampForMs: 1_000, rampClaimed: 8 });
  const from = await world.instance();
  const targets = await targetsOf(queue, from);
  await targets.look((await world.queue(queue)).targets);
  assert.deepEqual(targets.states(), [
    { url: urls[0], state: 'closed', failures: 0 },
    { url: urls[1], state: 'open', failures: 2 },
    { url: urls[2], state: 'half_open', failures: 1 },
    { url: urls[3], state: 'ramping', failures: 0 },
  ]);
  assert.match(targets.trouble()!, /failed 2 times in a row .*; and 1 more of 4 targets$/);
});

test('a claim whose answer was lost knows its targets when it is found again', async () => {
  const { queue, urls } = await addQueue(2);
  const cut = await world.instance({
    over: (db) => ({
      ...db,
      query: async (name, params) => {
        const rows = await db.query<never>(name, params);
        if (name === 'claim_tasks') throw new Error('Connection terminated unexpectedly');
        return rows;
      },
    }),
  });
  const { tasks } = await claim(queue, 6, cut);
  assert.deepEqual(shares(urls, tasks), [3, 3]);
});
