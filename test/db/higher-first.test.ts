/** A newer version of a task goes before the older ones that wait, takes over their place, and makes room for them. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import pg from 'pg';
import { createClean } from '../../src/watcher/clean.ts';
import { createExpirePending } from '../../src/watcher/expire-pending.ts';
import { createPromote } from '../../src/watcher/promote.ts';
import { createWorld, type Instance, queueNames, type World } from '../support/world.ts';

const HOUR_MS = 3_600_000;
const nextName = queueNames();

let world: World;
let one: Instance;

before(async () => {
  world = await createWorld('higher_first');
  one = await world.instance();
  await world.sql.query(NEVER_OLDER);
});
after(() => world.end());

/**
 * Ends any claim of a version of which a newer one waited. STABLE, so it sees what the claim's own snapshot saw: what
 * was submitted while the claim ran does not count.
 */
const NEVER_OLDER = `
  CREATE FUNCTION test_never_older() RETURNS trigger LANGUAGE plpgsql STABLE AS $$
  BEGIN
    IF EXISTS (
      SELECT 1 FROM task_scheduler_tasks h
      WHERE h.queue = NEW.queue AND h.task_id = NEW.task_id AND h.task_version > NEW.task_version
        AND h.status = 0 AND h.hold <> 1)
    THEN RAISE EXCEPTION 'claimed %/% while a newer version waited', NEW.task_id, NEW.task_version;
    END IF;
    RETURN NULL;
  END $$;
  CREATE TRIGGER test_never_older AFTER UPDATE ON task_scheduler_tasks
    FOR EACH ROW WHEN (OLD.status = 0 AND NEW.status = 1) EXECUTE FUNCTION test_never_older()`;

type Claimed = { attempt_id: string; task_id: string; task_version: string; has_blocked: boolean };

const addQueue = (columns: Record<string, unknown> = {}) =>
  world.addQueue(nextName(), { concurrency_limit: 1_000_000, retry_strategy: 'immediate', ...columns });
/** As the pusher claims: what waited behind the claimed versions moves up, unless `crash`. */
async function claim(queue: string, room: number, { from = one, crash = false } = {}): Promise<Claimed[]> {
  const { tasks } = await from.claim(await world.queue(queue), room);
  const heads = tasks.filter((task) => task.has_blocked);
  if (!crash && heads.length > 0)
    await from.db.query('order_versions', [
      heads.map(() => queue),
      heads.map((task) => task.task_id),
      heads.map((task) => task.task_version),
    ]);
  return tasks;
}
const named = (tasks: Claimed[]): string[] => tasks.map((task) => `${task.task_id}/${task.task_version}`);
const claimNames = async (queue: string, room = 10) => named(await claim(queue, room));
const promote = (from = one) => createPromote({ db: from.db, onPromoted: () => {}, onStopped: () => {} }).runOnce();
const clean = async (from = one) => createClean({ db: from.db, queues: await world.queues() }).runOnce();
const settle = (attemptId: string, verdict: 'success' | 'parser_failed' | 'busy', from = one) =>
  from.settler.settle({ attemptId, verdict, statusCode: verdict === 'success' ? '0' : '1' });
/** Submits versions of task 1, one commit each. */
async function submit(queue: string, ...versions: number[]): Promise<void> {
  for (const taskVersion of versions) await world.submit({ queue, taskId: 1, taskVersion });
}
const holds = async (queue: string): Promise<string[]> =>
  (await world.tasks(queue)).filter((task) => task.status === 0).map((task) => `${task.task_version}:${task.hold}`);

test('of the versions that wait only the highest is claimable, whatever the order of the submits', async () => {
  const queue = await addQueue();
  await world.submit(...[1, 4, 9].map((taskVersion) => ({ queue, taskId: 1, taskVersion })));
  await submit(queue, 12);
  assert.deepEqual(await holds(queue), ['1:2', '4:2', '9:2', '12:0']);
  const { tasks } = await one.claim(await world.queue(queue), 10);
  assert.deepEqual(named(tasks), ['1/12']);
});

test('an older version is not claimed while a newer one waits, even when it is claimable by mistake', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2, 3);
  await world.sql.query('UPDATE task_scheduler_tasks SET hold = 0 WHERE queue = $1', [queue]);
  const { tasks } = await one.claim(await world.queue(queue), 10);
  assert.deepEqual(named(tasks), ['1/3']);
});

