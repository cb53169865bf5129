/** Dead letters over HTTP: listed, redriven at a rate, and what happens to a call that is cut off. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import pg from 'pg';
import { eventually } from '../support/eventually.ts';
import { ended, get, getTask, install, LIMITERS, post, submit, submitMany } from '../support/installation.ts';
import { freshDatabase } from '../support/postgres.ts';
import { type RunningService, startService } from '../support/process.ts';

const REDRIVE = '/v1/queues/default/redrive';
/** Failed tasks put there behind the service's back. */
const fillFailed = (sql: pg.Pool, count: number) =>
  sql.query(
    `WITH floors AS (
       INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
       SELECT 'default', n, 1, docsched_now() FROM generate_series(1, $1::int) n
     )
     INSERT INTO task_scheduler_tasks (queue, task_id, task_version, place, status, reason, finished_at, priority, level,
       payload, max_retries, pending_since, create_at, update_at)
     SELECT 'default', n, 1, n, 3, 'refused', docsched_now() - 60000, 5, 5, 'null', 0, docsched_now(), docsched_now(),
            docsched_now()
     FROM generate_series(1, $1::int) n`,
    [count],
  );

/** A PostgreSQL that redrives slowly: what is done about a call that is under way is done before it is over. */
async function slowUpdates(sql: pg.Pool): Promise<void> {
  await sql.query(`
    CREATE FUNCTION test_slow_update() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$;
    CREATE TRIGGER test_slow_update BEFORE UPDATE ON task_scheduler_tasks
      FOR EACH STATEMENT EXECUTE FUNCTION test_slow_update()`);
}

for (const limiter of LIMITERS)
  test(`dead letters are listed, redriven at the rate, and parsed (${limiter})`, async (t) => {
    const world = await install(t, { limiter, env: { MAX_PROCESSING: '50' } });
    const one = await world.start();
    world.parser.autoCallback({ report: { status_code: 5 } });
    const count = 12;
    await submitMany(
      one,
      Array.from({ length: count }, (_each, n) => ({ task_id: n + 1, max_retries: 0 })),
    );
    for (let taskId = 1; taskId <= count; taskId++) assert.equal((await ended(one, taskId)).status, 'Failed');
    await submit(one, { task_id: 1, task_version: 2, max_retries: 0 });
    await ended(one, 1, 2);

    const letters = await get(one, '/v1/tasks?queue=default&status=Failed&reason=parser_failed&limit=10');
    assert.equal((letters.body.tasks as unknown[]).length, 10);
    const rest = await get(one, `/v1/tasks?queue=default&status=Failed&limit=10&cursor=${letters.body.cursor}`);
    assert.deepEqual([(rest.body.tasks as unknown[]).length, rest.body.cursor], [3, null]);

    const dry = await post(one, REDRIVE, { reason: 'parser_failed', dry_run: true });
    assert.deepEqual(dry.body, { matched: 13, redriven: 0, skipped: 1, due_by: null });
    const pushedBefore = world.parser.pushes.length;
    world.parser.autoCallback();
    const asked = Date.now();
    const { status, body } = await post(one, REDRIVE, { reason: 'parser_failed', rate_per_s: 4 });
    assert.deepEqual([status, body.matched, body.redriven, body.skipped], [200, 13, 12, 1]);
    for (let taskId = 2; taskId <= count; taskId++)
      await eventually(async () => (await getTask(one, taskId)).status === 'Success');
    const firstDue = Number(body.due_by) - (count - 1) * 250;
    assert.ok(firstDue > asked - 50, `the last one is due ${Number(body.due_by) - asked} ms after the call`);
    const pushes = (await world.parser.waitForPushes(pushedBefore + count)).slice(pushedBefore);
    for (const [n, { atMs }] of pushes.entries()) {
      const lateMs = performance.timeOrigin + atMs - (firstDue + n * 250);
      assert.ok(lateMs > -50, `push ${n} came ${-lateMs} ms before it was due`);
    }
    assert.equal((await getTask(one, 1)).status, 'Failed', 'a newer version was accepted');
    assert.deepEqual((await post(one, REDRIVE, {})).body, { matched: 1, redriven: 0, skipped: 1, due_by: null });
  });

