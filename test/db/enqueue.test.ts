/** docsched_enqueue: a submit inside a transaction of the caller's own. */
import assert from 'node:assert/strict';
import { after, before, describe, type TestContext, test } from 'node:test';
import pg from 'pg';
import { PENDING, PROCESSING, STATUS, STOPPED, SUCCESS } from '../../src/task.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, submitOf, type World } from './insert-world.ts';

const DAY_MS = 86_400_000;
/** Many times what PostgreSQL's lock table holds with its default settings. */
const MANY = 20_000;
const SMALL = 100;

let world: World;
let tasks = 100;
const newTask = () => String(++tasks);

before(async () => {
  world = await createWorld('enqueue');
  await world.addQueue('small', { payload_max_bytes: SMALL, max_retries: 7 });
  await world.addQueue('stop', { version_policy: 'stop' });
});
after(() => world.end());

type Enqueued = { outcome: string; status: number | null; latest_version: string };
type Arguments = {
  queue?: string | null;
  task_id?: string | null;
  task_version?: string | null;
  payload?: string | null;
  priority?: number;
  run_at?: number;
  max_retries?: number;
  traceparent?: string;
};

/** By named arguments, as clients call it. */
async function enqueue(client: pg.Client | pg.Pool, named: Arguments): Promise<Enqueued> {
  const given = Object.entries({ queue: 'default', task_version: '1', payload: 'null', ...named });
  const list = given.map(([name], index) => `${name} => $${index + 1}`).join(', ');
  const { rows } = await client.query<Enqueued>(
    `SELECT * FROM docsched_enqueue(${list})`,
    given.map(([, value]) => value),
  );
  assert.equal(rows.length, 1);
  return rows[0]!;
}

async function begin(t: TestContext): Promise<pg.Client> {
  const client = await world.begin();
  t.after(() => client.end());
  return client;
}

const stateOf = async (taskId: string, queue?: string) => (await world.states(taskId, queue))[0];