test('an older version is not claimed while a newer one is blocked by mistake', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  await world.sql.query('UPDATE task_scheduler_tasks SET hold = 2 - hold WHERE queue = $1', [queue]);
  assert.deepEqual(await claimNames(queue), []);
  await clean();
  assert.deepEqual(await claimNames(queue), ['1/2']);
});

test('the check on claims in this file can fail', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  const cheat = `UPDATE task_scheduler_tasks SET status = 1, attempt_id = 'x', hold = 0
    WHERE queue = $1 AND task_version = 1`;
  await assert.rejects(world.sql.query(cheat, [queue]), /while a newer version waited/);
});

test('once the highest is claimed the next one moves up: newest to oldest', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2, 3, 4);
  const claimed = [];
  for (let i = 0; i < 4; i++) claimed.push(...(await claimNames(queue)));
  assert.deepEqual(claimed, ['1/4', '1/3', '1/2', '1/1']);
});

test('a newer version does not wait for an older one that is Processing', async () => {
  const queue = await addQueue();
  await submit(queue, 1);
  await claim(queue, 1);
  await submit(queue, 2);
  assert.deepEqual(await claimNames(queue), ['1/2']);
});

test('tasks of one queue do not block those of the same id in another', async () => {
  const [queue, other] = [await addQueue(), await addQueue()];
  await submit(queue, 1);
  await submit(other, 2);
  assert.deepEqual(await claimNames(queue), ['1/1']);
});

test('cancelling the highest makes the next one claimable', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2, 3);
  await world.cancel({ queue, taskId: 1, taskVersion: 3 });
  assert.deepEqual(await holds(queue), ['1:2', '2:0']);
  assert.deepEqual(await claimNames(queue), ['1/2']);
});

test('cancelling one in the middle changes nothing for the others', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2, 3);
  await world.cancel({ queue, taskId: 1, taskVersion: 2 });
  assert.deepEqual(await holds(queue), ['1:2', '3:0']);
  assert.deepEqual([...(await claimNames(queue)), ...(await claimNames(queue))], ['1/3', '1/1']);
});

test('when the highest expires the next one becomes claimable', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2, 3);
  await world.sql.query('UPDATE task_scheduler_tasks SET pending_since = 0 WHERE queue = $1 AND task_version = 3', [
    queue,
  ]);
  const expire = createExpirePending({
    db: one.db,
    queues: await world.queues(),
    onFinished: () => {},
    onFreed: () => {},
  });
  assert.equal(await expire.runOnce(), 1);
  assert.deepEqual(await holds(queue), ['1:2', '2:0']);
});

test('when several of the highest expire together the one behind them becomes claimable', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2, 3, 4, 5);
  await world.sql.query('UPDATE task_scheduler_tasks SET pending_since = 0 WHERE queue = $1 AND task_version > 1', [
    queue,
  ]);
  const expire = createExpirePending({
    db: one.db,
    queues: await world.queues(),
    onFinished: () => {},
    onFreed: () => {},
  });
  assert.equal(await expire.runOnce(), 4);
  assert.deepEqual(await holds(queue), ['1:0']);
});

test('a version that is not due yet blocks nothing; when it falls due it goes first', async () => {
  const queue = await addQueue();
  await submit(queue, 1);
  await world.submit({ queue, taskId: 1, taskVersion: 2, runAt: (await world.now()) + HOUR_MS });
  assert.deepEqual(await holds(queue), ['1:0', '2:1']);
  await world.sql.query('UPDATE task_scheduler_tasks SET ready_at = 1 WHERE queue = $1 AND hold = 1', [queue]);
  await promote();
  assert.deepEqual(await holds(queue), ['1:2', '2:0']);
  assert.deepEqual(await claimNames(queue), ['1/2']);
});

test('a version that waits for its retry blocks nothing', async () => {
  const queue = await addQueue({ retry_strategy: 'fixed', retry_base_ms: HOUR_MS });
  await submit(queue, 2);
  await settle((await claim(queue, 1))[0]!.attempt_id, 'parser_failed');
  await world.sql.query(
    `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, place, status, priority, level, payload,
       max_retries, pending_since, create_at, update_at)
     VALUES ($1, 1, 1, 0, 0, 5, 5, '{}', 0, docsched_now(), 0, 0)`,
    [queue],
  );
  assert.deepEqual(await claimNames(queue), ['1/1']);
});

test('a version put off to later by a new submit lets the ones behind it through', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  await world.submit({ queue, taskId: 1, taskVersion: 2, runAt: (await world.now()) + HOUR_MS });
  assert.deepEqual(await claimNames(queue), ['1/1']);
});

