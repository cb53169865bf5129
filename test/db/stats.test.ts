/**
 * The numbers of tasks: exact at every moment whatever changes them, cheap whatever their number, and shown by the view
 * task_stats and the gauges.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, beforeEach, test } from 'node:test';
import pg from 'pg';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { createMetrics } from '../../src/metrics.ts';
import { createSampler } from '../../src/sample.ts';
import { STATUS } from '../../src/task.ts';
import { createExpirePending } from '../../src/watcher/expire-pending.ts';
import { createFoldCounts } from '../../src/watcher/fold-counts.ts';
import { createRetain } from '../../src/watcher/retain.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, type World } from '../support/world.ts';

const MANY = 200_000;
const LARGE = ['task_scheduler_tasks', 'attempts', 'version_floors'];
const TIMES = 'docsched_counted_ms(status, hold, pending_since, started_at, finished_at, reason)';

let world: World;
let one: Instance;

before(async () => {
  world = await createWorld('stats');
  one = await world.instance();
});
after(() => world.end());
beforeEach(async () => {
  await world.sql.query('TRUNCATE task_scheduler_tasks, attempts, version_floors');
});

const fold = () => createFoldCounts({ db: world.db }).runOnce();
/** A transaction in any database of the server holds notes back until it ends. */
const HELD_BACK = { timeoutMs: 60_000 };
/** Folds exactly `expected`, in time. */
async function foldAll(expected: number): Promise<void> {
  let folded = 0;
  await eventually(async () => {
    folded += await fold();
    assert.ok(folded >= expected, `${folded} of ${expected}`);
  }, HELD_BACK);
  assert.equal(folded, expected);
}

/** What the counts and the table say differently, in one snapshot. */
const differences = (client: pg.Pool | pg.Client = world.sql) =>
  client.query(`
    WITH stored AS (
      SELECT queue, status, hold, count(*) AS tasks, count(ms) AS timed, coalesce(sum(ms), 0) AS time_ms
      FROM (SELECT queue, status, hold, ${TIMES} AS ms FROM task_scheduler_tasks) t
      GROUP BY queue, status, hold),
    counted AS (
      SELECT queue, status, hold, tasks, timed, time_ms FROM task_counts_now WHERE (tasks, timed, time_ms) <> (0, 0, 0))
    (SELECT 'stored', * FROM stored EXCEPT SELECT 'stored', * FROM counted)
    UNION ALL
    (SELECT 'counted', * FROM counted EXCEPT SELECT 'counted', * FROM stored)`);
const assertExact = async (client?: pg.Pool | pg.Client) => assert.deepEqual((await differences(client)).rows, []);

async function connect(t: { after(fn: () => unknown): void }): Promise<pg.Client> {
  const client = new pg.Client(world.url);
  await client.connect();
  t.after(() => client.end());
  return client;
}

type Stat = {
  queue: string;
  status: string;
  tasks: number;
  oldest_age_ms: number | null;
  avg_duration_ms: number | null;
};
const stats = async (queue: string): Promise<Record<string, Stat>> => {
  const rows = await world.rows<Stat>('SELECT * FROM task_stats WHERE queue = $1', [queue]);
  assert.deepEqual(
    rows.map(({ status }) => status),
    STATUS,
  );
  return Object.fromEntries(rows.map((row) => [row.status, row]));
};

/** One of the things that happen to tasks. */
async function disturb(queue: string, n: number): Promise<unknown> {
  const taskId = n % 40;
  switch (n % 9) {
    case 0:
    case 1:
      return world.submit({ queue, taskId, taskVersion: n, runAt: n % 4 ? null : (await world.now()) + 60_000 });
    case 2:
    case 3: {
      const { tasks } = await one.claim(await world.queue(queue), 5);
      const verdicts = ['success', 'parser_failed', 'refused', 'unsent'] as const;
      return Promise.all(
        tasks.map(({ attempt_id: attemptId }, i) =>
          one.settler.settle({ attemptId, verdict: verdicts[(n + i) % 4]!, statusCode: '0', statusMsg: null }),
        ),
      );
    }
    case 4:
      return world.sql.query('DELETE FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2 AND status > 2', [
        queue,
        taskId,
      ]);
    case 5: {
      const [task] = await world.rows<{ task_version: number }>(
        'SELECT task_version FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2 LIMIT 1',
        [queue, taskId],
      );
      return task && world.cancel({ queue, taskId, taskVersion: task.task_version });
    }
    case 6:
      await world.sql.query('UPDATE task_scheduler_tasks SET pending_since = 1 WHERE queue = $1 AND task_id = $2', [
        queue,
        taskId,
      ]);
      return createExpirePending({
        db: world.db,
        queues: await world.queues(),
        onFinished: () => {},
        onFreed: () => {},
      }).runOnce();
    case 7:
      return createRetain({ db: world.db, queues: await world.queues() }).runOnce();
    default:
      return world.db.query('promote_tasks', []);
  }
}

