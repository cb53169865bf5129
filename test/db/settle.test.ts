/** Settling: what each verdict does to a task in each state, who wins, and when slots are given back. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { SettleOutcome, Verdict } from '../../src/receiver/settle.ts';
import { createExpireProcessing } from '../../src/watcher/expire-processing.ts';
import { createPromote } from '../../src/watcher/promote.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, queueNames, TARGET, type TaskState, type World } from '../support/world.ts';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const nextName = queueNames();

let world: World;
let one: Instance;
let two: Instance;

before(async () => {
  world = await createWorld('settle');
  one = await world.instance();
  two = await world.instance();
});
after(() => world.end());

const addQueue = (columns: Record<string, unknown> = {}) =>
  world.addQueue(nextName(), { concurrency_limit: 1_000, retry_strategy: 'immediate', retry_jitter: 0, ...columns });
const key = (queue: string) => ({ queue, taskId: 1, taskVersion: 1 });
const taskOf = (queue: string) => world.task(key(queue));
const inUse = async (queue: string) => (await one.limiter.usage([queue])).get(queue);
/** Attempt ids of the next claims of the queue. */
const claim = async (queue: string, room = 1): Promise<string[]> =>
  (await one.claim(await world.queue(queue), room)).tasks.map((task) => task.attempt_id);
const promote = () => createPromote({ db: one.db, onPromoted: () => {}, onStopped: () => {} }).runOnce();

/** A queue with one Processing task and its attempt. */
async function processing(options: { columns?: Record<string, unknown>; maxRetries?: number; priority?: number } = {}) {
  const queue = await addQueue(options.columns);
  const { maxRetries = 3, priority = 5 } = options;
  await world.submit({ ...key(queue), maxRetries, priority });
  const [attemptId] = await claim(queue);
  return { queue, attemptId: attemptId! };
}

const passDeadline = (attemptId: string) =>
  world.sql.query(
    `UPDATE attempts SET deadline = docsched_now() - 1, claimed_at = claimed_at - 3600000 WHERE attempt_id = $1`,
    [attemptId],
  );
const settle = async (
  attemptId: string,
  verdict: Verdict,
  more: { statusCode?: string; statusMsg?: string; result?: string; afterMs?: number; from?: Instance } = {},
): Promise<SettleOutcome> => {
  const { from = one, ...rest } = more;
  return (await from.settler.settle({ attemptId, verdict, ...rest })).outcome;
};

const RETRIED: Verdict[] = ['parser_failed', 'try_failed', 'expired'];
const REFUSED: Verdict[] = ['refused', 'result_too_large'];
const RETURNED: Verdict[] = ['busy', 'broken', 'unsent'];
const VERDICTS: Verdict[] = ['success', ...RETRIED, ...REFUSED, ...RETURNED];
const reasonOf = (verdict: Verdict): string => (verdict === 'expired' ? 'in_doubt_expired' : verdict);

for (const verdict of VERDICTS)
  for (const retriesLeft of [true, false])
    test(`${verdict} of a Processing task with ${retriesLeft ? 'retries' : 'no retry'} left`, async () => {
      const { queue, attemptId } = await processing({ maxRetries: retriesLeft ? 2 : 0 });
      const before = await taskOf(queue);
      if (verdict === 'expired') await passDeadline(attemptId);
      const settlement = { statusCode: verdict === 'success' ? '0' : '7', statusMsg: 'said', result: '{"a":1}' };
      assert.equal(await settle(attemptId, verdict, settlement), 'applied');
      const task = await taskOf(queue);
      const attempt = await world.attempt(attemptId);
      const counted = RETRIED.includes(verdict) && retriesLeft;
      const pending = counted || RETURNED.includes(verdict);
      const wanted: Partial<TaskState> = {
        status: verdict === 'success' ? 2 : pending ? 0 : 3,
        reason: verdict === 'success' || pending ? null : reasonOf(verdict),
        retry_count: counted ? 1 : 0,
        hold: pending ? 1 : 0,
        attempt: 1,
        attempt_id: null,
        deadline: null,
        result: verdict === 'success' ? '{"a":1}' : null,
        status_code: RETURNED.includes(verdict) ? null : (Number(settlement.statusCode) as never),
        status_msg: RETURNED.includes(verdict) ? null : 'said',
        finished_at: pending ? null : attempt.closed_at,
      };
      const names = Object.keys(wanted) as (keyof TaskState)[];
      assert.deepEqual(Object.fromEntries(names.map((name) => [name, task[name]])), wanted);
      assert.equal(attempt.outcome, verdict === 'expired' ? 'in_doubt_expired' : verdict);
      assert.equal(attempt.error, verdict === 'success' ? null : 'said');
      assert.ok(attempt.closed_at! >= before.started_at!);
      assert.ok(task.update_at >= attempt.closed_at! && task.update_at > before.update_at);
      await eventually(async () => (await inUse(queue)) === 0);
      assert.equal(
        await settle(attemptId, 'success'),
        { success: 'duplicate', parser_failed: 'duplicate', result_too_large: 'duplicate' }[verdict as string] ??
          'stale',
      );
    });

