/** Errors that nobody catches, from outside: a process says what happened, and goes on or ends; never silently. */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { get, install, LIMITERS, submit } from '../support/installation.ts';
import { startService } from '../support/process.ts';

describe('an error that nobody catches', { concurrency: 4 }, () => {
  test('in a promise is logged, and the process goes on', async (t) => {
    const { place, service } = await startWith(t, "Promise.reject(new Error('from outside'))");
    process.kill(service.pid, 'SIGUSR2');
    const logged = await service.waitForLine(({ event }) => event === 'unhandled_rejection');
    assert.deepEqual([logged.level, logged.error], ['error', 'Error: from outside']);
    assert.match(String(logged.stack), /\n\s+at /);
    assert.equal((await submit(service, { task_id: 1 })).status, 202);
    await place.parser.waitForPushes(1);
    await service.kill();
  });

  test('outside of a promise is logged, and the process ends with 1', async (t) => {
    const { service } = await startWith(t, "setImmediate(() => { throw new Error('from outside') })");
    process.kill(service.pid, 'SIGUSR2');
    const logged = await service.waitForLine(({ event }) => event === 'uncaught_exception');
    assert.deepEqual([logged.level, logged.error], ['fatal', 'Error: from outside']);
    assert.deepEqual(await service.exited, { code: 1, signal: null });
  });

  for (const limiter of LIMITERS)
    test(`of a connection that nobody is using is logged, and the process goes on (${limiter})`, async (t) => {
      const place = await install(t, { limiter });
      const service = await place.start();
      await eventually(async () => {
        await place.sql.query(
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'docsched' AND state = 'idle'`,
        );
        return service.lines.some((line) => line.includes('"db_idle_connection_lost"'));
      });
      if (limiter === 'redis') {
        await place.redis.restart({ empty: true });
        await service.waitForLine(({ event }) => event === 'redis_connection_error' || event === 'limiter_rebuilt');
      }
      assert.equal((await submit(service, { task_id: 1 })).status, 202);
      await place.parser.waitForPushes(1);
      await eventually(async () => assert.equal((await get(service, '/readyz')).body.status, 'ready'));
    });
});

/** A service that does this when it gets SIGUSR2. */
async function startWith(t: TestContext, statement: string) {
  const place = await install(t, { limiter: 'postgres' });
  const preload = `process.on('SIGUSR2', () => { ${statement}; });`;
  const nodeArgs = ['--import', `data:text/javascript,${encodeURIComponent(preload)}`];
  const service = await startService({ env: place.env, nodeArgs });
  t.after(() => service.kill());
  return { place, service };
}
