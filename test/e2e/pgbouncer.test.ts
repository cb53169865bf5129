/** Everything through PgBouncer in transaction mode, where no two statements need meet the same server connection. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { finish } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import {
  ended,
  get,
  type Installation,
  install,
  LIMITERS,
  type LimiterName,
  submit,
  submitMany,
} from '../support/installation.ts';
import { startPgBouncer } from '../support/pgbouncer.ts';
import { startService } from '../support/process.ts';

const TASKS = 400;
/** Fewer server connections than one instance's pool: statements of one client meet ever changing connections. */
const SERVER_CONNECTIONS = 6;

for (const limiter of LIMITERS)
  test(`two instances behind PgBouncer push every task once and wake each other (${limiter} limiter)`, async (t) => {
    const { place, pooler } = await installPooled(t, limiter);
    const env = { DATABASE_URL: pooler.url, DATABASE_DIRECT_URL: place.database.url, TRIGGER_INTERVAL_MS: '60000' };
    const api = await place.start({ ...env, ROLES: 'api,watcher' });
    const pusher = await place.start({ ...env, ROLES: 'pusher', PUBLIC_URL: api.url });
    await submitMany(
      api,
      Array.from({ length: TASKS }, (_, i) => ({ task_id: i, priority: 1 + (i % 5) })),
    );
    await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: TASKS }), { timeoutMs: 30_000 });
    assert.equal(place.parser.pushes.length, TASKS);

    await enqueueInTransaction(pooler.url, TASKS);
    assert.equal((await ended(api, TASKS)).status, 'Success');
    for (const instance of [api, pusher])
      await eventually(async () => assert.equal((await get(instance, '/readyz')).body.status, 'ready'));
    await eventually(async () => assert.equal(await place.slots(), 0));
  });

test('a pooler that is taken for PostgreSQL itself is refused at start, with what to do', async (t) => {
  const { place, pooler } = await installPooled(t, 'redis');
  const instance = await startService({ env: { ...place.env, DATABASE_URL: pooler.url }, ready: false });
  assert.equal((await instance.exited).code, 1);
  assert.match(instance.lines.join('\n'), /cannot start: .*set DATABASE_DIRECT_URL/);
});

test('without a direct connection the pooler swallows LISTEN: work is found by polling, and /readyz says why', async (t) => {
  const { place, pooler } = await installPooled(t, 'redis');
  const instance = await place.start({ DATABASE_URL: pooler.url, DATABASE_DIRECT_URL: pooler.url });
  await submit(instance, { task_id: 1 });
  assert.equal((await ended(instance, 1)).status, 'Success');
  await eventually(async () => {
    const { body } = await get(instance, '/readyz');
    assert.equal(body.status, 'degraded');
    assert.match(JSON.stringify(body.checks), /DATABASE_DIRECT_URL/);
  });
});

async function installPooled(t: TestContext, limiter: LimiterName) {
  const place: Installation = await install(t, { limiter, env: { MAX_PROCESSING: '50' } });
  place.parser.answerWith(finish());
  const pooler = await startPgBouncer(place.database.url, { poolSize: SERVER_CONNECTIONS });
  t.after(pooler.stop);
  return { place, pooler };
}

async function enqueueInTransaction(url: string, taskId: number): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query('BEGIN');
    const { rows } = await client.query(`SELECT outcome FROM docsched_enqueue('default', $1, 1, '{}')`, [taskId]);
    assert.deepEqual(rows, [{ outcome: 'created' }]);
    await client.query('COMMIT');
  } finally {
    await client.end();
  }
}