for (const [state, change] of [
  ['cancelled', (queue: string) => world.cancel(key(queue))],
  ['cancelled and recreated', (queue: string) => world.cancel(key(queue)).then(() => world.submit(key(queue)))],
  [
    'cancelled, recreated and claimed again',
    (queue: string) =>
      world
        .cancel(key(queue))
        .then(() => world.submit(key(queue)))
        .then(() => claim(queue)),
  ],
  ['deleted', (queue: string) => world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1', [queue])],
] as const)
  for (const verdict of [...VERDICTS, 'cancel_done'] as Verdict[])
    test(`${verdict} of a task that was ${state}: stale, the attempt is closed and its slot freed`, async () => {
      const { queue, attemptId } = await processing();
      await change(queue);
      if (verdict === 'expired') await passDeadline(attemptId);
      const before = await taskOf(queue);
      const open = (await world.openAttempts(queue)).filter((id) => id !== attemptId);
      assert.equal(await inUse(queue), open.length + 1, 'the slot is kept until then');
      assert.equal(await settle(attemptId, verdict, { result: '1' }), 'stale');
      assert.deepEqual(await taskOf(queue), before);
      assert.equal((await world.attempt(attemptId)).outcome, 'cancelled');
      await eventually(async () => (await inUse(queue)) === open.length);
      assert.deepEqual(await world.openAttempts(queue), open);
      assert.equal(await settle(attemptId, 'success'), 'stale');
    });

test('cancel_done closes no attempt whose task was not cancelled', async () => {
  const { queue, attemptId } = await processing();
  assert.equal(await settle(attemptId, 'cancel_done'), 'stale');
  assert.equal((await world.attempt(attemptId)).closed_at, null);
  assert.equal((await taskOf(queue)).status, 1);
  assert.equal(await inUse(queue), 1);
  assert.equal(await settle(attemptId, 'success'), 'applied');
});

test('an attempt that was never opened is unknown', async () => {
  assert.equal(await settle('nobody-knows-this-attempt', 'success'), 'unknown');
});

test('a time-out of an attempt not past its deadline changes nothing', async () => {
  const { queue, attemptId } = await processing();
  assert.equal(await settle(attemptId, 'expired'), 'stale');
  assert.equal((await taskOf(queue)).status, 1);
  assert.equal(await inUse(queue), 1);
});

test('a time-out says whether the parser was known to have accepted', async () => {
  const { queue, attemptId } = await processing({ maxRetries: 0 });
  await one.db.query('accept_attempts', [[attemptId]]);
  await passDeadline(attemptId);
  await settle(attemptId, 'expired');
  assert.equal((await taskOf(queue)).reason, 'processing_expired');
  assert.equal((await world.attempt(attemptId)).outcome, 'processing_expired');
});

test('an acceptance is noted once, and only of open attempts', async () => {
  const { attemptId } = await processing();
  await one.db.query('accept_attempts', [[attemptId]]);
  await world.sql.query('UPDATE attempts SET accepted_at = 5 WHERE attempt_id = $1', [attemptId]);
  await one.db.query('accept_attempts', [[attemptId]]);
  assert.equal((await world.attempt(attemptId)).accepted_at, 5);
  const closed = await processing();
  await settle(closed.attemptId, 'try_failed');
  await one.db.query('accept_attempts', [[closed.attemptId]]);
  assert.equal((await world.attempt(closed.attemptId)).accepted_at, null);
});

test('a callback after the deadline is accepted until the watcher has closed the attempt', async () => {
  const { queue, attemptId } = await processing();
  await passDeadline(attemptId);
  assert.equal(await settle(attemptId, 'success'), 'applied');
  assert.equal((await taskOf(queue)).status, 2);
});

test('a repeated success is a duplicate and changes nothing', async () => {
  const { queue, attemptId } = await processing();
  await settle(attemptId, 'success', { result: '"first"' });
  const before = await taskOf(queue);
  assert.equal(await settle(attemptId, 'success', { result: '"second"' }), 'duplicate');
  assert.equal(await settle(attemptId, 'parser_failed', { from: two }), 'duplicate');
  assert.deepEqual(await taskOf(queue), before);
});

test('a repeated failure is a duplicate, also when the task waits for its retry or runs again', async () => {
  const { queue, attemptId } = await processing();
  await settle(attemptId, 'parser_failed');
  assert.equal(await settle(attemptId, 'parser_failed'), 'duplicate', 'while it waits');
  await promote();
  const [second] = await claim(queue);
  const before = await taskOf(queue);
  assert.equal(await settle(attemptId, 'success', { result: '1' }), 'duplicate', 'while it runs again');
  assert.deepEqual(await taskOf(queue), before);
  assert.deepEqual(await world.openAttempts(queue), [second]);
  assert.equal(await inUse(queue), 1, 'the slot of the second attempt is not freed by the first');
  assert.equal(await settle(second!, 'success'), 'applied');
});

test('only the current attempt settles a task', async () => {
  const { queue, attemptId } = await processing();
  await passDeadline(attemptId);
  await settle(attemptId, 'expired');
  await promote();
  const [second] = await claim(queue);
  assert.equal(await settle(attemptId, 'success', { result: '"late"' }), 'stale');
  assert.deepEqual([(await taskOf(queue)).status, (await taskOf(queue)).attempt_id], [1, second]);
  assert.equal(await settle(second!, 'success', { result: '"in time"' }), 'applied');
  assert.equal((await taskOf(queue)).result, '"in time"');
});

test('of two settles of one attempt at once, from two instances, one is applied', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 60);
  const wins: Record<string, number> = {};
  for (const attemptId of await claim(queue, 60)) {
    const outcomes = await Promise.all([
      settle(attemptId, 'success', { from: one, result: '1' }),
      settle(attemptId, 'parser_failed', { from: two, statusCode: '1' }),
    ]);
    assert.deepEqual(outcomes.toSorted(), ['applied', 'duplicate']);
    wins[(await world.attempt(attemptId)).outcome!] = 1;
  }
  for (const task of await world.tasks(queue)) {
    assert.equal(task.retry_count, task.status === 2 ? 0 : 1);
    assert.equal(task.result, task.status === 2 ? '1' : null);
  }
  await eventually(async () => (await inUse(queue)) === 0);
});