for (const verdict of ['parser_failed', 'busy'] as const)
  test(`an older version that comes back (${verdict}) goes behind the newer one that waits`, async () => {
    const queue = await addQueue();
    await submit(queue, 1);
    const [first] = await claim(queue, 1);
    await submit(queue, 2);
    await settle(first!.attempt_id, verdict);
    await promote();
    assert.deepEqual(await holds(queue), ['1:2', '2:0']);
    assert.deepEqual([...(await claimNames(queue)), ...(await claimNames(queue))], ['1/2', '1/1']);
  });

test('an older version that comes back behind two newer ones waits behind both, and the highest gets its place', async () => {
  const queue = await addQueue({ retry_demote: 0 });
  await world.submit({ queue, taskId: 1, taskVersion: 1, priority: 1 });
  const [first] = await claim(queue, 1);
  await submit(queue, 2, 3);
  await settle(first!.attempt_id, 'parser_failed');
  await promote();
  assert.deepEqual(await holds(queue), ['1:2', '2:2', '3:0']);
  const tasks = await world.tasks(queue);
  assert.deepEqual([tasks[2]!.level, tasks[2]!.place], [1, tasks[0]!.place]);
});

test('versions that are not due yet do not hide the ones that wait', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  const runAt = (await world.now()) + HOUR_MS;
  for (const taskVersion of [3, 4, 5]) await world.submit({ queue, taskId: 1, taskVersion, runAt });
  assert.deepEqual([...(await claimNames(queue)), ...(await claimNames(queue))], ['1/2', '1/1']);
});

/** Somebody's open transaction that holds a version of task 1 while `work` goes on. */
async function whileHeld(queue: string, version: number, work: () => Promise<void>): Promise<void> {
  const other = new pg.Client(world.url);
  await other.connect();
  try {
    const text = 'SELECT 1 FROM task_scheduler_tasks WHERE queue = $1 AND task_version = $2 FOR UPDATE';
    await other.query('BEGIN');
    await other.query(text, [queue, version]);
    await work();
  } finally {
    await other.end();
  }
}

test('a version that is being claimed at this moment blocks nothing any more', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  await whileHeld(queue, 2, async () => {
    await world.order({ queue, taskId: 1, taskVersion: 1 });
    assert.deepEqual(await holds(queue), ['1:0', '2:0']);
    assert.deepEqual(await claimNames(queue), [], 'its claim is not committed: the older one still waits');
  });
  assert.deepEqual(await claimNames(queue), ['1/2']);
});

test('a blocked version that somebody holds while a newer one takes the lead is freed when that one is claimed', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  await claim(queue, 1, { crash: true });
  await whileHeld(queue, 1, () => submit(queue, 3));
  assert.deepEqual(await holds(queue), ['1:2', '3:0']);
  assert.deepEqual([...(await claimNames(queue)), ...(await claimNames(queue))], ['1/3', '1/1']);
});

test('a newer version that comes back goes before the older one that waits', async () => {
  const queue = await addQueue();
  await submit(queue, 1, 2);
  const [second] = await claim(queue, 1);
  assert.deepEqual(await holds(queue), ['1:0']);
  await settle(second!.attempt_id, 'parser_failed');
  await promote();
  assert.deepEqual(await holds(queue), ['1:2', '2:0']);
});

test('the highest takes over the best place in line that a waiting version holds', async () => {
  const queue = await addQueue();
  await world.submit({ queue, taskId: 1, taskVersion: 1, priority: 2 });
  await world.fill(queue, 2, 3, 101);
  await world.submit({ queue, taskId: 1, taskVersion: 2, priority: 4 });
  const [first, second] = await world.tasks(queue);
  assert.deepEqual([second!.level, second!.place, second!.priority], [2, first!.place, 4]);
  assert.deepEqual(await claimNames(queue, 1), ['1/2']);
});

test('a document edited all the time is not pushed to the back', async () => {
  const queue = await addQueue();
  await submit(queue, 1);
  for (let version = 2; version <= 20; version++) {
    await world.fill(queue, 5, 1, 100 + version);
    await submit(queue, version);
  }
  assert.deepEqual((await claimNames(queue, 2))[0], '1/20');
});

test('a version with a better priority than the ones behind it keeps its own place', async () => {
  const queue = await addQueue();
  await world.submit({ queue, taskId: 1, taskVersion: 1, priority: 4 });
  await world.submit({ queue, taskId: 1, taskVersion: 2, priority: 1 });
  const [, second] = await world.tasks(queue);
  assert.deepEqual([second!.level, second!.place], [1, second!.id]);
});

