/**
 * What probes and load balancers see: /livez asks nothing outside, /readyz names each loop with the age of its last
 * success and its limit, and a stop is announced before anything is refused.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request } from 'node:http';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { accept, hang } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Answered, get, type Installation, install, submit, submitMany } from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

type Check = { ok: boolean; last_ok_age_ms: number | null; limit_ms: number; detail?: string };

const EVERYWHERE = ['database', 'limiter', 'listener', 'promoter', 'queues', 'sampler', 'waiter'];
const WATCHER = ['clean', 'expire_pending', 'expire_processing', 'fold_counts', 'promote', 'reconcile', 'retain'];
/** A fifth of it is for draining. */
const SHUTDOWN_TIMEOUT_MS = 40_000;
const DRAIN_MS = SHUTDOWN_TIMEOUT_MS / 5;

const checksOf = ({ body }: Answered) => body.checks as Record<string, Check>;
const failing = (answered: Answered) =>
  Object.entries(checksOf(answered))
    .filter(([, { ok }]) => !ok)
    .map(([name]) => name);

async function lives(instance: RunningService): Promise<void> {
  const times: number[] = [];
  for (let i = 0; i < 20; i++) {
    const began = performance.now();
    assert.deepEqual((await get(instance, '/livez')).body, { status: 'alive' });
    times.push(performance.now() - began);
  }
  assert.ok(times.toSorted((a, b) => a - b)[10]! < 50, `/livez takes ${times.map(Math.round)} ms`);
}

/** Connections to the installation's database: `allowed`, or cut and refused. */
async function allowDatabase({ database }: Installation, allowed: boolean): Promise<void> {
  const url = new URL(database.url);
  url.pathname = '/postgres';
  const admin = new pg.Client({ connectionString: url.href });
  await admin.connect();
  await admin.query(`ALTER DATABASE ${database.name} WITH ALLOW_CONNECTIONS ${allowed}`);
  await admin.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [database.name]);
  await admin.end();
}

/** Over a connection of its own; null when none is to be had. */
async function ask(url: string, method: 'GET' | 'POST', body?: unknown): Promise<Answered | null> {
  const asking = request(url, { method, agent: false, headers: { 'content-type': 'application/json' } });
  asking.end(body === undefined ? undefined : JSON.stringify(body));
  try {
    const [answer] = await once(asking, 'response');
    const text = (await answer.toArray()).join('');
    return { status: answer.statusCode, body: JSON.parse(text), headers: new Headers(answer.headers) };
  } catch {
    return null;
  }
}

describe('/readyz', { concurrency: true }, () => {
  test('names every loop of the instance with the age of its last success and its limit', async (t) => {
    const place = await install(t, { limiter: 'redis' });
    const all = await place.start();
    const api = await place.start({ ROLES: 'api' });
    for (const [instance, names] of [
      [all, [...EVERYWHERE, 'pusher', ...WATCHER.map((job) => `watcher_${job}`)]],
      [api, EVERYWHERE],
    ] as const) {
      const ready = await eventually(async () => {
        const answered = await get(instance, '/readyz');
        assert.equal(answered.body.status, 'ready', failing(answered).join());
        return answered;
      });
      assert.equal(ready.status, 200);
      assert.deepEqual(Object.keys(checksOf(ready)).toSorted(), names.toSorted());
      for (const [name, { ok, last_ok_age_ms: age, limit_ms: limit }] of Object.entries(checksOf(ready)))
        assert.ok(ok && age !== null && age >= 0 && age <= limit && limit <= 120_000, name);
      const metrics = await (await fetch(`${instance.url}/metrics`)).text();
      for (const name of names) assert.match(metrics, new RegExp(`docsched_loop_stall_limit_seconds\\{loop="${name}"`));
    }
  });

  test('is `degraded` and 200 with Redis away, 503 with PostgreSQL away; /livez answers in ms with both away', async (t) => {
    const place = await install(t, { limiter: 'redis' });
    const instance = await place.start();
    await eventually(async () => assert.equal((await get(instance, '/readyz')).body.status, 'ready'));

    place.redis.pause();
    const degraded = await eventually(async () => {
      const answered = await get(instance, '/readyz');
      assert.equal(answered.body.status, 'degraded');
      return answered;
    });
    assert.equal(degraded.status, 200);
    assert.deepEqual(
      failing(degraded).filter((name) => !name.startsWith('watcher_')),
      ['limiter'],
    );
    assert.match(checksOf(degraded).limiter!.detail!, /redis/i);
    await lives(instance);

    await allowDatabase(place, false);
    const unready = await eventually(async () => {
      const answered = await get(instance, '/readyz');
      assert.equal(answered.body.status, 'unready');
      return answered;
    });
    assert.equal(unready.status, 503);
    assert.equal(unready.headers.get('retry-after'), '1');
    const { database } = checksOf(unready);
    assert.ok(database!.last_ok_age_ms! > database!.limit_ms);
    assert.ok(database!.detail);
    await lives(instance);
    assert.equal((await fetch(`${instance.url}/metrics`)).status, 200);

    await allowDatabase(place, true);
    place.redis.resume();
    await eventually(async () => assert.equal((await get(instance, '/readyz')).body.status, 'ready'), {
      timeoutMs: 30_000,
    });
  });
});

