/** How an instance ends: in time, with what it accepted kept; and how it refuses to begin. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { describe, test } from 'node:test';
import { hang } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Answered, get, install, LIMITERS, submit, submitMany } from '../support/installation.ts';
import { startService } from '../support/process.ts';
import { startRedis } from '../support/redis.ts';

/** Ending a process takes a moment beside the time the parts are given. */
const EXIT_MS = 8_000;

describe('an instance that is told to stop', { concurrency: 2 }, () => {
  for (const limiter of LIMITERS) {
    test(`ends in time under load, and another one finishes what it accepted (${limiter})`, async (t) => {
      const place = await install(t, {
        limiter,
        env: { PROCESSING_EXPIRED_MS: '2000', RETRY_BASE_MS: '100', SHUTDOWN_TIMEOUT_MS: '3000' },
      });
      place.parser.autoCallback({ afterMs: 50 });
      const [first, second] = await Promise.all([place.start(), place.start()]);
      const accepted: number[] = [];
      const refused: Answered[] = [];
      /** Until it is refused, or the connection is. */
      const submitting = [0, 1, 2, 3].map(async (lane) => {
        for (let id = lane; ; id += 4) {
          const answered = await submit(first, { task_id: id }).catch(() => null);
          if (answered?.status === 202) accepted.push(id);
          else if (answered) refused.push(answered);
          if (answered?.status !== 202) return;
        }
      });
      await eventually(() => accepted.length >= 100);
      const { code, ms } = await first.stop();
      await Promise.all(submitting);

      assert.equal(code, 0);
      assert.ok(ms < 3_000 + EXIT_MS, `${ms} ms`);
      for (const { status, body } of refused) assert.deepEqual([status, body.code], [503, 'shutting_down']);
      assert.deepEqual(linesAt(first, 'error'), []);
      await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: accepted.length }), {
        timeoutMs: 30_000,
      });
      assert.ok(place.parser.outstanding.surely.max <= 10);
      await eventually(async () => assert.equal(await place.slots(), 0));
      assert.equal((await second.stop()).code, 0);
    });

    test(`answers every callback that it has taken, and leaves no slot behind (${limiter})`, async (t) => {
      const place = await install(t, { limiter, env: { RECONCILE_CRON: '0 0 0 1 1 *', SHUTDOWN_TIMEOUT_MS: '3000' } });
      const { parser } = place;
      const service = await place.start();
      await submitMany(service, [{ task_id: 1 }, { task_id: 2 }, { task_id: 3 }]);
      const pushes = await parser.waitForPushes(3);
      const waiting = get(service, '/v1/tasks/1/versions/1?wait=60');
      await get(service, '/livez'); // Answered after the waiting one was read.
      const callbacks = pushes.map((push) => parser.callback(push).catch(() => null));
      const [stopped, ...replies] = await Promise.all([service.stop(), ...callbacks]);
      assert.equal(stopped.code, 0);
      const applied = replies.filter((reply) => reply?.body.outcome === 'applied').length;
      assert.equal(replies.filter((reply) => reply !== null).length, applied, 'taken means applied');
      assert.equal((await place.countTasks()).Success ?? 0, applied);
      assert.equal(await place.slots(), 3 - applied);
      assert.equal((await waiting).status, 200);
    });

    test(`ends in time although the parser hangs, and the attempts stay open (${limiter})`, async (t) => {
      const place = await install(t, { limiter, env: { SHUTDOWN_TIMEOUT_MS: '1000' } });
      place.parser.answerWith(hang);
      const service = await place.start();
      await submitMany(service, [{ task_id: 1 }, { task_id: 2 }]);
      await place.parser.waitForPushes(2);
      const { code, ms } = await service.stop();
      assert.equal(code, 0);
      assert.ok(ms < 1_000 + EXIT_MS, `${ms} ms`);
      assert.deepEqual(await place.countTasks(), { Processing: 2 });
      assert.equal(await place.slots(), 2);
      const next = await place.start({ PORT: new URL(service.url).port });
      for (const push of place.parser.pushes.slice())
        assert.equal((await place.parser.callback(push)).body.outcome, 'applied');
      assert.deepEqual(await place.countTasks(), { Success: 2 });
      assert.equal((await next.stop()).code, 0);
    });
  }

  test('ends at once when it is told twice', async (t) => {
    const place = await install(t, {
      limiter: 'postgres',
      env: { SHUTDOWN_TIMEOUT_MS: '20000', PUSH_TIMEOUT_MS: '60000' },
    });
    place.parser.answerWith(hang);
    const service = await place.start();
    await submit(service, { task_id: 1 });
    await place.parser.waitForPushes(1);
    process.kill(service.pid, 'SIGTERM');
    await service.waitForLine((event) => event.event === 'stopping');
    const { code, ms } = await service.stop();
    assert.notEqual(code, 0);
    assert.ok(ms < EXIT_MS, `${ms} ms`);
  });

  test('ends in time while it still starts', async (t) => {
    const silent = createServer().listen(0, '127.0.0.1');
    t.after(() => silent.close());
    await once(silent, 'listening');
    const asked = once(silent, 'connection') as Promise<[Socket]>;
    const DATABASE_URL = `postgres://nobody@127.0.0.1:${(silent.address() as AddressInfo).port}/nothing`;
    const service = await startService({ ready: false, env: { DATABASE_URL, SHUTDOWN_TIMEOUT_MS: '300' } });
    const [socket] = await asked;
    t.after(() => socket.destroy());
    const { code, ms } = await service.stop();
    assert.equal(code, 0);
    assert.ok(ms < 4_000, `${ms} ms`);
  });

  test('ends in time with Redis away', async (t) => {
    const place = await install(t, { limiter: 'redis', env: { SHUTDOWN_TIMEOUT_MS: '1000' } });
    const service = await place.start();
    await place.redis.kill();
    await eventually(async () => ((await get(service, '/readyz')).body.status as string) === 'degraded');
    const { code, ms } = await service.stop();
    assert.equal(code, 0);
    assert.ok(ms < 1_000 + EXIT_MS, `${ms} ms`);
  });
});