describe('inside a transaction', () => {
  test('the task is seen by nobody before the commit, and by all after it', async (t) => {
    const client = await begin(t);
    const taskId = newTask();
    assert.deepEqual(await enqueue(client, { task_id: taskId, payload: '{"a":1}' }), {
      outcome: 'created',
      status: PENDING,
      latest_version: '1',
    });
    assert.deepEqual([await world.states(taskId), await world.floor(taskId)], [[], undefined]);
    await client.query('COMMIT');
    const row = await stateOf(taskId);
    assert.deepEqual([row?.payload, row?.priority, row?.max_retries, row?.hold], ['{"a":1}', 5, 3, 0]);
  });

  test('nothing is left after a rollback', async (t) => {
    const client = await begin(t);
    const [fresh, known] = [newTask(), newTask()];
    await enqueue(world.sql, { task_id: known });
    const before = [await world.states(known), await world.floor(known)];
    await enqueue(client, { task_id: fresh });
    await enqueue(client, { task_id: known, task_version: '2' });
    await client.query('ROLLBACK');
    assert.deepEqual([await world.states(fresh), await world.floor(fresh)], [[], undefined]);
    assert.deepEqual([await world.states(known), await world.floor(known)], before);
  });

  test('later calls see the earlier ones', async (t) => {
    const client = await begin(t);
    const taskId = newTask();
    const outcomes: Enqueued[] = [];
    for (const task_version of ['1', '1', '3', '2'])
      outcomes.push(await enqueue(client, { task_id: taskId, task_version }));
    await client.query('COMMIT');
    assert.deepEqual(
      outcomes.map(({ outcome, status, latest_version }) => [outcome, status, latest_version]),
      [
        ['created', PENDING, '1'],
        ['refreshed', PENDING, '1'],
        ['created', PENDING, '3'],
        ['stale', PENDING, '3'],
      ],
    );
  });

  test('the pushers are told after the commit, once a queue, and only when there is something to push', async (t) => {
    const listener = new pg.Client({ connectionString: world.url });
    await listener.connect();
    t.after(() => listener.end());
    const heard: (string | undefined)[] = [];
    listener.on('notification', ({ channel, payload }) => heard.push(`${channel} ${payload}`));
    await listener.query('LISTEN docsched_wake');
    const client = await begin(t);
    const taskId = newTask();
    await enqueue(client, { task_id: taskId });
    for (let i = 0; i < 5; i++) await enqueue(client, { queue: 'small', task_id: newTask() });
    await listener.query('SELECT 1');
    assert.deepEqual(heard, []);
    await client.query('COMMIT');
    await eventually(() => heard.length >= 2);
    assert.deepEqual(heard, ['docsched_wake sql default', 'docsched_wake sql small']);

    await world.claim({ taskId, taskVersion: '1' });
    assert.equal((await enqueue(world.sql, { task_id: taskId })).outcome, 'existing');
    await world.sql.query(`SELECT pg_notify('docsched_wake', 'done')`);
    await eventually(() => heard.join().endsWith('done'));
    assert.equal(heard.length, 3, 'nothing for what exists');
  });

  test(`${MANY} calls need no more locks than a few`, async (t) => {
    const client = await begin(t);
    const from = tasks + 1;
    tasks += MANY;
    const { rows } = await client.query(
      `SELECT e.outcome, count(*)::int AS n
       FROM generate_series($1::bigint, $2::bigint) n, docsched_enqueue('default', n, 1, '{"n":' || n || '}') e
       GROUP BY e.outcome`,
      [from, tasks],
    );
    assert.deepEqual(rows, [{ outcome: 'created', n: MANY }]);
    const locks = await client.query('SELECT count(*)::int AS n FROM pg_locks WHERE pid = pg_backend_pid()');
    assert.ok(locks.rows[0].n < 100, `${locks.rows[0].n} locks`);
    await client.query('COMMIT');
    assert.equal((await stateOf(String(tasks)))?.payload, `{"n":${tasks}}`);
  });

  test('of two that lock the same tasks in opposite orders one is ended, and the other goes on', async (t) => {
    const [one, two] = [await begin(t), await begin(t)];
    const [a, b] = [newTask(), newTask()];
    await enqueue(one, { task_id: a });
    await enqueue(two, { task_id: b });
    const ends = await Promise.allSettled([enqueue(one, { task_id: b }), enqueue(two, { task_id: a })]);
    const failed = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason.code] : []));
    assert.deepEqual(failed, ['40P01']);
    await (ends[0].status === 'fulfilled' ? one : two).query('COMMIT');
    assert.deepEqual([(await world.states(a)).length, (await world.states(b)).length], [1, 1]);
  });

  test('a task that another transaction holds is waited for, and decided by what that committed', async (t) => {
    const [one, two] = [await begin(t), await begin(t)];
    for (const known of [false, true]) {
      const taskId = newTask();
      if (known) await enqueue(world.sql, { task_id: taskId });
      await enqueue(one, { task_id: taskId, task_version: '5' });
      const lower = enqueue(two, { task_id: taskId, task_version: '4' });
      await waitForBlocked();
      await one.query('COMMIT; BEGIN');
      assert.deepEqual(await lower, { outcome: 'stale', status: PENDING, latest_version: '5' });
    }
  });

  test('a claim on its way is waited for', async (t) => {
    for (const [end, wanted] of [
      ['COMMIT', ['existing', PROCESSING]],
      ['ROLLBACK', ['refreshed', PENDING]],
    ] as const) {
      const taskId = newTask();
      await enqueue(world.sql, { task_id: taskId });
      const claim = await begin(t);
      await claim.query(
        `UPDATE task_scheduler_tasks SET status = 1, attempt_id = 'claimed_just_now_______' WHERE task_id = $1`,
        [taskId],
      );
      const same = enqueue(await begin(t), { task_id: taskId });
      await waitForBlocked();
      await claim.query(end);
      const { outcome, status } = await same;
      assert.deepEqual([outcome, status], wanted);
    }
  });

  test('of a queue that stops lower versions a claim of one is waited for', async (t) => {
    const taskId = newTask();
    await enqueue(world.sql, { queue: 'stop', task_id: taskId });
    const claim = await begin(t);
    await claim.query('SELECT 1 FROM task_scheduler_tasks WHERE task_id = $1 FOR UPDATE', [taskId]);
    const higher = enqueue(world.sql, { queue: 'stop', task_id: taskId, task_version: '2' });
    await waitForBlocked();
    await claim.query('ROLLBACK');
    assert.equal((await higher).outcome, 'created');
    assert.deepEqual(
      [(await stateOf(taskId, 'stop'))?.status, (await stateOf(taskId, 'stop'))?.reason],
      [STOPPED, 'superseded'],
    );
  });

  test('a task that runs is not held: its callback is settled meanwhile', async (t) => {
    const taskId = newTask();
    await enqueue(world.sql, { task_id: taskId });
    const attemptId = await world.claim({ taskId, taskVersion: '1' });
    const client = await begin(t);
    assert.equal((await enqueue(client, { task_id: taskId })).outcome, 'existing');
    assert.equal((await enqueue(client, { task_id: taskId, task_version: '2' })).outcome, 'created');
    assert.equal(await world.settle(attemptId, 'success'), true);
    assert.equal((await stateOf(taskId))?.status, SUCCESS);
  });

  test('of a stricter isolation level an outdated view fails instead of deciding', async (t) => {
    for (const level of ['REPEATABLE READ', 'SERIALIZABLE'])
      for (const known of [false, true]) {
        const taskId = newTask();
        if (known) await enqueue(world.sql, { task_id: taskId });
        const client = await begin(t);
        await client.query(`COMMIT; BEGIN ISOLATION LEVEL ${level}; SELECT 1`);
        await enqueue(world.sql, { task_id: taskId, task_version: '2' });
        await assert.rejects(enqueue(client, { task_id: taskId, task_version: '1' }), { code: '40001' });
      }
  });

  const waitForBlocked = () =>
    eventually(async () => {
      const { rows } = await world.sql.query(
        `SELECT 1 FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%docsched_enqueue%'`,
      );
      return rows.length === 1;
    });
});