describe('an instance that is told to stop', { concurrency: true }, () => {
  test('says so in /readyz first, takes everything for a while, then refuses submits, and stops listening last', async (t) => {
    const place = await install(t, {
      limiter: 'postgres',
      env: { SHUTDOWN_TIMEOUT_MS: String(SHUTDOWN_TIMEOUT_MS), MAX_PROCESSING: '1' },
    });
    const { parser } = place;
    const instance = await place.start();
    await eventually(async () => assert.equal((await get(instance, '/readyz')).status, 200));
    await submit(instance, { task_id: 1 });
    const [push] = await parser.waitForPushes(1);
    const { url } = instance;
    const submitAgain = (id: number) => ask(`${url}/v1/tasks`, 'POST', { task_id: id, task_version: 1, payload: null });

    const began = performance.now();
    const stopped = instance.stop();
    await eventually(async () => {
      const answered = await ask(`${url}/readyz`, 'GET');
      assert.deepEqual([answered?.status, answered?.body.status], [503, 'draining']);
    });
    assert.equal((await submitAgain(2))?.status, 202, 'a new connection is served while it drains');
    assert.equal((await parser.callback(push!)).body.outcome, 'applied');
    assert.equal((await ask(`${url}/livez`, 'GET'))?.status, 200);
    assert.ok(performance.now() - began < DRAIN_MS, 'too slow to tell');

    let taken = 0;
    for (let id = 3; ; id++) {
      const answered = await submitAgain(id);
      if (answered?.status !== 202) {
        if (answered) assert.deepEqual([answered.status, answered.body.code], [503, 'shutting_down']);
        break;
      }
      taken += 1;
      await sleep(10);
    }
    const refusedAfter = performance.now() - began;
    assert.ok(refusedAfter >= DRAIN_MS - 50, `submits were refused after ${refusedAfter} ms`);
    const { code, ms } = await stopped;
    assert.equal(code, 0);
    assert.ok(ms < SHUTDOWN_TIMEOUT_MS, `${ms} ms`);
    assert.equal(parser.pushes.length, 1, 'nothing more is pushed from the signal on');
    assert.deepEqual(await place.countTasks(), { Success: 1, Pending: taken + 1 });
  });

  test('answers callbacks, probes and scrapes when it takes no submits any more', async (t) => {
    const place = await install(t, { limiter: 'postgres', env: { SHUTDOWN_TIMEOUT_MS: '10000' } });
    const { parser } = place;
    // A push that hangs keeps the instance from ending.
    parser.answerWith((pushes, req, res) => (pushes[0]!.body.task_id === '1' ? hang : accept)(pushes, req, res));
    const instance = await place.start();
    await submitMany(instance, [{ task_id: 1 }, { task_id: 2 }]);
    const pushes = await parser.waitForPushes(2);
    const { url } = instance;
    const stopped = instance.stop();
    await eventually(async () => {
      const refused = await ask(`${url}/v1/tasks`, 'POST', { task_id: 3, task_version: 1, payload: null });
      assert.deepEqual([refused?.status, refused?.body.code], [503, 'shutting_down']);
    });
    const [accepted] = pushes.filter(({ body }) => body.task_id === '2');
    assert.equal((await parser.callback(accepted!)).body.outcome, 'applied');
    assert.equal((await ask(`${url}/livez`, 'GET'))?.status, 200);
    assert.equal((await ask(`${url}/readyz`, 'GET'))?.body.status, 'draining');
    assert.equal((await fetch(`${url}/metrics`)).status, 200);
    assert.equal((await stopped).code, 0);
  });

  test('waits for nobody when nobody asks /readyz', async (t) => {
    const place = await install(t, { limiter: 'postgres', env: { SHUTDOWN_TIMEOUT_MS: '60000' } });
    const instance = await place.start();
    const { code, ms } = await instance.stop();
    assert.equal(code, 0);
    assert.ok(ms < 10_000, `${ms} ms`);
  });
});
