/** Steps (a) to (c) of the slot protocol against PostgreSQL: what is claimed, in which order, and when nothing is. */
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import pg from 'pg';
import { AppError } from '../../src/errors.ts';
import { loadStatements } from '../../src/schema.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, newId, queueNames, TARGET, type World } from '../support/world.ts';

const MINUTE_MS = 60_000;
const CLASSIC = [80, 0, 0, 0, 20];
const nextName = queueNames();

let world: World;
let one: Instance;

before(async () => {
  world = await createWorld('claim');
  one = await world.instance();
});
after(() => world.end());

const connections: pg.Client[] = [];
afterEach(async () => {
  for (const connection of connections.splice(0)) await connection.end();
});
/** An open transaction on a connection of its own, which ends with the test. */
async function transaction(): Promise<pg.Client> {
  const connection = new pg.Client(world.url);
  connections.push(connection);
  await connection.connect();
  await connection.query('SET lock_timeout = 10000; BEGIN');
  return connection;
}

const addQueue = (columns: Record<string, unknown> = {}) =>
  world.addQueue(nextName(), { concurrency_limit: 100_000, ...columns });
const claim = async (queue: string, room: number, { from = one } = {}) => from.claim(await world.queue(queue), room);
const claimedIds = async (queue: string, room: number, from = one): Promise<number[]> =>
  (await claim(queue, room, { from })).tasks.map((task) => Number(task.task_id));
const inUse = async (queue: string) => (await one.limiter.usage([queue])).get(queue);
const manyInstances = (count: number) => Promise.all(Array.from({ length: count }, () => world.instance()));
const count = <T>(values: T[], value: T): number => values.filter((one) => one === value).length;

test('inside a level the oldest goes first', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 5, 11);
  await world.fill(queue, 5, 5, 1);
  assert.deepEqual(await claimedIds(queue, 7), [11, 12, 13, 14, 15, 1, 2]);
  assert.deepEqual(await claimedIds(queue, 7), [3, 4, 5]);
  assert.deepEqual(await claimedIds(queue, 7), []);
});

test('levels share the claims by weight, evenly spread', async () => {
  const queue = await addQueue({ priority_weights: CLASSIC });
  await world.fill(queue, 1, 300);
  await world.fill(queue, 5, 300, 1001);
  const levels: number[] = [];
  for (const room of [1, 1, 1, 1, 1, 45, 50, 100]) {
    const { tasks } = await claim(queue, room);
    assert.equal(tasks.length, room);
    levels.push(...tasks.map((task) => task.level));
  }
  assert.equal(count(levels, 5), 40);
  for (let i = 0; i + 5 <= levels.length; i++) assert.equal(count(levels.slice(i, i + 5), 5), 1, `from ${i} on`);
});

test('the turns of empty levels go to the others by weight, and so does what a short level leaves', async () => {
  const queue = await addQueue();
  await world.fill(queue, 2, 100);
  await world.fill(queue, 3, 5, 1001);
  await world.fill(queue, 4, 100, 2001);
  const levels = (await claim(queue, 95)).tasks.map((task) => task.level);
  assert.equal(count(levels, 3), 5);
  assert.ok(Math.abs(count(levels, 2) - 60) <= 1, `${count(levels, 2)} of level 2`);
});

test('weight 0 is claimed only when all other levels are empty', async () => {
  const queue = await addQueue({ priority_weights: CLASSIC });
  await world.fill(queue, 3, 10);
  await world.fill(queue, 1, 4, 1001);
  await world.fill(queue, 5, 4, 2001);
  const levels = (await claim(queue, 10)).tasks.map((task) => task.level);
  assert.deepEqual(levels.slice(8), [3, 3]);
  assert.ok(!levels.slice(0, 8).includes(3));
});