test('two settles of one attempt in one instance at once: one is applied', async () => {
  const { attemptId } = await processing();
  const outcomes = await Promise.all([settle(attemptId, 'success'), settle(attemptId, 'success')]);
  assert.deepEqual(outcomes.toSorted(), ['applied', 'duplicate']);
});

test('a callback racing the time-out: one wins, the task tells which, and its slot is freed once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 125);
  const [keep, race] = [await claim(queue, 5), await claim(queue, 120)];
  for (const [i, attemptId] of race.entries()) {
    await passDeadline(attemptId);
    const callback = () => settle(attemptId, 'success', { from: one });
    const timeOut = () => settle(attemptId, 'expired', { from: two });
    const [first, second] = i % 2 ? [callback, timeOut] : [timeOut, callback];
    const outcomes = await Promise.all([first(), second()]);
    const [byCallback, byTimeOut] = i % 2 ? outcomes : outcomes.toReversed();
    const { outcome, task_id } = await world.attempt(attemptId);
    const task = await world.task({ queue, taskId: task_id, taskVersion: 1 });
    if (outcome === 'success') assert.deepEqual([byCallback, byTimeOut, task.status], ['applied', 'duplicate', 2]);
    else assert.deepEqual([byCallback, byTimeOut, task.status, task.retry_count], ['stale', 'applied', 0, 1]);
  }
  await eventually(async () => (await inUse(queue)) === keep.length);
  assert.deepEqual(await world.openAttempts(queue), keep.toSorted());
});

