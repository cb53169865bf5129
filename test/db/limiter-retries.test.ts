/** The retry lane: all retries of a queue together hold at most their share of the slots. Both stores. */
import assert from 'node:assert/strict';
import type { Limits } from '../../src/queues.ts';
import {
  type Instance,
  keep,
  marksOf,
  newIds,
  onBothStores,
  slotsOf,
  take,
  whileReconciling,
} from './limiter-world.ts';

const share = (limit: number, retries: number): Limits => ({ limit, retries, global: 0, guaranteed: limit });

onBothStores(' and retries', (place) => {
  const { scenario, open, used, backdate, rebuild } = place;
  const marks = () => marksOf(place.one, place.queue);
  const acquire = (ids: string[], limits: Limits) => place.one.limiter.acquire(place.queue, ids, limits);
  /** Acquires one slot for each, claims and confirms them. */
  const hold = async ({ fresh = 0, retries = 0 }, limits: Limits) => {
    const { one, queue, world } = place;
    const ids = await take(one, queue, newIds(fresh + retries), limits);
    const lane = { retries: ids.slice(fresh), fresh: ids.slice(0, fresh) };
    await world.claim(one.limiter.epoch(), queue, ids, lane.retries);
    assert.deepEqual(await keep(one, queue, ids, [], limits, lane.retries), []);
    return lane;
  };

  scenario('an acquire says how many of its slots retries may use: what the share has left', async () => {
    const limits = share(10, 3);
    const [a, b, c] = [newIds(2), newIds(4), newIds(2)];
    assert.deepEqual(await acquire(a, limits), { ids: a, retries: 2 });
    assert.deepEqual(await acquire(b, limits), { ids: b, retries: 1 });
    assert.deepEqual(await acquire(c, limits), { ids: c, retries: 0 });
    assert.deepEqual(
      await acquire(newIds(9), share(10, 10)).then(({ retries }) => retries),
      2,
      'as many as it granted',
    );
  });

  scenario('an acquire sent twice reserves once, and says the same', async () => {
    const ids = newIds(4);
    const first = await acquire(ids, share(10, 3));
    assert.deepEqual(await acquire(ids, share(10, 3)), first);
    assert.deepEqual(await marks(), ids.slice(0, 3).sort());
  });

  scenario('confirm moves the marks to exactly the retries, and may be sent twice', async ({ one, queue }) => {
    const limits = share(10, 4);
    const { ids } = await acquire(newIds(6), limits);
    const [fresh, retry, other, ...unused] = ids as [string, string, string, ...string[]];
    for (let sent = 0; sent < 2; sent++) {
      assert.deepEqual(await keep(one, queue, [fresh, retry, other], unused, limits, [retry]), []);
      assert.deepEqual(await marks(), [retry]);
      assert.equal(await used(), 3);
    }
    assert.equal((await acquire(newIds(7), limits)).retries, 3);
  });

  scenario('any of the granted ids may be the retries', async ({ one, queue }) => {
    const limits = share(10, 2);
    const { ids } = await acquire(newIds(6), limits);
    assert.deepEqual(await keep(one, queue, ids, [], limits, ids.slice(4)), []);
    assert.deepEqual(await marks(), ids.slice(4).sort());
  });

  scenario('what is given back, confirmed or not, takes its mark with it', async ({ one, queue }) => {
    const limits = share(6, 3);
    const { ids } = await acquire(newIds(6), limits);
    await one.limiter.release(queue, ids);
    await one.limiter.release(queue, ids);
    assert.deepEqual(await marks(), []);
    const { retries, fresh } = await hold({ fresh: 2, retries: 3 }, limits);
    await one.limiter.release(queue, [retries[0]!, fresh[0]!]);
    assert.deepEqual(await marks(), retries.slice(1).sort());
    assert.equal((await acquire(newIds(3), limits)).retries, 1);
  });

  scenario('with a single slot new tasks and retries both get it, one after the other', async ({ one, queue }) => {
    for (const retries of [1, 0, 1, 0]) {
      const granted = await acquire(newIds(1), share(1, 1));
      assert.equal(granted.retries, 1);
      assert.deepEqual(await keep(one, queue, granted.ids, [], share(1, 1), granted.ids.slice(0, retries)), []);
      assert.deepEqual(await acquire(newIds(1), share(1, 1)), { ids: [], retries: 0 });
      await one.limiter.release(queue, granted.ids);
    }
  });

  scenario('a retry whose slot is gone takes a free one only within the share', async ({ one, queue }) => {
    const limits = share(10, 2);
    const { ids } = await acquire(newIds(3), limits);
    await one.limiter.release(queue, ids);
    await hold({ retries: 1 }, limits);
    assert.deepEqual(await keep(one, queue, ids, [], limits, ids.slice(0, 2)), [ids[1]]);
    assert.equal((await marks()).length, 2);
    assert.equal(await used(), 3);
  });

  scenario('above a lowered share retries are refused and new tasks are not', async ({ one, queue }) => {
    const { ids } = await acquire(newIds(6), share(10, 4));
    const retries = ids.slice(0, 4);
    assert.deepEqual(await keep(one, queue, ids, [], share(10, 3), retries), [retries[3]]);
    assert.deepEqual(await slotsOf(one, queue), ids.toSpliced(3, 1).sort());
    assert.equal((await acquire(newIds(2), share(10, 3))).retries, 0);
    assert.equal((await acquire(newIds(2), share(10, 4))).retries, 1);
  });

  scenario('a rebuild gives the open retries their marks and drops what was only reserved', async () => {
    const limits = share(10, 5);
    const { retries } = await hold({ fresh: 2, retries: 2 }, limits);
    await acquire(newIds(2), limits);
    assert.equal((await marks()).length, 4);
    await rebuild();
    assert.deepEqual(await marks(), retries.sort());
    assert.equal((await acquire(newIds(6), limits)).retries, 3);
  });

  scenario('reconciliation drops marks with the slots nobody claimed for', async ({ one, queue }) => {
    const limits = share(10, 5);
    const { retries } = await hold({ fresh: 1, retries: 2 }, limits);
    await acquire(newIds(4), limits);
    await backdate(20_000);
    await one.limiter.reconcile();
    assert.deepEqual(await marks(), retries.sort());
    assert.equal((await slotsOf(one, queue)).length, 3);
    assert.equal((await acquire(newIds(7), limits)).retries, 3);
  });

  scenario('reconciliation adds a missing open retry with its mark, above the share too', async ({ one, queue }) => {
    const limits = share(10, 2);
    const { retries } = await hold({ fresh: 1, retries: 2 }, limits);
    await one.limiter.release(queue, retries);
    const { retries: others } = await hold({ retries: 2 }, limits);
    await one.limiter.reconcile();
    assert.deepEqual(await marks(), [...retries, ...others].sort());
    assert.equal((await acquire(newIds(1), limits)).retries, 0);
    assert.deepEqual(await keep(one, queue, retries, [], limits, retries), retries, 'and then they are not confirmed');
  });

  scenario('after a crash between claim and confirmation reconciliation puts the marks right', async (at) => {
    const { one, queue, world } = at;
    const limits = share(10, 4);
    const { ids } = await acquire(newIds(6), limits);
    await world.claim(one.limiter.epoch(), queue, ids, ids.slice(5));
    await one.limiter.reconcile();
    assert.deepEqual(await marks(), ids.slice(0, 4).sort(), 'the confirmation may still come');
    await backdate(20_000);
    assert.deepEqual(await one.limiter.reconcile(), [], 'no slot was too many or too few');
    assert.deepEqual(await marks(), [ids[5]]);
    assert.equal((await acquire(newIds(4), limits)).retries, 3);
  });

  scenario(
    'several instances and a hasty reconciliation never confirm more open retries than the share',
    async (at) => {
      const { one, queue, world } = at;
      const limits = share(8, 2);
      const clients = await Promise.all(Array.from({ length: 6 }, () => open(1)));
      const confirmed = { retries: 0, most: 0, lost: 0 };
      const client = async (instance: Instance) => {
        const { limiter } = instance;
        for (
          let round = 0;
          round < 40 || ((confirmed.lost === 0 || confirmed.most < limits.retries) && round < 2_000);
          round++
        ) {
          const granted = await limiter.acquire(queue, newIds(1 + Math.floor(Math.random() * 4)), limits);
          if (granted.ids.length === 0) continue;
          const ids = granted.ids.toSorted(() => Math.random() - 0.5);
          const wanted = ids.slice(0, Math.ceil(Math.random() * ids.length));
          const flagged = wanted.slice(0, granted.retries);
          if (Math.random() < 0.3) await world.sql.query('SELECT pg_sleep(0.005)');
          const claimed = await world.claim(limiter.epoch(), queue, wanted, flagged);
          const retries = flagged.filter((id) => claimed.includes(id));
          const unused = ids.filter((id) => !wanted.includes(id));
          const lost = await keep(instance, queue, claimed, unused, limits, retries);
          confirmed.lost += lost.length;
          const kept = retries.filter((id) => !lost.includes(id)).length;
          confirmed.retries += kept;
          confirmed.most = Math.max(confirmed.most, confirmed.retries);
          if (Math.random() < 0.3) await world.sql.query('SELECT pg_sleep(0.005)');
          confirmed.retries -= kept;
          await world.close(claimed);
          await limiter.release(queue, claimed);
        }
      };
      await whileReconciling([one, clients[0]!], () => Promise.all(clients.map(client)));
      assert.equal(confirmed.most, limits.retries);
      assert.ok(confirmed.lost > 0, 'the reconciliation did get in the way');
      await backdate(20_000);
      await one.limiter.reconcile();
      assert.deepEqual(await marks(), []);
      assert.equal((await acquire(newIds(3), limits)).retries, limits.retries, 'and no mark was lost count of');
    },
  );
});