for (const instances of [1, 3])
  test(`${instances} claimers on endless backlogs at 1 and 5: at least 15% of any 200 consecutive claims are level 5`, async () => {
    const queue = await addQueue();
    await world.fill(queue, 1, 2_000);
    await world.fill(queue, 5, 2_000, 10_001);
    const claims: { at: number; round: number; turn: number; level: number }[] = [];
    let rounds = 0;
    const work = async (instance: Instance) => {
      while (claims.length < 1_500) {
        const round = rounds++;
        const { tasks } = await claim(queue, 1 + Math.floor(Math.random() * 60), { from: instance });
        for (const [turn, task] of tasks.entries())
          claims.push({ at: Number(task.started_at), round, turn, level: task.level });
      }
    };
    await Promise.all((await manyInstances(instances)).map(work));
    const levels = claims
      .toSorted((a, b) => a.at - b.at || a.round - b.round || a.turn - b.turn)
      .map(({ level }) => level);
    for (let i = 0; i + 200 <= levels.length; i++) {
      const share = count(levels.slice(i, i + 200), 5);
      assert.ok(share >= 30, `${share} of the 200 claims from ${i} on`);
    }
  });

test('eight claimers at once claim every task once', async () => {
  const queue = await addQueue();
  for (const level of [1, 3, 5]) await world.fill(queue, level, 200, level * 1_000);
  const instances = await manyInstances(8);
  const claimed: string[] = [];
  await Promise.all(
    instances.map(async (from) => {
      for (let empty = 0; empty < 5; ) {
        const { tasks } = await claim(queue, 16, { from });
        claimed.push(...tasks.map((task) => task.task_id));
        if (tasks.length === 0) empty += 1;
      }
    }),
  );
  assert.equal(claimed.length, 600);
  assert.equal(new Set(claimed).size, 600);
  assert.deepEqual([...new Set((await world.tasks(queue)).map((task) => `${task.status} ${task.attempt}`))], ['1 1']);
  assert.equal((await world.openAttempts(queue)).length, 600);
  assert.equal(await inUse(queue), 600);
});

test('a claim opens an attempt under the id of its slot', async () => {
  const queue = await addQueue({ targets: [{ url: 'http://here.test/' }] });
  await world.submit({ queue, taskId: 7, taskVersion: 3, priority: 2, payload: '{"a": 1}' });
  const { tasks } = await claim(queue, 5);
  const task = await world.task({ queue, taskId: 7, taskVersion: 3 });
  const attempt = await world.attempt(tasks[0]!.attempt_id);
  assert.equal(tasks.length, 1);
  assert.match(tasks[0]!.attempt_id, /^[A-Za-z0-9_-]{32}$/);
  assert.equal(task.attempt_id, attempt.attempt_id);
  assert.deepEqual(
    [task.status, task.attempt, task.started_at, task.deadline, task.update_at],
    [1, 1, attempt.claimed_at, attempt.deadline, attempt.claimed_at],
  );
  assert.deepEqual(
    { ...attempt, attempt_id: '', claimed_at: 0, deadline: 0, max_deadline: 0 },
    {
      attempt_id: '',
      task_row_id: task.id,
      queue,
      task_id: 7,
      task_version: 3,
      claimed_at: 0,
      deadline: 0,
      max_deadline: 0,
      accepted_at: null,
      closed_at: null,
      progress_at: null,
      number: 1,
      progress_percent: null,
      target: 'http://here.test/',
      retry: false,
      outcome: null,
      error: null,
      progress_message: null,
    },
  );
  assert.deepEqual([tasks[0]!.payload, tasks[0]!.priority, tasks[0]!.attempt], ['{"a": 1}', 2, 1]);
  assert.equal(Number(tasks[0]!.deadline), attempt.deadline);
});

test('attempt ids are never used twice, and unused ones leave no trace', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 3);
  await claim(queue, 20);
  assert.equal(await inUse(queue), 3);
  const slots = await world.rows('SELECT attempt_id FROM limiter_slots WHERE queue = $1 ORDER BY 1', [queue]);
  assert.deepEqual(
    slots.map((slot) => slot.attempt_id),
    await world.openAttempts(queue),
  );
});