test('a redrive cut off by the death of the process has done a part, and calling again does the rest', async (t) => {
  const world = await install(t, { limiter: 'postgres', env: { ROLES: 'api', PUBLIC_URL: 'http://127.0.0.1:1' } });
  const [one, two] = [await world.start(), await world.start()];
  const count = 20_000;
  await fillFailed(world.sql, count);
  await slowUpdates(world.sql);
  const cutOff = post(one, REDRIVE, { rate_per_s: 10_000 });
  await eventually(async () => ((await world.countTasks()).Pending ?? 0) > 0);
  await Promise.all([assert.rejects(cutOff), one.kill()]);
  const { Pending = 0, Failed = 0 } = await world.countTasks();
  assert.ok(Pending > 0 && Failed > 0, `${Pending} done`);
  assert.equal(Pending + Failed, count);
  await world.sql.query('DROP TRIGGER test_slow_update ON task_scheduler_tasks');
  // A batch that was on its way when the process died may still hold its rows, or be committed after the count.
  await eventually(async () => {
    const { body } = await post(two, REDRIVE, { rate_per_s: 10_000 });
    assert.equal(body.redriven, body.matched);
  });
  assert.deepEqual(await world.countTasks(), { Pending: count });
  const { rows } = await world.sql.query(
    'SELECT count(DISTINCT place)::int AS places, count(DISTINCT task_id)::int AS ids FROM task_scheduler_tasks',
  );
  assert.deepEqual(rows[0], { places: count, ids: count });
});

test('a redrive whose caller went away ends early', async (t) => {
  const world = await install(t, { limiter: 'postgres', env: { ROLES: 'api', PUBLIC_URL: 'http://127.0.0.1:1' } });
  const one = await world.start();
  await fillFailed(world.sql, 20_000);
  await slowUpdates(world.sql);
  const gone = new AbortController();
  const call = fetch(`${one.url}${REDRIVE}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{}',
    signal: gone.signal,
  });
  await eventually(async () => ((await world.countTasks()).Pending ?? 0) > 0);
  gone.abort();
  await assert.rejects(call);
  await one.waitForLine((event) => event.event === 'redriven');
  assert.ok((await world.countTasks()).Failed! > 0);
});

describe('bad input', () => {
  let one: RunningService;
  let sql: pg.Pool;
  before(async () => {
    const { url } = await freshDatabase('redrive_input');
    one = await startService({ env: { DATABASE_URL: url } });
    sql = new pg.Pool({ connectionString: url, max: 2 });
    await fillFailed(sql, 3);
  });
  after(async () => {
    await sql?.end();
    await one?.stop();
  });

  const BAD: [body: unknown, code: string, pointer: string][] = [
    ['', 'malformed_json', ''],
    ['[', 'malformed_json', ''],
    [[], 'invalid_field', ''],
    [{ rate: 5 }, 'unknown_field', '/rate'],
    [{ rate_per_s: 0 }, 'invalid_field', '/rate_per_s'],
    [{ rate_per_s: 0.09 }, 'invalid_field', '/rate_per_s'],
    [{ rate_per_s: 10_001 }, 'invalid_field', '/rate_per_s'],
    [{ rate_per_s: '100' }, 'invalid_field', '/rate_per_s'],
    ['{"rate_per_s": 1e999}', 'invalid_field', '/rate_per_s'],
    [{ reason: 'Not a reason' }, 'invalid_field', '/reason'],
    [{ reason: 5 }, 'invalid_field', '/reason'],
    [{ finished_before: -1 }, 'invalid_field', '/finished_before'],
    [{ finished_before: 1.5 }, 'invalid_field', '/finished_before'],
    [{ finished_before: '2026-01-01' }, 'invalid_field', '/finished_before'],
    [{ finished_before: 2 ** 53 }, 'invalid_field', '/finished_before'],
    [{ dry_run: 'yes' }, 'invalid_field', '/dry_run'],
  ];
  for (const [body, code, pointer] of BAD)
    test(`redrives nothing: ${typeof body === 'string' ? body : JSON.stringify(body)}`, async () => {
      const reply = await fetch(`${one.url}${REDRIVE}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: typeof body === 'string' ? body : JSON.stringify(body),
      });
      const problem = (await reply.json()) as Record<string, unknown>;
      assert.deepEqual([reply.status, problem.code, problem.pointer], [400, code, pointer]);
      const { rows } = await sql.query('SELECT count(*)::int AS n FROM task_scheduler_tasks WHERE status = 3');
      assert.equal(rows[0].n, 3);
    });
});
