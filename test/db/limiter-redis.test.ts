/** What is special to Redis: its data can vanish, come back older, or be out of reach, and it may be set up to evict. */
import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LimiterClosed } from '../../src/limiter/limiter.ts';
import { checkRedis, UnfitRedisError } from '../../src/limiter/redis.ts';
import { createLog } from '../../src/log.ts';
import { createRedis } from '../../src/redis.ts';
import { eventually } from '../support/eventually.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';
import {
  createWorld,
  type Instance,
  keep,
  limitsFrom,
  marksOf,
  newId,
  newIds,
  slotsOf,
  take,
  type World,
  withRedis,
} from './limiter-world.ts';

/** Without it a first replica waits five seconds for company. */
const DISKLESS = ['--repl-diskless-sync-delay', '0'];

describe('the redis limiter when Redis fails', () => {
  let world: World;
  let server: TestRedis;
  let one: Instance;
  const queue = 'default';

  before(async () => {
    world = await createWorld('redis_failures');
  });
  after(() => world.end());
  beforeEach(async () => {
    await world.sql.query('TRUNCATE attempts, limiter_state');
    server = await startRedis({ args: DISKLESS });
    one = await world.instance({ url: server.url });
    await opened(one);
  });
  afterEach(async () => {
    await one.limiter.stop();
    await server.stop();
  });

  const opened = ({ limiter }: Instance) => eventually(async () => (await limiter.runOnce()).status === 'open');
  const acquireAndClaim = async (count: number, limit: number) => {
    const ids = await take(one, queue, newIds(count), limit);
    return world.claim(one.limiter.epoch(), queue, ids);
  };

  test('started, it opens again by itself after FLUSHALL, with the open attempts counted', async () => {
    await one.limiter.start();
    const ids = await acquireAndClaim(2, 2);
    await withRedis(server.url, (client) => client.flushall());
    await eventually(async () => assert.equal((await one.limiter.usage([queue])).get(queue), 2));
    assert.deepEqual(await slotsOf(one, queue), ids.sort());
    assert.deepEqual(await take(one, queue, newIds(1), 2), []);
  });

  test('restarted empty, nothing is acquired before the open attempts are counted again', async () => {
    const ids = await acquireAndClaim(2, 2);
    await server.restart({ empty: true });
    await eventually(() => assert.rejects(take(one, queue, newIds(1), 2), (e) => e instanceof LimiterClosed));
    await opened(one);
    assert.deepEqual(await slotsOf(one, queue), ids.sort());
    assert.deepEqual(await take(one, queue, newIds(1), 2), []);
  });

  test('restarted from an older snapshot, its slots and its epoch count as lost', async () => {
    const early = await acquireAndClaim(1, 2);
    const snapshot = await server.save();
    const late = await acquireAndClaim(1, 2);
    const epoch = one.limiter.epoch()!;
    await server.restartFrom(snapshot);
    const held = await eventually(() => one.backend.check());
    assert.deepEqual(held, { epoch, valid: false });
    for (const refused of [
      one.backend.acquire(epoch, queue, newIds(1), limitsFrom(2), 1_000),
      one.backend.confirm(epoch, queue, { fresh: late, retries: [], unused: [] }, limitsFrom(2)),
      one.backend.release(epoch, queue, early),
      one.backend.usage(epoch, [queue]),
      one.backend.list(epoch),
      one.backend.repair(epoch, queue, 0, [], { fresh: newIds(1), retries: [] }),
    ])
      assert.equal(await refused, null);
    await opened(one);
    assert.deepEqual(await slotsOf(one, queue), [...early, ...late].sort());
    assert.deepEqual(await take(one, queue, newIds(1), 2), []);
  });

  test('a server that was demoted, overwritten and promoted again is not trusted, though its process lived on', async (t) => {
    const replica = await startRedis({ args: DISKLESS });
    t.after(() => replica.stop());
    const link = (url: string, ...to: [string, string]) => withRedis(url, (client) => client.replicaof(...to));
    const synced = (url: string) =>
      eventually(async () => {
        const text = await withRedis(url, (client) => client.info('replication'));
        return text.includes('master_link_status:up');
      });
    await link(replica.url, '127.0.0.1', String(server.port));
    await synced(replica.url);
    await opened(one);
    const epoch = one.limiter.epoch()!;
    await eventually(async () => (await withRedis(replica.url, (c) => c.hget('{docsched}:store', 'epoch'))) === epoch);
    await link(replica.url, 'NO', 'ONE');
    await acquireAndClaim(2, 2);
    await link(server.url, '127.0.0.1', String(replica.port));
    await synced(server.url);
    await link(server.url, 'NO', 'ONE');
    assert.deepEqual(await one.backend.check(), { epoch, valid: false });
    await opened(one);
    assert.equal((await slotsOf(one, queue)).length, 2);
  });

  test('killed, acquire and confirm throw, the state says why, and it is open again once Redis is back', async () => {
    const ids = await acquireAndClaim(2, 2);
    await server.kill();
    await assert.rejects(take(one, queue, newIds(1), 2), LimiterClosed);
    await assert.rejects(keep(one, queue, ids, [], 2), LimiterClosed);
    const { status, reason } = await one.limiter.runOnce();
    assert.equal(status, 'closed');
    assert.match(reason!, /redis\) cannot be used/);
    await world.close(ids.slice(0, 1));
    await one.limiter.release(queue, ids.slice(0, 1));
    await server.restart({ empty: true });
    await opened(one);
    assert.deepEqual(await slotsOf(one, queue), ids.slice(1));
  });

  test('when it takes no writes, the limiter is closed until it does, says why, and does not open in between', async () => {
    await one.limiter.start();
    await withRedis(server.url, (client) => client.config('SET', 'maxmemory', '1'));
    await assert.rejects(take(one, queue, newIds(1), 2), LimiterClosed);
    const until = performance.now() + 1_000;
    for (const seen = new Set<string>(); performance.now() < until; await sleep(10)) {
      seen.add(one.limiter.state().status);
      assert.deepEqual([...seen], ['closed']);
    }
    assert.match(one.limiter.state().reason!, /OOM/);
    await withRedis(server.url, (client) => client.config('SET', 'maxmemory', '0'));
    await eventually(() => one.limiter.state().status === 'open');
    assert.equal((await take(one, queue, newIds(1), 2)).length, 1);
  });

  test('frozen, calls fail in seconds; thawed, what was released meanwhile is given back', async () => {
    const ids = await acquireAndClaim(2, 2);
    server.pause();
    const startedAt = performance.now();
    await assert.rejects(keep(one, queue, ids, [], 2), LimiterClosed);
    assert.ok(performance.now() - startedAt < 5_000);
    await world.close(ids);
    await one.limiter.release(queue, ids);
    server.resume();
    await opened(one);
    await eventually(async () => assert.deepEqual(await slotsOf(one, queue), []));
  });

  test('out of reach at the start, it starts closed and opens when Redis comes', async () => {
    await server.kill();
    const late = await world.instance({ url: server.url });
    await late.limiter.start();
    assert.equal(late.limiter.state().status, 'closed');
    assert.equal(late.limiter.epoch(), null);
    await server.restart({ empty: true });
    await world.forgetProof();
    await eventually(() => late.limiter.state().status === 'open');
    await late.limiter.stop();
  });

  test('another maxmemory-policy than noeviction is refused at the start, and closes an open limiter', async (t) => {
    const evicting = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
    t.after(() => evicting.stop());
    const check = async (url: string) => {
      const redis = createRedis({ url, scripts: {}, log: createLog('silent') });
      await checkRedis(redis).finally(() => redis.close());
    };
    await assert.rejects(check(evicting.url), UnfitRedisError);
    await check(server.url);

    await withRedis(server.url, (client) => client.config('SET', 'maxmemory-policy', 'volatile-ttl'));
    const { status, reason } = await one.limiter.runOnce();
    assert.equal(status, 'closed');
    assert.match(reason!, /volatile-ttl/);
    assert.equal(one.limiter.epoch(), null);
  });

  test('a rebuild copes with 20,000 open attempts', async () => {
    const ids = newIds(20_000);
    const retries = ids.slice(0, 9_000);
    await world.claim(one.limiter.epoch(), queue, ids, retries);
    const [other] = await world.claim(one.limiter.epoch(), 'other', [newId()]);
    await server.restart({ empty: true });
    await opened(one);
    assert.deepEqual(
      [...(await one.limiter.usage([queue, 'other']))],
      [
        [queue, 20_000],
        ['other', 1],
      ],
    );
    assert.deepEqual(await slotsOf(one, 'other'), [other]);
    assert.deepEqual(await marksOf(one, queue), retries.sort());
    await world.close(ids);
    await one.limiter.release(queue, ids);
    assert.equal((await one.limiter.usage([queue])).get(queue), 0);
  });
});