test('the deadline is processing_expired_ms after the claim, the last one processing_max_ms', async () => {
  const queue = await addQueue({ processing_expired_ms: 5 * MINUTE_MS, processing_max_ms: 60 * MINUTE_MS });
  await world.fill(queue, 5, 2);
  const before = await world.now();
  const first = await world.attempt((await claim(queue, 1)).tasks[0]!.attempt_id);
  assert.ok(first.claimed_at >= before && first.claimed_at <= (await world.now()));
  assert.equal(first.deadline - first.claimed_at, 5 * MINUTE_MS);
  assert.equal(first.max_deadline - first.claimed_at, 60 * MINUTE_MS);
  await world.setQueue(queue, { processing_max_ms: MINUTE_MS });
  const second = await world.attempt((await claim(queue, 1)).tasks[0]!.attempt_id);
  assert.equal(second.max_deadline, second.deadline);
});

test('a claim never takes more than the free slots, however much room there is', async () => {
  const queue = await addQueue({ concurrency_limit: 5 });
  await world.fill(queue, 5, 20);
  const first = await claim(queue, 16);
  assert.deepEqual([first.tasks.length, first.more], [5, false]);
  assert.deepEqual((await claim(queue, 16)).tasks, []);
  assert.equal((await world.openAttempts(queue)).length, 5);
  await one.settler.settle({ attemptId: first.tasks[0]!.attempt_id, verdict: 'success' });
  await eventually(async () => (await inUse(queue)) === 4);
  assert.equal((await claim(queue, 16)).tasks.length, 1);
});

test('eight claimers at once never open more attempts than the limit', async () => {
  const queue = await addQueue({ concurrency_limit: 7 });
  await world.fill(queue, 5, 300);
  const instances = await manyInstances(8);
  let most = 0;
  for (let round = 0; round < 10; round++) {
    const rounds = await Promise.all(instances.map((from) => claim(queue, 4, { from })));
    assert.equal(rounds.flatMap(({ lost }) => lost).length, 0);
    const open = await world.openAttempts(queue);
    assert.ok(open.length <= 7, `${open.length} open`);
    most = Math.max(most, open.length);
    await Promise.all(open.map((attemptId) => one.settler.settle({ attemptId, verdict: 'success' })));
    await eventually(async () => (await inUse(queue)) === 0);
  }
  assert.equal(most, 7);
});

test('after a lowered limit nothing is claimed until enough attempts have closed', async () => {
  const queue = await addQueue({ concurrency_limit: 4 });
  await world.fill(queue, 5, 10);
  const { tasks } = await claim(queue, 4);
  await world.setQueue(queue, { concurrency_limit: 2 });
  for (const { attempt_id } of tasks.slice(0, 2)) {
    assert.deepEqual((await claim(queue, 4)).tasks, []);
    await one.settler.settle({ attemptId: attempt_id, verdict: 'success' });
  }
  await eventually(async () => (await inUse(queue)) === 2);
  assert.deepEqual((await claim(queue, 4)).tasks, []);
});

test('a round says whether there is more to claim right away', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 10);
  assert.equal((await claim(queue, 6)).more, true);
  assert.equal((await claim(queue, 6)).more, false);
});

test('a queue is drained when all there was is claimed, and nothing was held back for want of slots or targets', async () => {
  const drained = async (queue: string, room: number) => (await claim(queue, room)).drained;
  const queue = await addQueue({ concurrency_limit: 6 });
  await world.fill(queue, 5, 9);
  assert.equal(await drained(queue, 2), false, 'more waits than there was room for');
  assert.equal(await drained(queue, 8), false, 'more waits than there were slots');
  assert.equal(await drained(queue, 8), false, 'no slot was free');
  await world.setQueue(queue, { concurrency_limit: 100 });
  assert.equal(await drained(queue, 3), false, 'nobody looked behind the last one');
  assert.equal(await drained(queue, 8), true);

  const retries = await addQueue({ concurrency_limit: 10, retry_share: 0.2 });
  await world.fill(retries, 5, 4);
  await world.sql.query('UPDATE task_scheduler_tasks SET retry_count = 1 WHERE queue = $1', [retries]);
  assert.equal(await drained(retries, 8), false, 'two retries wait for their share');

  const busy = await addQueue({
    targets: [{ url: 'http://ramping.test/', mode: 'async', batch: 1, push_timeout_ms: 1_000 }],
  });
  await world.fill(busy, 5, 20);
  await world.sql.query(`INSERT INTO targets (url, failures, not_before, failed_at, ramp_from, ramp_claimed)
    VALUES ('http://ramping.test/', 0, 0, 0, docsched_now(), 0)`);
  assert.equal(await drained(busy, 16), false, 'the target takes a few for now');
});