describe('arguments', () => {
  test('named or by position, all of them are stored', async () => {
    const taskId = newTask();
    const runAt = Date.now() + DAY_MS;
    const traceparent = '00-0000000000000000000000000000000a-000000000000000a-01';
    await world.sql.query('SELECT docsched_enqueue($1, $2, $3, $4, $5, $6, $7, $8)', [
      'default',
      taskId,
      '4',
      '[1]',
      2,
      runAt,
      9,
      traceparent,
    ]);
    const row = await stateOf(taskId);
    assert.deepEqual(
      [row?.task_version, row?.payload, row?.priority, row?.run_at, row?.hold, row?.max_retries, row?.traceparent],
      ['4', '[1]', 2, runAt, 1, 9, traceparent],
    );
  });

  test('not named are as over HTTP: priority 5, the queue’s max_retries, and what a waiting task has stays', async () => {
    const taskId = newTask();
    const runAt = Date.now() + DAY_MS;
    await enqueue(world.sql, { queue: 'small', task_id: taskId, priority: 1, run_at: runAt });
    assert.equal((await stateOf(taskId, 'small'))?.max_retries, 7);
    await enqueue(world.sql, { queue: 'small', task_id: taskId, max_retries: 0 });
    await enqueue(world.sql, { queue: 'small', task_id: taskId });
    const row = await stateOf(taskId, 'small');
    assert.deepEqual([row?.priority, row?.max_retries, row?.run_at], [5, 0, runAt]);
  });

  test('a run_at in the past runs now', async () => {
    const taskId = newTask();
    await enqueue(world.sql, { task_id: taskId, run_at: 0 });
    assert.deepEqual([(await stateOf(taskId))?.hold, (await stateOf(taskId))?.run_at], [0, 0]);
  });

  test('without a traceparent each task begins a trace of its own', async () => {
    const [first, second] = [newTask(), newTask()];
    for (const task_id of [first, second]) await enqueue(world.sql, { task_id });
    const [one, two] = [(await stateOf(first))!.traceparent, (await stateOf(second))!.traceparent];
    for (const traceparent of [one, two])
      assert.match(traceparent, /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-00$/);
    assert.notEqual(one.slice(3, 35), two.slice(3, 35));
  });

  test('the payload is kept as it was written: NUL escapes, big numbers, spaces', async () => {
    for (const payload of [
      '"\\u0000"',
      ' { "n" : 12345678901234567890.10 } ',
      '{"a":1,"a":2}',
      'null',
      '"ümlaut 文"',
    ]) {
      const taskId = newTask();
      await enqueue(world.sql, { task_id: taskId, payload });
      assert.equal((await stateOf(taskId))?.payload, payload);
    }
  });

  test('the largest payload of the queue is stored', async () => {
    const taskId = newTask();
    await enqueue(world.sql, { queue: 'small', task_id: taskId, payload: `"${'ü'.repeat(SMALL / 2 - 1)}"` });
    assert.ok(await stateOf(taskId, 'small'));
  });

  const bad: [string, Arguments, RegExp][] = [
    ['a queue that is not there', { queue: 'nowhere' }, /^queue: there is no queue 'nowhere'$/],
    ['no queue', { queue: null }, /^queue: /],
    ['a negative task_id', { task_id: '-1' }, /^task_id: expected 0 or more, got '-1'$/],
    ['no task_id', { task_id: null }, /^task_id: .*NULL/],
    ['a negative task_version', { task_version: '-1' }, /^task_version: /],
    ['no task_version', { task_version: null }, /^task_version: /],
    ['no payload', { payload: null }, /^payload: expected JSON, got NULL$/],
    ['an empty payload', { payload: '' }, /^payload: invalid input syntax for type json$/],
    ['a payload that is no JSON', { payload: '{"a":1' }, /^payload: /],
    ['a payload nested too deeply', { queue: 'default', payload: '['.repeat(200_000) }, /^payload: /],
    [
      'a payload one byte too large',
      { queue: 'small', payload: `"${'ü'.repeat(SMALL / 2 - 1)}x"` },
      /^payload: 101 bytes/,
    ],
    ['priority 0', { priority: 0 }, /^priority: expected 1 to 5, got '0'$/],
    ['priority 6', { priority: 6 }, /^priority: /],
    ['a negative run_at', { run_at: -1 }, /^run_at: /],
    ['a run_at more than a year ahead', { run_at: Date.now() + 366 * DAY_MS }, /^run_at: .* a year ahead/],
    ['max_retries below 0', { max_retries: -1 }, /^max_retries: /],
    ['max_retries above 1000', { max_retries: 1001 }, /^max_retries: expected 0 to 1000, got '1001'$/],
    ['a malformed traceparent', { traceparent: '00-abc' }, /^traceparent: /],
    ['a traceparent of zeros', { traceparent: `00-${'0'.repeat(32)}-${'0'.repeat(16)}-01` }, /^traceparent: /],
  ];
  for (const [name, named, message] of bad)
    test(`${name}: 22023, with a hint, and nothing stored`, async () => {
      const taskId = newTask();
      await assert.rejects(enqueue(world.sql, { task_id: taskId, ...named }), (error: pg.DatabaseError) => {
        assert.equal(error.code, '22023');
        assert.match(error.message, message);
        assert.ok(error.hint, 'a hint');
        return true;
      });
      assert.deepEqual([await world.states(taskId), await world.floor(taskId)], [[], undefined]);
    });
});