test('callbacks racing the watcher over many attempts at once: each is decided once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 400);
  const attempts = await claim(queue, 400);
  await world.sql.query('UPDATE attempts SET deadline = 1 WHERE queue = $1', [queue]);
  const watcher = createExpireProcessing({ db: two.db, settler: two.settler });
  const [outcomes] = await Promise.all([
    Promise.all(attempts.map((attemptId) => settle(attemptId, 'success', { from: one }))),
    watcher.runOnce(),
    createExpireProcessing({ db: two.db, settler: two.settler }).runOnce(),
  ]);
  const tasks = await world.tasks(queue);
  assert.equal(outcomes.filter((outcome) => outcome === 'applied').length, tasks.filter((t) => t.status === 2).length);
  assert.equal(outcomes.filter((outcome) => outcome === 'stale').length, tasks.filter((t) => t.status === 0).length);
  assert.equal(
    tasks.filter((t) => t.status === 0).every((t) => t.retry_count === 1),
    true,
  );
  assert.deepEqual(await world.openAttempts(queue), []);
  await eventually(async () => (await inUse(queue)) === 0);
});

test('a settle racing a cancel: one wins and the slot is freed', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 60);
  for (const [i, attemptId] of (await claim(queue, 60)).entries()) {
    const { task_id: taskId } = await world.attempt(attemptId);
    const doing = [() => settle(attemptId, 'success'), () => world.cancel({ queue, taskId, taskVersion: 1 })];
    await Promise.all((i % 2 ? doing : doing.toReversed()).map((act) => act()));
    const task = await world.task({ queue, taskId, taskVersion: 1 });
    const { outcome } = await world.attempt(attemptId);
    assert.deepEqual([task.status, task.reason], outcome === 'success' ? [2, null] : [4, 'cancelled']);
  }
  await eventually(async () => (await inUse(queue)) === 0);
});

test('a group decides each of its attempts by its own verdict', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, VERDICTS.length);
  const attempts = await claim(queue, VERDICTS.length);
  await passDeadline(attempts[VERDICTS.indexOf('expired')]!);
  const outcomes = await Promise.all(attempts.map((attemptId, i) => settle(attemptId, VERDICTS[i]!)));
  assert.deepEqual(new Set(outcomes), new Set(['applied']));
  const closed = await Promise.all(attempts.map((attemptId) => world.attempt(attemptId)));
  assert.deepEqual(
    closed.map(({ outcome }) => outcome),
    VERDICTS.map(reasonOf),
  );
});

test('slots are released after the commit: when applied, when stale, and again for a duplicate', async () => {
  const openWhenReleased: boolean[] = [];
  const releases: string[] = [];
  const watched = await world.instance({
    between: (limiter) => ({
      ...limiter,
      release: async (queue, ids) => {
        for (const id of ids) openWhenReleased.push((await world.attempt(id)).closed_at === null);
        releases.push(...ids);
        await limiter.release(queue, ids);
      },
    }),
  });
  const applied = await processing();
  const stale = await processing();
  const late = await processing();
  await world.cancel(key(stale.queue));
  await passDeadline(late.attemptId);
  const expected: string[] = [];
  for (const [attemptId, verdict, outcome] of [
    [applied.attemptId, 'success', 'applied'],
    [applied.attemptId, 'success', 'duplicate'],
    [stale.attemptId, 'success', 'stale'],
    [stale.attemptId, 'success', 'stale'],
    [late.attemptId, 'expired', 'applied'],
    [late.attemptId, 'success', 'stale'],
  ] as const) {
    assert.equal(await settle(attemptId, verdict, { from: watched }), outcome);
    expected.push(attemptId);
    await eventually(() => releases.length === expected.length);
  }
  assert.deepEqual(releases, expected);
  assert.deepEqual(new Set(openWhenReleased), new Set([false]));
});