test('rows another claim is taking are passed over, and there is more', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 4);
  const other = await transaction();
  await other.query('SELECT 1 FROM task_scheduler_tasks WHERE queue = $1 AND task_id < 4 FOR UPDATE', [queue]);
  const round = await claim(queue, 3);
  await other.query('ROLLBACK');
  assert.deepEqual(
    round.tasks.map((task) => task.task_id),
    ['4'],
  );
  assert.equal(round.more, true);
  assert.deepEqual(await claimedIds(queue, 3), [1, 2, 3]);
});

test('what is delayed, blocked, Processing or finished is not claimed', async () => {
  const queue = await addQueue();
  await world.submit({ queue, taskId: 1, taskVersion: 1, runAt: (await world.now()) + MINUTE_MS });
  for (const taskVersion of [1, 2]) await world.submit({ queue, taskId: 2, taskVersion });
  const tasks = (await claim(queue, 10)).tasks;
  assert.deepEqual(
    tasks.map((task) => `${task.task_id}/${task.task_version}`),
    ['2/2'],
  );
  await one.settler.settle({ attemptId: tasks[0]!.attempt_id, verdict: 'success' });
  assert.deepEqual((await claim(queue, 10)).tasks, []);
});

test('one queue never claims from another', async () => {
  const [queue, other] = [await addQueue(), await addQueue()];
  await world.fill(other, 1, 5);
  assert.deepEqual((await claim(queue, 5)).tasks, []);
  assert.equal(await inUse(other), 0);
});

test('a claim under another epoch than the one in force takes nothing and gives its slots back', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 3);
  const [{ epoch }] = (await world.rows<{ epoch: string }>('SELECT epoch FROM limiter_state')) as [{ epoch: string }];
  await world.sql.query(`UPDATE limiter_state SET epoch = 'another'`);
  const round = await claim(queue, 3);
  await world.sql.query('UPDATE limiter_state SET epoch = $1', [epoch]);
  assert.deepEqual([round.tasks, round.lost, round.more], [[], [], false]);
  assert.deepEqual(await world.openAttempts(queue), []);
  assert.equal(await inUse(queue), 0);
  assert.equal((await claim(queue, 3)).tasks.length, 3);
});

test('a claim waits for no proof that the store was seen, and a new epoch waits for claims in flight', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 1);
  const statements = loadStatements();
  const epoch = one.limiter.epoch()!;
  const params = [queue, [newId()], 0, [5], [0], [0], [1], [false], null, epoch, [TARGET], [0], [0, 0, 0, 0, 0]];
  const [claimer, bumper] = [await transaction(), await transaction()];
  assert.equal((await claimer.query(statements.claim_tasks!, params)).rows[0].gate, 'open');
  await world.sql.query('UPDATE limiter_state SET seen_at = docsched_now() - 2000');
  await one.db.query('limiter_see_store', [epoch, 'somebody']);
  const bump = bumper.query(statements.limiter_bump_epoch!, [epoch, 'next', 'postgres', 'somebody', 3_000]);
  const waiting = `SELECT 1 FROM pg_stat_activity WHERE query LIKE '%puts a new epoch in force%' AND wait_event_type = 'Lock'
    AND datname = current_database()`;
  await eventually(async () => (await world.rows(waiting)).length === 1);
  await claimer.query('COMMIT');
  assert.deepEqual((await bump).rows, [{ epoch: 'next' }]);
  await bumper.query('ROLLBACK');
  assert.equal((await world.openAttempts(queue)).length, 1);
});

test('while the limiter is closed nothing is claimed', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 1);
  const closed = await world.instance({ between: (limiter) => ({ ...limiter, epoch: () => null }) });
  assert.deepEqual((await claim(queue, 1, { from: closed })).tasks, []);
  assert.equal((await world.task({ queue, taskId: 1, taskVersion: 1 })).status, 0);
});

