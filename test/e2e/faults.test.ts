/** Stores that go away or forget, processes that are killed, parsers that repeat themselves: nothing is lost or doubled. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import type { Push } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import {
  type Answered,
  get,
  getAttempts,
  getTask,
  type Installation,
  install,
  LIMITERS,
  NO_RECONCILIATION,
  post,
  submit,
  submitMany,
} from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';
import type { TestRedis } from '../support/redis.ts';

const LIMIT = 5;
/** Repair as soon and as often as possible: whatever it could do wrong it does. */
const EAGER = { RECONCILE_CRON: '* * * * * *', ACQUIRE_TTL_MS: '500', MAX_PROCESSING: String(LIMIT) };
/** More than a look at the limiter and several rounds of the safety net. */
const QUIET_MS = 1_500;
/** What asked for Redis would not be done within this; tried several times, as the machine may be busy for a moment. */
const AT_ONCE_MS = 1_000;
const TRIES = 3;

type Step = (redis: TestRedis, older: string) => unknown;
/** `fail` alone: Redis is back at once. With `mend` it is away in between. */
const REDIS_FAULTS: Record<string, { fail: Step; mend?: Step }> = {
  'is emptied': { fail: ({ url }) => withRedis(url, (client) => client.flushall()) },
  'restarts empty': { fail: (redis) => redis.restart({ empty: true }) },
  'restarts from an older snapshot': { fail: (redis, older) => redis.restartFrom(older) },
  'is killed and comes back': {
    fail: (redis) => redis.kill(),
    mend: (redis) => redis.restart({ empty: true }),
  },
  'is killed and comes back from an older snapshot': {
    fail: (redis) => redis.kill(),
    mend: (redis, older) => redis.restartFrom(older),
  },
  'does not answer for a while': { fail: (redis) => redis.pause(), mend: (redis) => redis.resume() },
};

describe('with all slots held by long parses', { concurrency: 4 }, () => {
  for (const [name, { fail, mend }] of Object.entries(REDIS_FAULTS))
    test(`a Redis that ${name} never lets the parser have more than its limit`, async (t) => {
      // No reconciliation: that the slots are right again is the rebuild's doing alone.
      const place = await install(t, { limiter: 'redis', env: { ...EAGER, ...NO_RECONCILIATION } });
      const { parser, redis } = place;
      const [one, two] = await Promise.all([place.start(), place.start()]);
      const ids = Array.from({ length: 30 }, (_, i) => ({ task_id: i }));
      await submitMany(one, ids.slice(0, 2));
      await parser.waitForPushes(2);
      const older = await redis.save();
      for (const push of parser.pushes.slice()) await parser.callback(push);
      await submitMany(two, ids.slice(2));
      await parser.waitForPushes(2 + LIMIT);

      await fail(redis, older);
      let settled = 2;
      if (mend) {
        for (const instance of [one, two]) await eventually(() => hasStatus(instance, 'degraded'));
        const times: number[] = [];
        for (let i = 0; i < TRIES; i++) {
          const began = performance.now();
          assert.equal((await submit(one, { task_id: 100 + i })).status, 202);
          const answered = await parser.callback(parser.pushes[settled++]!);
          assert.deepEqual([answered.status, answered.body.outcome], [200, 'applied']);
          times.push(performance.now() - began);
        }
        assert.ok(Math.min(...times) < AT_ONCE_MS, `neither waits for Redis: ${times.map(Math.round)} ms`);
        assert.equal(parser.pushes.length, 2 + LIMIT, 'nothing is pushed without a limiter');
        await mend(redis, older);
        await parser.waitForPushes(settled + LIMIT);
      }
      for (const instance of [one, two]) await eventually(() => hasStatus(instance, 'ready'));
      await sleep(QUIET_MS); // That nothing more is pushed can only be seen by waiting.
      assert.equal(parser.pushes.length, settled + LIMIT, 'the slots of all open attempts are counted again');
      assert.equal(await place.slots(), LIMIT);

      await parser.callback(parser.pushes[settled]!);
      await parser.waitForPushes(settled + LIMIT + 1);
      parser.autoCallback({ afterMs: 10 });
      for (const push of parser.pushes.slice(settled + 1)) await parser.callback(push);
      await allSuccess(place, mend ? 30 + TRIES : 30);
      assert.equal(parser.outstanding.surely.max, LIMIT);
      await eventually(async () => assert.equal(await place.slots(), 0));
    });
});