test('what stays open keeps its slot: nothing is released for it, nor for an unknown attempt', async () => {
  const { queue, attemptId } = await processing();
  const before = one.released.length;
  await settle(attemptId, 'cancel_done');
  await settle(attemptId, 'expired');
  await settle('unknown-attempt-unknown-attempt', 'success');
  await one.settler.idle();
  assert.deepEqual(one.released.slice(before), []);
  assert.equal(await inUse(queue), 1);
});

test('each change of a task moves its revision, also while the clock stands behind it', async () => {
  const { queue, attemptId } = await processing({ maxRetries: 1 });
  const ahead = (await world.now()) + HOUR_MS;
  await world.sql.query('UPDATE task_scheduler_tasks SET update_at = $2 WHERE queue = $1', [queue, ahead]);
  const changes: (() => Promise<unknown>)[] = [
    () => progress(attemptId, 1),
    () => settle(attemptId, 'parser_failed'),
    promote,
    () => world.cancel(key(queue)),
    () => one.db.query('retry_task', [queue, 1, 1]),
  ];
  for (const [index, change] of changes.entries()) {
    await change();
    assert.equal((await taskOf(queue)).update_at, ahead + index + 1, `change ${index}`);
  }
});

test('pushers hear of closed attempts once the slots are free, whether applied or not', async () => {
  const { queue, attemptId } = await processing();
  const cancelled = await processing();
  await world.cancel(key(cancelled.queue));
  for (const id of [attemptId, cancelled.attemptId]) await settle(id, 'success');
  const closed = await eventually(() => {
    const found = [attemptId, cancelled.attemptId].map((id) => one.closed.find((row) => row.attempt_id === id));
    return found.every((row) => row !== undefined) && found;
  });
  assert.deepEqual(
    (closed || []).map((row) => [row.queue, row.task_id, row.number, row.target, row.applied, row.status]),
    [
      [queue, '1', 1, TARGET, true, 2],
      [cancelled.queue, '1', 1, TARGET, false, null],
    ],
  );
});

test('a failure with retries left is Pending again after the back-off, its time-out counted from there', async () => {
  const { queue, attemptId } = await processing({ columns: { retry_strategy: 'fixed', retry_base_ms: HOUR_MS } });
  await settle(attemptId, 'parser_failed');
  const task = await taskOf(queue);
  const { closed_at } = await world.attempt(attemptId);
  assert.equal(task.ready_at, closed_at! + HOUR_MS);
  assert.deepEqual([task.next_retry_time, task.pending_since], [task.ready_at, task.ready_at]);
  await promote();
  assert.deepEqual(await claim(queue), []);
});

test('after max_retries counted failures the task is Failed', async () => {
  const { queue, attemptId } = await processing({ maxRetries: 2 });
  let next = attemptId;
  for (let retry = 1; retry <= 2; retry++) {
    await settle(next, retry === 1 ? 'parser_failed' : 'try_failed');
    await promote();
    next = (await claim(queue))[0]!;
    assert.deepEqual([(await taskOf(queue)).retry_count, (await taskOf(queue)).attempt], [retry, retry + 1]);
  }
  await settle(next, 'parser_failed', { statusCode: '-5', statusMsg: 'gave up' });
  const task = await taskOf(queue);
  assert.deepEqual(
    [task.status, task.reason, task.retry_count, task.status_code, task.status_msg],
    [3, 'parser_failed', 2, -5, 'gave up'],
  );
});

for (const verdict of RETURNED)
  test(`${verdict} counts no retry and moves the pending time-out by nothing`, async () => {
    const { queue, attemptId } = await processing({ maxRetries: 0 });
    await world.sql.query('UPDATE task_scheduler_tasks SET pending_since = 1234 WHERE queue = $1', [queue]);
    await settle(attemptId, verdict, { afterMs: verdict === 'busy' ? HOUR_MS : 0 });
    const task = await taskOf(queue);
    const { closed_at } = await world.attempt(attemptId);
    assert.deepEqual([task.status, task.retry_count, task.pending_since], [0, 0, 1234]);
    assert.equal(task.ready_at, closed_at! + (verdict === 'busy' ? HOUR_MS : 0));
    assert.equal(task.next_retry_time, verdict === 'busy' ? task.ready_at : null);
  });

