/** A store that is slow, full or read-only: 503 with Retry-After, never a false 2xx, and callbacks before submits. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../src/embedded.ts';
import { createLog } from '../../src/log.ts';
import { eventually } from '../support/eventually.ts';
import {
  type Answered,
  ended,
  get,
  type Installation,
  install,
  post,
  setQueue,
  submit,
  submitMany,
} from '../support/installation.ts';
import { startParser } from '../support/parser.ts';
import { type RunningService, startService } from '../support/process.ts';
import { quantile, slowInserts } from '../support/slow-inserts.ts';

const CALLBACKS = 60;
const BATCHES_AT_ONCE = 60;
const DISK_MB = 48;

test('callbacks find a connection while batches of submits wait for theirs', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { MAX_PROCESSING: '200' } });
  const service = await place.start();
  await submitMany(service, tasksFrom(1, CALLBACKS));
  const pushes = await place.parser.waitForPushes(CALLBACKS);
  await setQueue(service, 'held', { paused: true });
  await slowInserts(place.sql, 500);

  let flooding = true;
  let stored = 0;
  const flood = Promise.all(
    Array.from({ length: BATCHES_AT_ONCE }, async (_, lane) => {
      for (let n = 0; flooding; n++) {
        const tasks = tasksFrom(1_000_000 * (lane + 1) + n * 2, 2).map((task) => ({ ...task, queue: 'held' }));
        const { status, body } = await postBatch(service, tasks);
        assert.ok(status === 200 || body.code === 'overloaded', `${status} ${JSON.stringify(body).slice(0, 200)}`);
        if (status === 200) stored += 2;
      }
    }),
  );
  await eventually(() => stored > 0);
  const waits: number[] = [];
  for (const push of pushes) {
    const sentAt = performance.now();
    assert.deepEqual((await place.parser.callback(push)).body, { outcome: 'applied' });
    waits.push(performance.now() - sentAt);
  }
  flooding = false;
  await flood;
  t.diagnostic(`callbacks: p50 ${Math.round(quantile(waits, 0.5))} ms, p99 ${Math.round(quantile(waits, 0.99))} ms`);
  // Not p99, which is the slowest of them: the machine may stand still for a moment.
  assert.ok(quantile(waits, 0.9) < 1_000 && Math.max(...waits) < 10_000, `${waits.map(Math.round)} ms`);
  const { rows } = await place.sql.query(`SELECT count(*)::int AS n FROM task_scheduler_tasks WHERE queue = 'held'`);
  assert.equal(rows[0].n, stored);
});

test('a full disk is a 503 until there is room again', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const disk = await moveToSmallDisk(t, place);
  if (!disk) return t.skip('no tmpfs can be mounted here: it needs root');
  place.parser.autoCallback();
  const service = await place.start();
  const accepted: number[] = [];
  const refused: Answered[] = [];
  const submitLarge = async (task_id: number) => {
    const answer = await submit(service, { task_id, payload: randomBytes(75_000).toString('base64') });
    if (answer.status === 202) accepted.push(task_id);
    else refused.push(answer);
    return answer.status;
  };
  for (let id = 1; id <= 5; id++) assert.equal(await submitLarge(id), 202);
  disk.fill();
  for (let id = 6; refused.length < 20; id++) {
    assert.ok(id < 500, 'the disk does not fill');
    await submitLarge(id);
  }
  for (const answer of refused) assertUnavailable(answer);
  const { rows } = await place.sql.query('SELECT task_id::int FROM task_scheduler_tasks ORDER BY task_id');
  assert.deepEqual(
    rows.map(({ task_id }) => task_id),
    accepted,
  );

  disk.free();
  assert.equal(await eventually(async () => (await submitLarge(1_000)) === 202), true);
  await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: accepted.length }), {
    timeoutMs: 30_000,
  });
  await eventually(async () => assert.equal(await place.slots(), 0));
});

test('a PostgreSQL that became read-only is a 503 until it takes writes again', async (t) => {
  const dataDir = mkdtempSync(join(tmpdir(), 'docsched-read-only-'));
  chmodSync(dataDir, 0o755);
  const server = await startEmbeddedPostgres({ dataDir, log: createLog('silent') });
  const sql = new pg.Client({ connectionString: server.url });
  await sql.connect();
  const parser = await startParser();
  const service = await startService({ env: { DATABASE_URL: server.url, PARSER_URL: parser.url } });
  t.after(async () => {
    await service.kill();
    await Promise.all([parser.stop(), sql.end()]);
    await server.stop();
    rmSync(dataDir, { recursive: true, force: true });
  });
  const setReadOnly = async (value: 'on' | 'off') => {
    await sql.query(`ALTER SYSTEM SET default_transaction_read_only = ${value}`);
    await sql.query('SELECT pg_reload_conf()');
    await eventually(async () => (await get(service, '/readyz')).status === (value === 'on' ? 503 : 200));
  };
  const isReady = async () => (await get(service, '/readyz')).body.status === 'ready';
  await eventually(isReady);
  await submit(service, { task_id: 1 });
  const [push] = await parser.waitForPushes(1);

  await setReadOnly('on');
  assertUnavailable(await submit(service, { task_id: 2 }));
  assertUnavailable(await postBatch(service, tasksFrom(3, 2)));
  const { status, headers, body } = await parser.callback(push!);
  assert.deepEqual([status, body.code, headers['retry-after']], [503, 'store_unavailable', '1']);
  assertUnavailable(await post(service, '/v1/tasks/1/versions/1/cancel'));
  assert.equal((await get(service, '/v1/tasks/1/versions/1')).body.status, 'Processing');
  for (const id of [2, 3]) assert.equal((await get(service, `/v1/tasks/${id}`)).status, 404);

  await setReadOnly('off');
  assert.deepEqual((await parser.callback(push!)).body, { outcome: 'applied' });
  parser.autoCallback();
  assert.equal((await submit(service, { task_id: 2 })).status, 202);
  assert.equal((await ended(service, 2)).status, 'Success');
});

const tasksFrom = (first: number, count: number) => Array.from({ length: count }, (_, i) => ({ task_id: first + i }));

const postBatch = (service: RunningService, tasks: object[]): Promise<Answered> =>
  post(service, '/v1/tasks/batch', { tasks: tasks.map((task) => ({ task_version: 1, payload: null, ...task })) });

function assertUnavailable({ status, headers, body }: Answered): void {
  assert.deepEqual([status, body.code], [503, 'store_unavailable'], JSON.stringify(body));
  assert.match(headers.get('retry-after') ?? '', /^\d+$/);
}

/** The tasks, on a disk that can be filled up. Undefined where none can be had. */
async function moveToSmallDisk(t: TestContext, { sql, database }: Installation) {
  const root = mkdtempSync(join(tmpdir(), 'docsched-disk-'));
  chmodSync(root, 0o755);
  const disk = join(root, 'disk');
  const space = `small_${database.name}`;
  mkdirSync(disk);
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK_MB}m`, 'tmpfs', disk]).status === 0;
  t.after(async () => {
    if (mounted) await dropTablespace(database.url, space).catch(() => {}); // Kept with the database of a failed test.
    if (mounted) spawnSync('umount', ['--lazy', disk]);
    rmSync(root, { recursive: true, force: true });
  });
  if (!mounted) return undefined;
  const { rows } = await sql.query(`SELECT current_setting('data_directory') AS directory`);
  const { uid, gid } = statSync(rows[0].directory);
  const place = join(disk, 'tables');
  mkdirSync(place);
  chownSync(place, uid, gid);
  await sql.query(`CREATE TABLESPACE ${space} LOCATION '${place}'`);
  await sql.query(`ALTER TABLE task_scheduler_tasks SET TABLESPACE ${space}`);
  const ballast = join(disk, 'ballast');
  return {
    fill: () => {
      spawnSync('dd', ['if=/dev/zero', `of=${ballast}`, 'bs=4k']);
    },
    free: () => rmSync(ballast),
  };
}

async function dropTablespace(url: string, space: string): Promise<void> {
  const client = new pg.Client({ connectionString: url.replace(/[^/]*$/, 'postgres') });
  await client.connect();
  await client.query(`DROP TABLESPACE ${space}`).finally(() => client.end());
}