test('the counts are exact at every moment, whatever happens to tasks and however many add them up', async () => {
  const queues = await Promise.all(
    ['a', 'b', 'c'].map((name) =>
      world.addQueue(`exact_${name}`, { concurrency_limit: 1_000, success_expired_ms: 100, retry_base_ms: 1 }),
    ),
  );
  let disturbing = true;
  let folded = 0;
  let checked = 0;
  const folding = [1, 2].map(async () => {
    while (disturbing) folded += await fold();
  });
  const checking = (async () => {
    for (; disturbing; checked++) await assertExact();
  })();
  await Promise.all(
    queues.map(async (queue) => {
      for (let n = 0; n < 180; n++) await disturb(queue, n);
    }),
  );
  disturbing = false;
  await Promise.all([checking, ...folding]);
  await assertExact();
  assert.ok(checked > 20 && folded > 100, `checked ${checked} times, ${folded} notes added up`);
  const states = await world.rows<{ n: number }>('SELECT count(DISTINCT status) AS n FROM task_counts');
  assert.equal(states[0]!.n, 5, 'all five states occurred');
});

test('what was rolled back was never counted, to a savepoint too, and nobody sees what is not committed', async (t) => {
  await world.fill('default', 5, 3);
  const client = await connect(t);
  await client.query('BEGIN');
  await client.query('DELETE FROM task_scheduler_tasks WHERE task_id = 1');
  await client.query('SAVEPOINT s');
  await client.query('DELETE FROM task_scheduler_tasks');
  await client.query('ROLLBACK TO s');
  await assertExact(client);
  await assertExact();
  assert.equal((await stats('default')).Pending!.tasks, 3);
  await fold();
  await client.query('COMMIT');
  await assertExact();
  assert.equal((await stats('default')).Pending!.tasks, 2);
  await client.query('BEGIN; DELETE FROM task_scheduler_tasks; ROLLBACK');
  await assertExact();
  await fold();
  await assertExact();
});

test('notes are added up as far as every transaction has ended, and exact while one goes on', async (t) => {
  const open = await connect(t);
  await open.query('BEGIN');
  await open.query(`INSERT INTO queues (queue) VALUES ('held')`); // It writes, so it has an id.
  await world.fill('default', 5, 10);
  assert.equal(await fold(), 0, 'a transaction before this one may still note something');
  await assertExact();
  await open.query(`DELETE FROM task_scheduler_tasks WHERE task_id = 10`);
  await open.query('COMMIT');
  await foldAll(2);
  assert.equal(await fold(), 0);
  await assertExact();
});

test('notes that were added up cost a reader nothing, even while a transaction keeps them from being vacuumed', async (t) => {
  const touched = async () => {
    const { rows } = await world.sql.query('EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM task_counts_now');
    return rows[0]['QUERY PLAN'][0].Plan['Shared Hit Blocks'] as number;
  };
  const holder = await connect(t);
  await holder.query('BEGIN ISOLATION LEVEL REPEATABLE READ');
  await holder.query('SELECT count(*) FROM queues');
  const note = `INSERT INTO task_count_deltas (queue, status, hold, tasks, timed, time_ms)
    SELECT 'default', 0, 0, n % 2 * 2 - 1, 0, 0 FROM generate_series(1, 100) n`;
  for (let i = 0; i < 400; i++) await world.sql.query(note);
  const unfolded = await touched();
  await foldAll(40_000);
  await assertExact();
  const left = await touched();
  assert.ok(unfolded > 250, `${unfolded} buffers`);
  assert.ok(left < 20, `${left} buffers`);
  await assertExact(holder);
  await holder.query('COMMIT');
});