describe('the decision', () => {
  for (const status of STATUS)
    test(`about the same version that is ${status}, a lower and a higher one is that of a submit over HTTP`, async () => {
      const inserter = world.inserter();
      const said = { sql: [] as string[], http: [] as string[] };
      for (const way of ['sql', 'http'] as const) {
        const taskId = newTask();
        await bring(taskId, status);
        for (const version of ['5', '4', '6']) {
          if (way === 'sql') {
            const { outcome, status, latest_version } = await enqueue(world.sql, {
              task_id: taskId,
              task_version: version,
            });
            said.sql.push(`${outcome} ${status === null ? null : STATUS[status]} ${latest_version}`);
          } else {
            const outcome = await inserter.submit(submitOf({ taskId, taskVersion: version }));
            if ('task' in outcome)
              said.http.push(`${outcome.outcome} ${outcome.task.status} ${outcome.task.task_version}`);
            if ('latest' in outcome)
              said.http.push(`${outcome.outcome} ${outcome.latest.status} ${outcome.latest.task_version}`);
          }
        }
      }
      assert.deepEqual(said.sql, said.http);
      assert.equal(said.sql.length, 3);
    });

  test('about a version below one that is cleaned up is stale, its status unknown', async () => {
    const taskId = newTask();
    await bring(taskId, 'Success');
    await world.cleanUp({ taskId, taskVersion: '5' });
    assert.deepEqual(await enqueue(world.sql, { task_id: taskId, task_version: '4' }), {
      outcome: 'stale',
      status: null,
      latest_version: '5',
    });
  });

  /** Version 5 in `status`. */
  async function bring(taskId: string, status: (typeof STATUS)[number]): Promise<void> {
    const key = { taskId, taskVersion: '5' };
    await world.inserter().submit(submitOf(key));
    if (status === 'Pending') return;
    const attemptId = await world.claim(key);
    if (status === 'Success') await world.settle(attemptId, 'success');
    if (status === 'Failed') await world.settle(attemptId, 'refused');
    if (status === 'Stopped') await world.cancel(key);
  }
});

