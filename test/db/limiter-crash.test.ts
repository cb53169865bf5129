/** The PostgreSQL limiter keeps its slots in unlogged tables: what a crash of PostgreSQL makes of them. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { LimiterClosed } from '../../src/limiter/limiter.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, keep, newIds, slotsOf, take } from './limiter-world.ts';

// A server of its own, because this file crashes it.
delete process.env.TEST_POSTGRES_URL;
const world = await createWorld('crash');
after(() => world.end());

test('after a crash of PostgreSQL the slots are those of the open attempts, under a new epoch', async () => {
  const { limiter, backend } = await world.instance('postgres');
  assert.equal((await limiter.runOnce()).status, 'open');
  const ids = await take({ limiter }, 'default', newIds(4), 4);
  const claimed = await world.claim(limiter.epoch(), 'default', ids.slice(0, 3));
  assert.deepEqual(await keep({ limiter }, 'default', claimed, [], 4), []);
  const epoch = limiter.epoch();

  const { rows } = await world.sql.query('SELECT pg_backend_pid() AS pid');
  process.kill(rows[0].pid, 'SIGKILL');
  await eventually(() => assert.rejects(take({ limiter }, 'default', newIds(1), 4), LimiterClosed));
  const held = await eventually(() => backend.check());
  assert.deepEqual(held, { epoch: null, valid: false });
  assert.deepEqual((await world.sql.query('SELECT 1 FROM limiter_slots')).rows, []);

  await eventually(async () => (await limiter.runOnce()).status === 'open');
  assert.notEqual(limiter.epoch(), epoch);
  assert.deepEqual(await slotsOf({ limiter, backend, instanceId: '' }, 'default'), claimed.sort());
  assert.deepEqual(await world.claim(epoch, 'default', newIds(1)), []);
});