test('a retry ranks demote levels lower, at most at level 5, and keeps its place there', async () => {
  for (const [priority, demote, level] of [
    [1, 2, 3],
    [2, 0, 2],
    [4, 3, 5],
    [5, 1, 5],
  ] as const) {
    const { queue, attemptId } = await processing({ columns: { retry_demote: demote }, priority });
    await settle(attemptId, 'parser_failed');
    const task = await taskOf(queue);
    assert.deepEqual([task.priority, task.level, task.place], [priority, level, task.id]);
  }
});

test('a return that is not counted ranks a first try where it was, and a retry where retries are', async () => {
  const { queue, attemptId } = await processing({ columns: { retry_demote: 2 }, priority: 1 });
  await settle(attemptId, 'busy');
  assert.equal((await taskOf(queue)).level, 1);
  for (const verdict of ['parser_failed', 'broken'] as const) {
    await promote();
    await settle((await claim(queue))[0]!, verdict);
    assert.equal((await taskOf(queue)).level, 3);
  }
});

test('the back-off doubles from the base up to the cap, with jitter around it', async () => {
  const queue = await addQueue({ retry_base_ms: 1_000, retry_max_ms: 60_000, retry_jitter: 0.2 });
  const sample = async (strategy: string, retries: number) => {
    await world.setQueue(queue, { retry_strategy: strategy });
    const [row] = await world.rows<{ least: number; most: number }>(
      `SELECT min(d) AS least, max(d) AS most
       FROM (SELECT docsched_retry_delay(q, $2) AS d FROM queues q, generate_series(1, 3000) n WHERE q.queue = $1) s`,
      [queue, retries],
    );
    return row!;
  };
  const around = ({ least, most }: { least: number; most: number }, ms: number) => {
    assert.ok(least >= ms * 0.8 - 1 && least <= ms * 0.82, `${least} is the least around ${ms}`);
    assert.ok(most <= ms * 1.2 + 1 && most >= ms * 1.18, `${most} is the most around ${ms}`);
  };
  for (const [retries, ms] of [
    [0, 1_000],
    [1, 2_000],
    [5, 32_000],
    [6, 50_000],
    [50, 50_000],
    [1_000_000, 50_000],
  ] as const)
    around(await sample('exponential', retries), ms);
  around(await sample('fixed', 7), 1_000);
  assert.deepEqual(await sample('immediate', 3), { least: 0, most: 0 });
});

test('the back-off of a settle is the one of its retry_count', async () => {
  const columns = { retry_strategy: 'exponential', retry_base_ms: MINUTE_MS, retry_max_ms: HOUR_MS };
  const { queue, attemptId } = await processing({ columns, maxRetries: 9 });
  let next = attemptId;
  for (const backOffMs of [1, 2, 4, 8].map((n) => n * MINUTE_MS)) {
    await settle(next, 'parser_failed');
    assert.equal((await taskOf(queue)).ready_at, (await world.attempt(next)).closed_at! + backOffMs);
    await world.sql.query('UPDATE task_scheduler_tasks SET ready_at = 1 WHERE queue = $1', [queue]);
    await promote();
    next = (await claim(queue))[0]!;
  }
});

type Progress = { closed: boolean; cancel_requested: boolean; deadline: string };
const progress = async (attemptId: string, percent: number | null = null, message: string | null = null) =>
  (await one.db.query<Progress>('report_progress', [attemptId, percent, message]))[0];
const ageProgress = (attemptId: string, ms: number) =>
  world.sql.query('UPDATE attempts SET progress_at = progress_at - $2 WHERE attempt_id = $1', [attemptId, ms]);