describe('a role that may only call it', () => {
  /** A connection as a fresh role with the rights that `grant` gives. */
  async function connectAs(t: TestContext, grant: (role: string) => string): Promise<pg.Client> {
    const role = `submitter_${newTask()}`;
    await world.sql.query(`CREATE ROLE ${role} LOGIN PASSWORD 'secret'`);
    await world.sql.query(grant(role));
    const url = new URL(world.url);
    [url.username, url.password] = [role, 'secret'];
    const client = new pg.Client({ connectionString: url.href });
    await client.connect();
    t.after(async () => {
      await client.end();
      await world.sql.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`);
    });
    return client;
  }
  const granted = (role: string) => `GRANT EXECUTE ON FUNCTION docsched_enqueue TO ${role}`;

  test('submits, and can read or write no table', async (t) => {
    const client = await connectAs(t, granted);
    const taskId = newTask();
    assert.equal((await enqueue(client, { task_id: taskId })).outcome, 'created');
    assert.ok(await stateOf(taskId));
    for (const sql of [
      'SELECT 1 FROM task_scheduler_tasks',
      'SELECT 1 FROM version_floors',
      'SELECT 1 FROM queues',
      'DELETE FROM task_scheduler_tasks',
      `SELECT docsched_submit('{default}', '{1}', '{1}', '{5}', '{null}', '{null}', '{null}', '{x}', NULL)`,
    ])
      await assert.rejects(client.query(sql), { code: '42501' }, sql);
  });

  test('has to be granted that', async (t) => {
    const client = await connectAs(t, () => 'SELECT 1');
    await assert.rejects(enqueue(client, { task_id: newTask() }), { code: '42501' });
  });

  test('cannot put tables or functions of its own in the way', async (t) => {
    const client = await connectAs(t, granted);
    await client.query(`
      CREATE TEMP TABLE version_floors (queue text, task_id bigint, task_version bigint, accepted_at bigint);
      CREATE TEMP TABLE task_scheduler_tasks (LIKE version_floors);
      CREATE TEMP TABLE queues (queue text, payload_max_bytes int);
      CREATE FUNCTION pg_temp.docsched_now() RETURNS bigint LANGUAGE sql RETURN 1;
      SET search_path = pg_temp, public`);
    const taskId = newTask();
    assert.equal((await enqueue(client, { task_id: taskId })).outcome, 'created');
    assert.ok((await stateOf(taskId))!.create_at > 1);
  });
});