test('a claimed task whose slot went to others is lost, and the others are pushed', async () => {
  const queue = await addQueue({ concurrency_limit: 3 });
  await world.fill(queue, 5, 3);
  const robbed = await world.instance({
    between: (limiter) => ({
      ...limiter,
      confirm: async (queue, batch, limits) => {
        await one.limiter.release(queue, batch.claimed.slice(0, 2));
        await one.limiter.acquire(queue, [newId()], limits);
        return limiter.confirm(queue, batch, limits);
      },
    }),
  });
  const round = await claim(queue, 3, { from: robbed });
  assert.deepEqual([round.tasks.length, round.lost.length], [2, 1]);
  assert.equal(await inUse(queue), 3);
});

test('when the limiter cannot confirm, everything claimed is lost', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 3);
  const cut = await world.instance({
    between: (limiter) => ({ ...limiter, confirm: () => Promise.reject(new Error('the store is away')) }),
  });
  const round = await claim(queue, 3, { from: cut });
  assert.deepEqual([round.tasks.length, round.lost.length], [0, 3]);
});

/** A database whose connection breaks after, or before, the claim's COMMIT. */
const breaking = (committed: boolean) =>
  world.instance({
    over: (db) => ({
      ...db,
      query: async (name, params) => {
        if (name !== 'claim_tasks') return db.query(name, params);
        if (committed) await db.query(name, params);
        throw new AppError('store_unavailable', 'the connection broke');
      },
    }),
  });

test('a claim that committed without an answer is found by its attempt ids and pushed', async () => {
  const queue = await addQueue();
  await world.fill(queue, 2, 3);
  const round = await claim(queue, 10, { from: await breaking(true) });
  assert.deepEqual(
    round.tasks.map((task) => [task.task_id, task.level, task.attempt, task.payload]),
    (await world.tasks(queue)).map((task) => [String(task.task_id), 2, 1, '{}']),
  );
  assert.deepEqual(round.tasks.map((task) => task.attempt_id).toSorted(), await world.openAttempts(queue));
  assert.equal(await inUse(queue), 3);
});

test('a claim that may still commit keeps its slots: only reconciliation drops them', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 3);
  await assert.rejects(claim(queue, 10, { from: await breaking(false) }), AppError);
  assert.equal(await inUse(queue), 10);
  await world.sql.query('UPDATE limiter_slots SET touched_at = touched_at - 20000 WHERE queue = $1', [queue]);
  await one.limiter.reconcile();
  assert.equal(await inUse(queue), 0);
});

test('a claim that PostgreSQL refused gives its slots back at once', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 3);
  const refused = await world.instance({
    over: (db) => ({
      ...db,
      query: (name, params) => db.query(name, name === 'claim_tasks' ? params.with(3, ['no level']) : params),
    }),
  });
  await assert.rejects(claim(queue, 10, { from: refused }), /claim_tasks/);
  assert.equal(await inUse(queue), 0);
});

test('a task cancelled before its claim was found again is not pushed, and keeps its slot until that is settled', async () => {
  const queue = await addQueue();
  await world.fill(queue, 5, 2);
  const cut = await world.instance({
    over: (db) => ({
      ...db,
      query: async (name, params) => {
        const rows = await db.query<never>(name, params);
        if (name !== 'claim_tasks') return rows;
        await world.cancel({ queue, taskId: 1, taskVersion: 1 });
        throw new AppError('store_unavailable', 'the connection broke');
      },
    }),
  });
  const { tasks, lost } = await claim(queue, 10, { from: cut });
  assert.deepEqual(
    [tasks, lost].map((some) => some.map((task) => task.task_id)),
    [['2'], ['1']],
  );
  assert.equal(await inUse(queue), 2);
  assert.equal((await one.settler.settle({ attemptId: lost[0]!.attempt_id, verdict: 'unsent' })).outcome, 'stale');
  await eventually(async () => (await inUse(queue)) === 1);
});