test('progress is stored and moves the deadline of attempt and task', async () => {
  const { queue, attemptId } = await processing({ columns: { processing_expired_ms: MINUTE_MS } });
  await world.sql.query('UPDATE attempts SET deadline = deadline - 30000 WHERE attempt_id = $1', [attemptId]);
  const before = await world.now();
  const answer = await progress(attemptId, 12.5, 'page 3');
  const attempt = await world.attempt(attemptId);
  assert.ok(attempt.deadline >= before + MINUTE_MS && attempt.deadline <= (await world.now()) + MINUTE_MS);
  assert.deepEqual(answer, { closed: false, cancel_requested: false, deadline: String(attempt.deadline) });
  assert.equal((await taskOf(queue)).deadline, attempt.deadline);
  assert.deepEqual([attempt.progress_percent, attempt.progress_message], [12.5, 'page 3']);
  assert.ok(attempt.accepted_at! >= before);
});

test('progress never moves the deadline beyond claimed_at + processing_max_ms, nor back', async () => {
  const columns = { processing_expired_ms: HOUR_MS, processing_max_ms: HOUR_MS + MINUTE_MS };
  const { attemptId } = await processing({ columns });
  await world.sql.query(
    `UPDATE attempts SET claimed_at = claimed_at - $2, deadline = deadline - $2, max_deadline = max_deadline - $2
     WHERE attempt_id = $1`,
    [attemptId, 30 * MINUTE_MS],
  );
  const { claimed_at } = await world.attempt(attemptId);
  const first = await progress(attemptId);
  assert.equal(Number(first!.deadline), claimed_at + HOUR_MS + MINUTE_MS);
  await world.sql.query('UPDATE queues SET processing_expired_ms = 1000 WHERE queue = $1', [
    (await world.attempt(attemptId)).queue,
  ]);
  await ageProgress(attemptId, 5_000);
  assert.equal((await progress(attemptId))!.deadline, first!.deadline);
});

test('a second progress within a second stores nothing and answers the stored deadline', async () => {
  const { attemptId } = await processing();
  await progress(attemptId, 10, 'ten');
  // Within a second of the next one, however slow the test is.
  await world.sql.query(
    'UPDATE attempts SET deadline = 4102444800000, progress_at = docsched_now() + 5000 WHERE attempt_id = $1',
    [attemptId],
  );
  assert.deepEqual(await progress(attemptId, 20, 'twenty'), {
    closed: false,
    cancel_requested: false,
    deadline: '4102444800000',
  });
  assert.equal((await world.attempt(attemptId)).progress_percent, 10);
  await ageProgress(attemptId, 6_000);
  await progress(attemptId, 30);
  const attempt = await world.attempt(attemptId);
  assert.deepEqual([attempt.progress_percent, attempt.progress_message], [30, 'ten']);
});

test('progress of a cancelled task extends nothing and asks to stop; cancel_done then frees the slot', async () => {
  const { queue, attemptId } = await processing();
  await world.cancel(key(queue));
  const before = await world.attempt(attemptId);
  assert.deepEqual(await progress(attemptId, 50), {
    closed: false,
    cancel_requested: true,
    deadline: String(before.deadline),
  });
  assert.equal((await world.attempt(attemptId)).deadline, before.deadline);
  assert.equal(await inUse(queue), 1);
  await settle(attemptId, 'cancel_done');
  await eventually(async () => (await inUse(queue)) === 0);
  assert.equal((await progress(attemptId))!.closed, true);
});

test('progress of a closed attempt changes nothing, and of an unknown one answers nothing', async () => {
  const { attemptId } = await processing();
  await settle(attemptId, 'success');
  const before = await world.attempt(attemptId);
  assert.equal((await progress(attemptId, 99))!.closed, true);
  assert.deepEqual(await world.attempt(attemptId), before);
  assert.equal(await progress('unknown-attempt-unknown-attempt'), undefined);
});

test('a progress that comes in time keeps the watcher from closing the attempt', async () => {
  const { attemptId } = await processing();
  await passDeadline(attemptId);
  const found = await one.db.query<{ attempt_id: string }>('find_expired_attempts', []);
  assert.ok(found.some((row) => row.attempt_id === attemptId));
  await progress(attemptId);
  assert.equal(await settle(attemptId, 'expired'), 'stale');
  assert.equal((await world.attempt(attemptId)).closed_at, null);
});