test('the place goes on to the next version when the highest is claimed', async () => {
  const queue = await addQueue();
  await world.submit({ queue, taskId: 1, taskVersion: 1, priority: 1 });
  await world.fill(queue, 1, 2, 101);
  await submit(queue, 2, 3);
  const claimed = [];
  for (let i = 0; i < 3; i++) claimed.push(...(await claimNames(queue, 1)));
  assert.deepEqual(claimed, ['1/3', '1/2', '1/1']);
});

test('versions that a crash left blocked are freed by the clean-up', async () => {
  const queue = await addQueue();
  for (let taskId = 1; taskId <= 3; taskId++)
    for (let taskVersion = 1; taskVersion <= 3; taskVersion++) await world.submit({ queue, taskId, taskVersion });
  assert.deepEqual(named(await claim(queue, 10, { crash: true })), ['1/3', '2/3', '3/3']);
  assert.deepEqual(await claimNames(queue), []);
  await clean();
  assert.deepEqual(await holds(queue), ['1:2', '2:0', '1:2', '2:0', '1:2', '2:0']);
  assert.deepEqual(await claimNames(queue), ['1/2', '2/2', '3/2']);
});

test('a thousand stranded tasks are freed in one clean-up', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 1_200);
  await world.sql.query('UPDATE task_scheduler_tasks SET hold = 2 WHERE queue = $1', [queue]);
  await clean();
  assert.equal((await holds(queue)).filter((hold) => hold === '1:0').length, 1_200);
});

test('ordering twice at once on every version of a task leaves one claimable and nothing lost', async () => {
  const queue = await addQueue();
  const other = world.openDb(4);
  for (let round = 0; round < 30; round++) {
    await world.submit(...[1, 2, 3, 4].map((version) => ({ queue, taskId: 100 + round, taskVersion: version })));
    await world.sql.query('UPDATE task_scheduler_tasks SET hold = 0, has_blocked = false WHERE queue = $1', [queue]);
    await Promise.all(
      [1, 2, 3, 4].flatMap((version) =>
        [one.db, other].map((db) => db.query('order_versions', [[queue], [100 + round], [version]])),
      ),
    );
    const claimed = [];
    for (let i = 0; i < 4; i++) claimed.push(...named(await claim(queue, 4)));
    assert.deepEqual(
      claimed,
      [4, 3, 2, 1].map((version) => `${100 + round}/${version}`),
    );
  }
});