describe('when processes and connections break', { concurrency: 4 }, () => {
  for (const limiter of LIMITERS) {
    test(`when PostgreSQL drops every connection, submits are accepted or told to come back, and none is lost (${limiter})`, async (t) => {
      const place = await install(t, { limiter, env: EAGER });
      place.parser.autoCallback({ afterMs: 20 });
      const instances = await Promise.all([place.start(), place.start()]);
      const answers: Answered[] = [];
      const accepted: number[] = [];
      let stop = false;
      const submitting = [0, 1, 2, 3].map(async (lane) => {
        for (let i = 0; !stop; i++) {
          const id = 4 * i + lane;
          const answered = await submit(instances[lane % 2]!, { task_id: id, max_retries: 1_000 });
          answers.push(answered);
          if (answered.status === 202) accepted.push(id);
        }
      });
      for (let round = 1; round <= 4; round++) {
        await eventually(() => accepted.length >= round * 50);
        await place.sql.query(
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name LIKE 'docsched%'`,
        );
      }
      stop = true;
      await Promise.all(submitting);

      const refused = answers.filter(({ status }) => status !== 202);
      for (const { status, body, headers } of refused) {
        assert.deepEqual([status, body.code], [503, 'store_unavailable']);
        assert.match(headers.get('content-type')!, /^application\/problem\+json/);
        assert.equal(headers.get('retry-after'), '1');
      }
      // What was answered 503 may have been stored all the same, so the table may hold more than was accepted.
      await eventually(async () => {
        const { Pending, Processing } = await place.countTasks();
        assert.deepEqual([Pending, Processing], [undefined, undefined]);
      });
      const { rows } = await place.sql.query('SELECT task_id FROM task_scheduler_tasks WHERE status = 2');
      const succeeded = new Set(rows.map(({ task_id }) => Number(task_id)));
      assert.deepEqual(
        accepted.filter((id) => !succeeded.has(id)),
        [],
      );
      assert.ok(place.parser.outstanding.surely.max <= LIMIT);
      await eventually(async () => assert.equal(await place.slots(), 0));
    });

    test(`after kill -9 of an instance at work another one finishes everything (${limiter})`, async (t) => {
      const place = await install(t, {
        limiter,
        env: { ...EAGER, PROCESSING_EXPIRED_MS: '2000', RETRY_BASE_MS: '100' },
      });
      const { parser } = place;
      parser.autoCallback({ afterMs: 100 });
      const [victim, other] = await Promise.all([place.start(), place.start()]);
      await submitMany(victim, tasksFrom(0, 60));
      await parser.waitForPushes(20);
      await victim.kill();
      await allSuccess(place, 60);
      const { rows } = await place.sql.query('SELECT max(retry_count) AS most FROM task_scheduler_tasks');
      assert.ok(rows[0].most <= 1, 'an attempt of the killed instance is one retry');
      assert.ok(parser.outstanding.surely.max <= LIMIT, `${parser.outstanding.surely.max} outstanding`);
      assert.equal((await getTask(other, 0)).status, 'Success');
      await eventually(async () => assert.equal(await place.slots(), 0));
    });

    for (const way of ['SIGTERM', 'SIGKILL'] as const)
      test(`callbacks of attempts pushed before a restart (${way}) are accepted by the new process (${limiter})`, async (t) => {
        const place = await install(t, { limiter, env: EAGER });
        const { parser } = place;
        const before = await place.start();
        await submitMany(before, tasksFrom(0, LIMIT + 1));
        await parser.waitForPushes(LIMIT);
        if (way === 'SIGTERM') assert.equal((await before.stop()).code, 0);
        else await before.kill();
        const after = await place.start({ PORT: new URL(before.url).port });
        await sleep(QUIET_MS); // That nothing is pushed a second time can only be seen by waiting.
        assert.equal(parser.pushes.length, LIMIT);
        for (const push of parser.pushes.slice()) {
          const { status, body } = await parser.callback(push, { result: push.body.task_id });
          assert.deepEqual([status, body.outcome], [200, 'applied']);
        }
        await parser.waitForPushes(LIMIT + 1);
        await parser.callback(parser.pushes.at(-1)!, { result: 'last' });
        await allSuccess(place, LIMIT + 1);
        assert.equal((await getTask(after, 0)).result, '0');
        assert.equal(parser.outstanding.surely.max, LIMIT);
        await eventually(async () => assert.equal(await place.slots(), 0));
      });

    test(`each attempt is reported on once, whatever else is said about it (${limiter})`, async (t) => {
      const place = await install(t, {
        limiter,
        env: { ...EAGER, RETRY_BASE_MS: '100', RESULT_MAX_BYTES: '1000', MAX_RETRIES: '1' },
      });
      const service = await place.start();
      const at = reporting(place, service);

      await t.test('a repeated callback is a duplicate, also with another outcome', async () => {
        const push = await at.pushOf(1);
        await at.answers(push, { status_code: 0, result: 'first' }, 200, 'applied');
        await at.answers(push, { status_code: 0, result: 'second' }, 200, 'duplicate');
        await at.answers(push, { status_code: 5 }, 200, 'duplicate');
        const task = await getTask(service, 1);
        assert.deepEqual([task.status, task.result, task.status_code], ['Success', 'first', 0]);
      });

      await t.test('of twenty callbacks at once exactly one is applied', async () => {
        const push = await at.pushOf(2);
        const codes = Array.from({ length: 20 }, (_, i) => i);
        const replies = await Promise.all(codes.map((status_code) => place.parser.callback(push, { status_code })));
        const outcomes = replies.map(({ body }) => body.outcome);
        assert.equal(outcomes.filter((outcome) => outcome === 'applied').length, 1);
        assert.equal(outcomes.filter((outcome) => outcome === 'duplicate').length, 19);
        const winner = codes[outcomes.indexOf('applied')];
        const task = await getTask(service, 2);
        assert.deepEqual([task.status_code, task.status === 'Success'], [winner, winner === 0]);
        if (winner !== 0) await at.answers(await at.pushOf(2, 2), { status_code: 0 }, 200, 'applied');
      });

      await t.test(
        'the callback of a failure that became a retry is a duplicate and leaves the retry alone',
        async () => {
          const first = await at.pushOf(3);
          await at.answers(first, { status_code: 9 }, 200, 'applied');
          const second = await at.pushOf(3, 2);
          await at.answers(first, { status_code: 9 }, 200, 'duplicate');
          await at.answers(first, { status_code: 0 }, 200, 'duplicate');
          const task = await getTask(service, 3);
          assert.deepEqual([task.status, task.attempt, task.retry_count], ['Processing', 2, 1]);
          await eventually(async () => assert.equal(await place.slots(), 1));
          await at.answers(second, { status_code: 0 }, 200, 'applied');
        },
      );

      await t.test(
        'the callback of an attempt that was closed at its deadline is stale and frees nothing',
        async () => {
          const first = await at.pushOf(4);
          await place.sql.query('UPDATE attempts SET deadline = docsched_now() - 1 WHERE attempt_id = $1', [
            first.body.attempt_id,
          ]);
          const second = await at.pushOf(4, 2);
          await at.answers(first, { status_code: 0 }, 409, 'stale_attempt');
          assert.equal((await getTask(service, 4)).status, 'Processing');
          await eventually(async () => assert.equal(await place.slots(), 1));
          await at.answers(second, { status_code: 0 }, 200, 'applied');
          await at.answers(first, { status_code: 0 }, 409, 'stale_attempt');
          const [closed, settled] = await getAttempts(service, 4);
          assert.match(closed!.outcome!, /^(in_doubt|processing)_expired$/);
          assert.equal(settled!.outcome, 'success');
        },
      );

      await t.test('an attempt id that was never given out is unknown', async () => {
        const push = await at.pushOf(5);
        for (const wrong of [randomBytes(24).toString('base64url'), push.body.attempt_id.slice(0, -1), 'x', '%00']) {
          const { status, body } = await post(service, `/v1/callbacks/${wrong}`, { status_code: 0, result: null });
          assert.deepEqual([status, body.code], [404, 'unknown_attempt'], wrong);
        }
        assert.equal((await getTask(service, 5)).status, 'Processing');
      });

      await t.test('the plain form names its attempt, and the right one', async () => {
        const { attempt_id } = (await at.pushOf(5)).body;
        const plain = (body: object) =>
          post(service, '/v1/callbacks', { task_version: '1', status_code: 0, result: null, ...body });
        const without = await plain({ task_id: '5' });
        assert.ok(without.status >= 400 && without.status < 500, `${without.status} without attempt_id`);
        for (const wrong of [{ task_id: '4' }, { task_id: '5', task_version: '2' }]) {
          const { status, body } = await plain({ ...wrong, attempt_id });
          assert.deepEqual([status, body.code], [404, 'unknown_attempt']);
        }
        assert.equal((await getTask(service, 5)).status, 'Processing');
        assert.deepEqual((await plain({ task_id: 5, attempt_id })).body, { outcome: 'applied' });
        assert.deepEqual((await plain({ task_id: '5', attempt_id })).body, { outcome: 'duplicate' });
        assert.equal((await getTask(service, 5)).status, 'Success');
      });

      await t.test('a malformed or too large callback settles nothing', async () => {
        const push = await at.pushOf(6);
        const path = `/v1/callbacks/${push.body.attempt_id}`;
        for (const wrong of [{}, { status_code: 'ok' }, { status_code: 1.5 }, { status_code: 0, status_msg: 7 }])
          assert.equal((await post(service, path, { result: null, ...wrong })).status, 400, JSON.stringify(wrong));
        assert.equal((await post(service, path, [])).status, 400);
        const large = await post(service, path, { status_code: 0, result: 'x'.repeat(1_001) });
        assert.deepEqual([large.status, large.body.code], [413, 'result_too_large']);
        assert.equal((await getTask(service, 6)).status, 'Processing');
        await at.answers(push, { status_code: 0, result: 'short' }, 200, 'applied');
      });

      await t.test('a callback needs no more than its status_code', async () => {
        const push = await at.pushOf(7);
        const { status, body } = await post(service, `/v1/callbacks/${push.body.attempt_id}`, { status_code: 0 });
        assert.deepEqual([status, body.outcome], [200, 'applied'], JSON.stringify(body));
        assert.equal((await getTask(service, 7)).result, null);
      });

      await eventually(async () => assert.equal(await place.slots(), 0));
    });
  }
});

const tasksFrom = (first: number, count: number) => Array.from({ length: count }, (_, i) => ({ task_id: first + i }));

async function withRedis(url: string, work: (client: Redis) => Promise<unknown>): Promise<void> {
  const client = new Redis(url);
  await work(client);
  client.disconnect();
}

async function hasStatus(instance: RunningService, status: string): Promise<boolean> {
  const ready = await get(instance, '/readyz');
  assert.equal(ready.status, 200);
  const { limiter } = ready.body.checks as { limiter: { ok: boolean } };
  return ready.body.status === status && limiter.ok === (status === 'ready');
}

const allSuccess = (place: Installation, count: number) =>
  eventually(async () => assert.deepEqual(await place.countTasks(), { Success: count }), { timeoutMs: 20_000 });

function reporting({ parser }: Installation, service: RunningService) {
  const pushesOf = (id: number) => parser.pushes.filter(({ body }) => body.task_id === String(id));
  return {
    /** The `number`th push of the task, which is submitted for the first. */
    pushOf: async (id: number, number = 1): Promise<Push> => {
      if (pushesOf(id).length === 0) await submit(service, { task_id: id });
      await eventually(() => pushesOf(id).length >= number);
      return pushesOf(id)[number - 1]!;
    },
    answers: async (push: Push, report: { status_code: number; result?: unknown }, status: number, word: string) => {
      const answered = await parser.callback(push, report);
      assert.deepEqual([answered.status, answered.body.outcome ?? answered.body.code], [status, word]);
    },
  };
}