test('an addition is bounded, and goes on where the last one ended', async () => {
  for (let i = 0; i < 30; i++)
    await world.sql.query(`INSERT INTO task_count_deltas (queue, status, hold, tasks, timed, time_ms)
      SELECT 'default', 0, 0, 0, 0, 0 FROM generate_series(1, 1000)`);
  const steps: number[] = [];
  await eventually(async () => {
    const [step] = await world.db.query<{ folded: number }>('fold_counts', []);
    steps.push(step!.folded);
    assert.ok(steps.reduce((sum, folded) => sum + folded, 0) >= 30_000, `${steps} notes`);
  }, HELD_BACK);
  assert.equal(
    steps.reduce((sum, folded) => sum + folded, 0),
    30_000,
  );
  assert.ok(Math.max(...steps) <= 12_000, `${steps} notes`);
});

test('the mark of a dump from a server that was further ahead is not believed', async () => {
  await world.fill('default', 5, 5);
  await world.sql.query(`UPDATE task_count_mark SET folded_to = '1000000000'`);
  await assertExact();
  await world.fill('default', 5, 5, 6);
  await assertExact();
  await foldAll(2);
  await world.fill('default', 5, 5, 11);
  await assertExact();
  await foldAll(1);
  await assertExact();
});

test('tasks stored before there were counts, or while triggers were off, are counted once and for all', async (t) => {
  const client = await connect(t);
  await world.fill('default', 5, 5);
  await client.query(`SET session_replication_role = replica; DELETE FROM task_scheduler_tasks WHERE task_id < 3;
    SET session_replication_role = origin`);
  assert.notDeepEqual((await differences()).rows, []);
  await client.query('SELECT docsched_recount_tasks()');
  await assertExact();

  await client.query(`DROP TRIGGER tasks_counted_insert ON task_scheduler_tasks;
    DROP TRIGGER tasks_counted_update ON task_scheduler_tasks; DROP TRIGGER tasks_counted_delete ON task_scheduler_tasks;
    DROP TRIGGER tasks_counted_truncate ON task_scheduler_tasks;
    DELETE FROM task_count_mark; DELETE FROM task_counts; DELETE FROM task_count_deltas`);
  await world.fill('default', 5, 5, 10);
  const text = readFileSync(new URL('../../schema/functions/stats.sql', import.meta.url), 'utf8');
  await client.query(text);
  await assertExact();
  await client.query(text); // As after each upgrade.
  await world.fill('default', 5, 5, 20);
  await assertExact();
  await client.query('TRUNCATE task_scheduler_tasks');
  await assertExact();
});

test('task_stats shows each queue and state with number, oldest age and average duration', async () => {
  const queue = await world.addQueue('shown');
  const minute = 60_000;
  const now = await world.now();
  await world.submit(...[1, 2, 3, 4, 5, 6, 7, 8].map((taskId) => ({ queue, taskId, taskVersion: 1 })));
  await world.submit({ queue, taskId: 9, taskVersion: 1, runAt: now + 10 * minute });
  const set = (taskIds: number[], columns: string) =>
    world.sql.query(`UPDATE task_scheduler_tasks SET ${columns} WHERE queue = $1 AND task_id = ANY ($2)`, [
      queue,
      taskIds,
    ]);
  const processing = async (taskId: number, startedAt: number) => {
    await set(
      [taskId],
      `status = 1, attempt_id = 'a' || task_id, started_at = ${startedAt}, deadline = ${now + minute}`,
    );
    await world.sql.query(
      `INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
         number, target)
       SELECT attempt_id, id, queue, task_id, task_version, started_at, deadline, deadline, 1, 'none'
       FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2`,
      [queue, taskId],
    );
  };
  await set([1], `pending_since = ${now - 3 * minute}`);
  await set([2], `pending_since = ${now - minute}`);
  await processing(3, now - 4 * minute);
  await processing(4, now - 2 * minute);
  await processing(5, now - 9 * minute);
  await world.cancel({ queue, taskId: 5, taskVersion: 1 }); // Its attempt stays open.
  await set([6], `status = 2, started_at = ${now - 10 * minute}, finished_at = ${now - 7 * minute}`);
  await set([7], `status = 2, started_at = ${now - 10 * minute}, finished_at = ${now - 9 * minute}`);
  await set([8], `status = 4, reason = 'retention', started_at = 5, finished_at = ${now - 20 * minute}`);

  const near = (actual: number | null, expectedMs: number, what: string) =>
    assert.ok(actual !== null && Math.abs(actual - expectedMs) < 20_000, `${what}: ${actual} instead of ${expectedMs}`);
  for (const when of ['noted', 'added up']) {
    const { Pending, Processing, Success, Failed, Stopped } = await stats(queue);
    assert.deepEqual([Pending!.tasks, Processing!.tasks, Success!.tasks, Stopped!.tasks], [3, 2, 2, 2], when);
    near(Pending!.oldest_age_ms, 3 * minute, 'oldest Pending');
    near(Pending!.avg_duration_ms, 2 * minute, 'Pending on average; what is not due does not count');
    near(Processing!.oldest_age_ms, 4 * minute, 'oldest Processing; what was cancelled does not count');
    near(Processing!.avg_duration_ms, 3 * minute, 'Processing on average');
    near(Success!.oldest_age_ms, 9 * minute, 'oldest Success');
    assert.equal(Success!.avg_duration_ms, 2 * minute);
    near(Stopped!.oldest_age_ms, 20 * minute, 'oldest Stopped, whatever the reason');
    near(Stopped!.avg_duration_ms, 9 * minute, 'Stopped on average; retention is no work');
    assert.deepEqual(Failed, { queue, status: 'Failed', tasks: 0, oldest_age_ms: null, avg_duration_ms: null });
    await fold();
  }
  const empty = await world.addQueue('shown_empty');
  for (const row of Object.values(await stats(empty)))
    assert.deepEqual([row.tasks, row.oldest_age_ms, row.avg_duration_ms], [0, null, null]);
});