describe('an instance with settings that cannot be', { concurrency: true }, () => {
  test('exits with 78 and lists every problem', async () => {
    const service = await startService({
      env: {
        DATABASE_URL: 'mysql://user:secret@somewhere/db',
        HOST: '0.0.0.0',
        MAX_PROCESSING: 'ten',
        PUSH_TIMEOUT_MS: '99',
        PORT: '70000',
        ROLES: 'api,boss',
        WATCH_CRON: 'often',
        MAX_RETIRES: '3',
      },
      ready: false,
    });
    assert.deepEqual(await service.exited, { code: 78, signal: null });
    const said = service.lines.join('\n');
    for (const name of ['DATABASE_URL', 'PUBLIC_URL', 'PUSH_TIMEOUT_MS', 'PORT', 'ROLES', 'WATCH_CRON'])
      assert.match(said, new RegExp(`^ *${name}: `, 'm'), name);
    assert.match(said, /MAX_PROCESSING: expected integer 1\.\.100000, got 'ten'/);
    assert.match(said, /MAX_RETIRES: .*did you mean MAX_RETRIES\?/);
    assert.doesNotMatch(said, /secret/);
  });

  test('exits with 78 when a schedule is none', async () => {
    const service = await startService({
      env: { WATCH_CRON: '* * * * * 99', PROMOTE_CRON: 'a b c d e f' },
      ready: false,
    });
    assert.deepEqual(await service.exited, { code: 78, signal: null });
    for (const name of ['WATCH_CRON', 'PROMOTE_CRON']) assert.match(service.lines.join('\n'), new RegExp(name));
  });

  test('exits with 78 when Redis may evict slots', async (t) => {
    const redis = await startRedis({ args: ['--maxmemory', '100mb', '--maxmemory-policy', 'allkeys-lru'] });
    t.after(() => redis.stop());
    const place = await install(t, { limiter: 'postgres', env: { REDIS_URL: redis.url } });
    const service = await startService({ env: place.env, ready: false });
    assert.deepEqual(await service.exited, { code: 78, signal: null });
    assert.match(service.lines.join('\n'), /maxmemory-policy is 'allkeys-lru' and must be 'noeviction'/);
  });
});

const linesAt = ({ lines }: { lines: readonly string[] }, level: string): string[] =>
  lines.filter((line) => line.includes(`"level":"${level}"`));