const operation = fc.oneof(
  { weight: 4, arbitrary: fc.record({ op: fc.constant('submit' as const), task: fc.nat(2), later: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ op: fc.constant('claim' as const), room: fc.integer({ min: 1, max: 3 }) }) },
  { weight: 2, arbitrary: fc.record({ op: fc.constant('return' as const), busy: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constant('finish' as const) }) },
  { weight: 2, arbitrary: fc.record({ op: fc.constant('promote' as const) }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constant('due' as const) }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constant('cancel' as const), task: fc.nat(2), version: fc.nat(12) }) },
  { weight: 1, arbitrary: fc.record({ op: fc.constant('again' as const), task: fc.nat(2), version: fc.nat(12) }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer T> ? T : never;

/** One of the actors; attempts and versions are shared with the other. */
async function act(queue: string, from: Instance, shared: { open: string[]; next: number[] }, step: Operation) {
  switch (step.op) {
    case 'submit': {
      const runAt = step.later ? (await world.now()) + HOUR_MS : null;
      return world.submit({ queue, taskId: step.task, taskVersion: ++shared.next[step.task]!, runAt });
    }
    case 'again':
      return world.submit({ queue, taskId: step.task, taskVersion: step.version });
    case 'claim':
      return void shared.open.push(...(await claim(queue, step.room, { from })).map((task) => task.attempt_id));
    case 'return': {
      const attemptId = shared.open.shift();
      return attemptId && settle(attemptId, step.busy ? 'busy' : 'parser_failed', from);
    }
    case 'finish': {
      const attemptId = shared.open.pop();
      return attemptId && settle(attemptId, 'success', from);
    }
    case 'promote':
      return promote(from);
    case 'due':
      return world.sql.query('UPDATE task_scheduler_tasks SET ready_at = 1 WHERE queue = $1 AND ready_at > 1', [queue]);
    case 'cancel':
      return world.cancel({ queue, taskId: step.task, taskVersion: step.version });
    default:
      return step satisfies never;
  }
}

test('whatever two actors do at once, no version goes backwards and in the end each was claimed', async () => {
  const two = await world.instance();
  const actions = fc.array(operation, { minLength: 10, maxLength: 30 });
  await fc.assert(
    fc.asyncProperty(actions, actions, async (mine, others) => {
      const queue = await addQueue({ max_retries: 1_000 });
      const shared = { open: [], next: [0, 0, 0] };
      const play = async (from: Instance, steps: Operation[]) => {
        for (const step of steps) await act(queue, from, shared, step);
      };
      await Promise.all([play(one, mine), play(two, others)]);
      await drain(queue, shared.open);
      const left = (await world.tasks(queue)).filter(({ status }) => status !== 2 && status !== 4);
      assert.deepEqual(left, []);
      const unclaimed = (await world.tasks(queue)).filter(({ status, attempt }) => status === 2 && attempt === 0);
      assert.deepEqual(unclaimed, []);
    }),
    { numRuns: 40 },
  );
});

/** Claims and finishes everything. Nobody crashed, so nothing needs the clean-up. */
async function drain(queue: string, open: string[]): Promise<void> {
  await world.sql.query('UPDATE task_scheduler_tasks SET ready_at = 1 WHERE queue = $1 AND ready_at > 1', [queue]);
  do {
    for (const attemptId of open.splice(0)) await settle(attemptId, 'success');
    await promote();
    open.push(...(await claim(queue, 5)).map((task) => task.attempt_id));
  } while (open.length > 0);
}

const MANY = 100_000;

/** Blocked versions as ordering leaves them: `versions` of each of `tasks` tasks, the highest claimable. */
async function fillVersions(queue: string, tasks: number, versions: number, from = 1): Promise<void> {
  await world.sql.query(
    `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, id, place, status, hold, has_blocked, priority,
       level, payload, max_retries, pending_since, create_at, update_at)
     SELECT $1, n, v, i, i, 0, CASE WHEN v = $3::bigint THEN 0 ELSE 2 END, v = $3::bigint AND v > 1, 5, 5, '{}', 3,
            docsched_now(), docsched_now(), docsched_now()
     FROM (
       SELECT n, v, nextval('task_ids') AS i
       FROM generate_series($4::bigint, $4::bigint + $2 - 1) n, generate_series(1, $3::bigint) v
     ) f`,
    [queue, tasks, versions, from],
  );
}

/** A claim that walks the 100,000 versions of one task costs some 200 times as much. */
const MAX_COST_RATIO = 2;
const lowerQuartile = (values: number[]): number => values.toSorted((a, b) => a - b)[Math.floor(values.length / 4)]!;

/** Ratio of the time of claims in `queue` to that in `base`, over interleaved runs; of each the lower quartile. */
async function costRatio(queue: string, base: string, room: number): Promise<number> {
  const times = { [queue]: [] as number[], [base]: [] as number[] };
  for (let run = 0; run < 60; run++)
    for (const name of run % 2 ? [queue, base] : [base, queue]) {
      const settings = await world.queue(name);
      const startedAt = performance.now();
      const { tasks } = await one.claim(settings, room);
      times[name]!.push(performance.now() - startedAt);
      assert.equal(tasks.length, room);
      const heads = tasks.filter((task) => task.has_blocked);
      const columns = [heads.map(() => name), heads.map((t) => t.task_id), heads.map((t) => t.task_version)];
      if (heads.length > 0) await one.db.query('order_versions', columns);
    }
  return lowerQuartile(times[queue]!) / lowerQuartile(times[base]!);
}

test('100,000 blocked versions cost a claim nothing, be they of many tasks or of one', async () => {
  const [base, pairs, deep] = [await addQueue(), await addQueue(), await addQueue()];
  await fillVersions(base, MANY, 1);
  await fillVersions(pairs, MANY, 2);
  await fillVersions(deep, 1, MANY);
  await fillVersions(deep, MANY / 10, 1, 2);
  await world.sql.query('VACUUM ANALYZE task_scheduler_tasks');
  for (const [queue, room] of [
    [pairs, 32],
    [deep, 1],
  ] as const) {
    // Noise only adds to one of the two: a ratio that is really above the bound stays above it.
    const ratios = [await costRatio(queue, base, room)];
    while (ratios.at(-1)! > MAX_COST_RATIO && ratios.length < 4) ratios.push(await costRatio(queue, base, room));
    assert.ok(ratios.at(-1)! <= MAX_COST_RATIO, `${queue}: ${ratios.map((ratio) => ratio.toFixed(2))}`);
  }
});