type Node = { 'Node Type': string; 'Relation Name'?: string; 'Shared Hit Blocks': number; Plans?: Node[] };
const nodes = (node: Node): Node[] => [node, ...(node.Plans ?? []).flatMap(nodes)];

test('task_stats and the gauges read few pages, however many tasks there are', async () => {
  await world.sql.query(
    `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, id, place, status, reason, finished_at, started_at,
       attempt_id, deadline, priority, level, payload, max_retries, pending_since, create_at, update_at)
     SELECT CASE n % 3 WHEN 0 THEN 'default' ELSE 'shown' END, n, 1, n, n, s,
       CASE WHEN s > 2 THEN (ARRAY['refused', 'parser_failed', 'retention'])[1 + n % 3] END,
       CASE WHEN s > 1 THEN now - n END, CASE WHEN s > 0 THEN now - n - 5 END, CASE WHEN s = 1 THEN 'many-' || n END,
       CASE WHEN s = 1 THEN now END, 5, 5, '{}', 3, now - n, now, now
     FROM (SELECT n, CASE WHEN n % 1000 = 1 THEN 1 WHEN n % 5 = 1 THEN 0 ELSE n % 5 END AS s, docsched_now() AS now
           FROM generate_series(1, ${MANY}) n) g`,
  );
  await world.sql.query(
    `INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
       closed_at, outcome, number, target)
     SELECT coalesce(attempt_id, 'done-' || id), id, queue, task_id, 1, started_at, 1, 1, finished_at,
       CASE WHEN finished_at IS NOT NULL THEN 'success' END, 1, 'none'
     FROM task_scheduler_tasks WHERE status > 0`,
  );
  await fold();
  await world.sql.query('VACUUM ANALYZE');
  for (const [text, most] of [
    ['SELECT * FROM task_stats', 1_500],
    [readFileSync(new URL('../../schema/queries/count_tasks.sql', import.meta.url), 'utf8'), 10],
    [readFileSync(new URL('../../schema/queries/find_oldest_pending.sql', import.meta.url), 'utf8'), 400],
  ] as const) {
    const { rows } = await world.sql.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${text}`);
    const plan = rows[0]['QUERY PLAN'][0].Plan as Node;
    const full = nodes(plan).filter(
      (node) => node['Node Type'] === 'Seq Scan' && LARGE.includes(node['Relation Name'] ?? ''),
    );
    assert.deepEqual(full, []);
    assert.ok(plan['Shared Hit Blocks'] < most, `${plan['Shared Hit Blocks']} buffers: ${text}`);
  }
  await assertExact();
});

test('the gauges show every queue, from the moment it appears', async (t) => {
  const metrics = createMetrics({ version: '0' });
  const limiter = {
    state: () => ({ status: 'open' }),
    usage: async (names: string[]) => new Map(names.map((name) => [name, name === 'gauged' ? 3 : 0])),
  } as unknown as Limiter;
  await world.addQueue('gauged', { concurrency_limit: 7 });
  let queues = await world.queues();
  const sampler = createSampler({
    db: world.db,
    limiter,
    queues: { ...queues, all: () => queues.all() },
    metrics,
    log: world.log,
  });
  const read = async (name: string, labels: Record<string, string>) => {
    const found = (await metrics.registry.getMetricsAsJSON()).find((metric) => metric.name === name)!;
    const values = found.values as { value: number; labels: Record<string, string> }[];
    return values.find((value) => Object.entries(labels).every(([label, text]) => value.labels[label] === text))?.value;
  };
  const now = await world.now();
  await world.submit(
    { queue: 'gauged', taskId: 1, taskVersion: 1 },
    { queue: 'gauged', taskId: 1, taskVersion: 2 },
    { queue: 'gauged', taskId: 2, taskVersion: 1, runAt: now + 60_000 },
  );
  await world.sql.query('UPDATE task_scheduler_tasks SET pending_since = 5000 WHERE task_version = 2');
  sampler.start();
  t.after(sampler.stop);
  await eventually(async () => (await read('docsched_tasks', { queue: 'gauged', status: 'Pending' })) === 3);
  assert.equal(await read('docsched_tasks', { queue: 'gauged', status: 'Success' }), 0);
  assert.equal(await read('docsched_tasks_delayed', { queue: 'gauged' }), 1);
  assert.equal(await read('docsched_tasks_blocked', { queue: 'gauged' }), 1);
  assert.equal(await read('docsched_oldest_pending_timestamp_seconds', { queue: 'gauged' }), 5);
  assert.equal(await read('docsched_limiter_limit', { queue: 'gauged' }), 7);
  assert.equal(await read('docsched_limiter_in_use', { queue: 'gauged' }), 3);
  assert.equal(await read('docsched_oldest_pending_timestamp_seconds', { queue: 'default' }), 0);

  await world.addQueue('appeared');
  queues = await world.queues();
  await eventually(async () => (await read('docsched_tasks', { queue: 'appeared', status: 'Failed' })) === 0);
  for (const name of ['docsched_tasks_delayed', 'docsched_tasks_blocked', 'docsched_limiter_in_use'])
    assert.equal(await read(name, { queue: 'appeared' }), 0);
  await world.sql.query(`DELETE FROM task_scheduler_tasks WHERE queue = 'gauged'`);
  await eventually(async () => (await read('docsched_tasks', { queue: 'gauged', status: 'Pending' })) === 0);
  assert.equal(await read('docsched_oldest_pending_timestamp_seconds', { queue: 'gauged' }), 0, 'back to none');
});

test('queues that share a label are shown as their sum, and the oldest of all', async (t) => {
  const metrics = { ...createMetrics({ version: '0' }), label: () => 'other' };
  const limiter = { state: () => ({ status: 'closed' }) } as unknown as Limiter;
  const queues = await world.queues();
  await world.addQueue('first');
  await world.addQueue('second');
  await world.fill('first', 5, 3);
  await world.fill('second', 5, 4);
  await world.sql.query(
    `UPDATE task_scheduler_tasks SET pending_since = CASE queue WHEN 'first' THEN 9000 ELSE 7000 END`,
  );
  const sampler = createSampler({ db: world.db, limiter, queues, metrics, log: world.log });
  sampler.start();
  t.after(sampler.stop);
  const read = async (name: string) => (await metrics.registry.getSingleMetric(name)!.get()).values;
  await eventually(async () =>
    assert.deepEqual(
      (await read('docsched_tasks')).filter(({ labels }) => labels.status === 'Pending').map(({ value }) => value),
      [7],
    ),
  );
  assert.deepEqual(
    (await read('docsched_oldest_pending_timestamp_seconds')).map(({ value }) => value),
    [7],
  );
});

test('what a queue has shown is kept when its settings change', async () => {
  const metrics = createMetrics({ version: '0' });
  const value = async (name: string) => (await metrics.registry.getSingleMetric(name)!.get()).values[0]!.value;
  metrics.addQueue('kept');
  assert.equal(await value('docsched_limiter_drift'), 0);
  metrics.limiterDrift.set({ queue: 'kept' }, 2);
  metrics.dispatched('kept', 0.001, '');
  metrics.addQueue('kept');
  assert.equal(await value('docsched_limiter_drift'), 2);
  assert.equal(await value('docsched_dispatch_latency_seconds'), 1, 'the first bucket');
});
