/** One conformance suite for both limiter stores: what a caller may rely on, whichever is behind the port. */
import assert from 'node:assert/strict';
import { LimiterClosed } from '../../src/limiter/limiter.ts';
import { eventually } from '../support/eventually.ts';
import { type Instance, keep, newId, newIds, onBothStores, slotsOf, take, withRedis } from './limiter-world.ts';

onBothStores('', (place) => {
  const { scenario, open, used, backdate } = place;
  const acquireAndClaim = async (count: number, limit = 100) => {
    const { one, queue, world } = place;
    const ids = await take(one, queue, newIds(count), limit);
    await world.claim(one.limiter.epoch(), queue, ids);
    return ids;
  };

  scenario('acquire grants a prefix of the ids up to the limit, and nothing when full', async ({ one, queue }) => {
    const ids = newIds(5);
    assert.deepEqual(await take(one, queue, ids, 3), ids.slice(0, 3));
    assert.deepEqual(await take(one, queue, newIds(2), 3), []);
    assert.equal(await used(), 3);
    assert.deepEqual(await slotsOf(one, queue), ids.slice(0, 3).sort());
  });

  scenario('an acquire sent twice takes its slots once', async ({ one, queue }) => {
    const ids = newIds(3);
    await take(one, queue, ids, 4);
    assert.deepEqual(await take(one, queue, ids, 4), ids);
    assert.deepEqual(await take(one, queue, [newId(), newId(), ...ids], 4).then((granted) => granted.length), 4);
    assert.equal(await used(), 4);
  });

  scenario('512 ids go in one call', async ({ one, queue }) => {
    const ids = newIds(512);
    assert.deepEqual(await take(one, queue, ids, 1000), ids);
    assert.deepEqual(await keep(one, queue, ids.slice(0, 256), ids.slice(256), 1000), []);
    assert.equal(await used(), 256);
    await one.limiter.release(queue, ids);
    assert.equal(await used(), 0);
  });

  scenario('release is idempotent and passes over ids that hold nothing', async ({ one, queue }) => {
    const ids = await take(one, queue, newIds(3), 3);
    await one.limiter.release(queue, [ids[0]!, newId()]);
    await one.limiter.release(queue, [ids[0]!]);
    assert.equal(await used(), 2);
    await one.limiter.release(queue, newIds(1000));
    assert.equal(await used(), 2);
  });

  scenario('queues do not share slots', async ({ one, queue }) => {
    await take(one, queue, newIds(2), 2);
    const other = `${queue}-other`;
    assert.equal((await take(one, other, newIds(2), 2)).length, 2);
    assert.deepEqual(
      [...(await one.limiter.usage([other, 'never-used', queue]))],
      [
        [other, 2],
        ['never-used', 0],
        [queue, 2],
      ],
    );
  });

  scenario('confirm keeps the claimed, gives the unused back, and may be sent twice', async ({ one, queue }) => {
    const ids = await take(one, queue, newIds(4), 4);
    for (let sent = 0; sent < 2; sent++) {
      assert.deepEqual(await keep(one, queue, ids.slice(0, 2), ids.slice(2), 4), []);
      assert.deepEqual(await slotsOf(one, queue), ids.slice(0, 2).sort());
    }
    assert.deepEqual(await keep(one, queue, [], ids.slice(0, 1), 4), []);
    assert.equal(await used(), 1);
  });

  scenario(
    'a claimed id whose slot is gone takes a free one, else is lost and holds nothing',
    async ({ one, queue }) => {
      const [a, b] = await take(one, queue, newIds(2), 2);
      await one.limiter.release(queue, [a!, b!]);
      await take(one, queue, newIds(1), 2);
      assert.deepEqual(await keep(one, queue, [a!, b!], [], 2), [b]);
      assert.equal(await used(), 2);
      assert.ok(!(await slotsOf(one, queue)).includes(b!));
    },
  );

  scenario(
    'after the limit was lowered nothing is acquired, and confirm gives slots back down to it',
    async ({ one, queue }) => {
      const ids = await take(one, queue, newIds(5), 5);
      assert.deepEqual(await take(one, queue, newIds(1), 3), []);
      assert.equal((await keep(one, queue, ids, [], 3)).length, 2);
      assert.equal(await used(), 3);
      assert.deepEqual(await take(one, queue, newIds(1), 3), []);
    },
  );

  scenario(
    'eight clients and a hasty reconciliation never confirm more open attempts than the limit',
    async ({ one, queue, world }) => {
      const limit = 5;
      const clients = await Promise.all(Array.from({ length: 8 }, () => open(1)));
      let running = true;
      let confirmed = 0;
      let most = 0;
      let lostIds = 0;
      const client = async ({ limiter }: Instance) => {
        for (let round = 0; round < 40 || (lostIds === 0 && round < 2_000); round++) {
          const ids = await take({ limiter }, queue, newIds(1 + Math.floor(Math.random() * 4)), limit);
          if (ids.length === 0) continue;
          const wanted = ids.slice(0, Math.ceil(Math.random() * ids.length));
          if (Math.random() < 0.3) await world.sql.query('SELECT pg_sleep(0.005)');
          const claimed = await world.claim(limiter.epoch(), queue, wanted);
          const lost = await keep({ limiter }, queue, claimed, ids.slice(wanted.length), limit);
          lostIds += lost.length;
          const kept = claimed.filter((id) => !lost.includes(id));
          confirmed += kept.length;
          most = Math.max(most, confirmed);
          if (Math.random() < 0.3) await world.sql.query('SELECT pg_sleep(0.005)');
          confirmed -= kept.length;
          await world.close(claimed);
          await limiter.release(queue, claimed);
        }
      };
      const reconciler = async ({ limiter }: Instance) => {
        while (running) await limiter.reconcile();
      };
      const reconciling = [reconciler(one), reconciler(clients[0]!)];
      await Promise.all(clients.map((instance) => client(instance)));
      running = false;
      await Promise.all(reconciling);
      assert.ok(most <= limit, `${most} confirmed at once`);
      assert.ok(most >= 2, 'the clients did run side by side');
      assert.ok(lostIds > 0, 'the reconciliation did get in the way');
      await backdate(20_000);
      await one.limiter.reconcile();
      assert.equal(await used(), 0);
    },
  );

  scenario(
    'without crashes the slots in use equal the open attempts once traffic stops',
    async ({ one, queue, world }) => {
      const clients = await Promise.all(Array.from({ length: 4 }, () => open()));
      await Promise.all(
        clients.map(async ({ limiter }) => {
          for (let round = 0; round < 20; round++) {
            const ids = await take({ limiter }, queue, newIds(3), 6);
            const claimed = await world.claim(limiter.epoch(), queue, ids.slice(0, 2));
            await keep({ limiter }, queue, claimed, ids.slice(claimed.length), 6);
            const closing = round === 19 ? claimed.slice(1) : claimed;
            await world.close(closing);
            await limiter.release(queue, closing);
          }
        }),
      );
      assert.deepEqual(await slotsOf(one, queue), (await world.openAttempts(queue)).sort());
    },
  );

  scenario('reconciliation drops a slot without an open attempt only after ACQUIRE_TTL_MS', async ({ one, queue }) => {
    const [young] = await take(one, queue, newIds(1), 5);
    assert.equal(await reportOf(one), undefined);
    await backdate(5_000);
    assert.equal(await reportOf(one), undefined);
    assert.deepEqual(await slotsOf(one, queue), [young]);
    await backdate(5_000);
    assert.deepEqual(await reportOf(one), { queue, dropped: 1, added: 0, drift: 1 });
    assert.equal(await used(), 0);
  });

  scenario('reconciliation never drops the slot of an open attempt, however old', async ({ one, queue }) => {
    const ids = await acquireAndClaim(2);
    await backdate(1_000_000);
    assert.equal(await reportOf(one), undefined);
    assert.deepEqual(await slotsOf(one, queue), ids.sort());
  });

  scenario('a slot confirmed while a reconciliation is under way keeps its slot', async ({ one, queue, world }) => {
    const [id] = await take(one, queue, newIds(1), 1);
    await backdate(20_000);
    const listed = (await one.backend.list(one.limiter.epoch()!))!;
    await world.claim(one.limiter.epoch(), queue, [id!]);
    assert.deepEqual(await keep(one, queue, [id!], [], 1), []);
    const late = await one.backend.repair(one.limiter.epoch()!, queue, listed.takenAt - 10_000, [id!], {
      fresh: [],
      retries: [],
    });
    assert.equal(late?.dropped, 0);
    assert.equal(await used(), 1);
  });

  scenario(
    'reconciliation adds an open attempt above the limit; then confirm refuses and nothing is acquired',
    async ({ one, queue, world }) => {
      const [sleeper] = await take(one, queue, newIds(1), 1);
      await backdate(20_000);
      await one.limiter.reconcile();
      const [other] = await take(one, queue, newIds(1), 1);
      await world.claim(one.limiter.epoch(), queue, [other!]);
      assert.deepEqual(await keep(one, queue, [other!], [], 1), []);
      await world.claim(one.limiter.epoch(), queue, [sleeper!]);
      assert.deepEqual(await reportOf(one), { queue, dropped: 0, added: 1, drift: -1 });
      assert.equal(await used(), 2);
      assert.deepEqual(await take(one, queue, newIds(1), 1), []);
      assert.deepEqual(await keep(one, queue, [sleeper!], [], 1), [sleeper]);
      assert.deepEqual(await slotsOf(one, queue), [other]);
    },
  );

  scenario('two reconciliations at once do what one would', async ({ one, queue }) => {
    const two = await open();
    const ids = await acquireAndClaim(3);
    const orphans = await take(one, queue, newIds(3), 100);
    await backdate(20_000);
    await one.limiter.release(queue, ids.slice(0, 2));
    const [first, second] = await Promise.all([reportOf(one), reportOf(two)]);
    assert.equal((first?.dropped ?? 0) + (second?.dropped ?? 0), orphans.length);
    assert.equal((first?.added ?? 0) + (second?.added ?? 0), 2);
    assert.deepEqual(await slotsOf(one, queue), ids.sort());
  });

  scenario('an attempt that closes between reading and adding leaves no slot behind', async ({ one, queue, world }) => {
    const [id] = await acquireAndClaim(1);
    await one.limiter.release(queue, [id!]);
    const { repair } = one.backend;
    one.backend.repair = async (...args) => {
      await world.close([id!]);
      await one.limiter.release(queue, [id!]);
      return repair(...args);
    };
    const report = await reportOf(one);
    one.backend.repair = repair;
    assert.equal(report?.added, 0);
    assert.equal(await used(), 0);
  });

  scenario('a rebuild starts from the open attempts and nothing else', async ({ one, queue, world }) => {
    const open = await acquireAndClaim(3);
    await take(one, queue, newIds(2), 100);
    const before = one.limiter.epoch();
    await world.sql.query(`UPDATE limiter_state SET epoch = 'elsewhere', seen_at = docsched_now() - 60000`);
    assert.equal((await one.limiter.runOnce()).status, 'open');
    assert.notEqual(one.limiter.epoch(), before);
    assert.deepEqual(await slotsOf(one, queue), open.sort());
    assert.deepEqual(await world.claim(before, queue, newIds(1)), [], 'a claim under the old epoch is fenced');
  });

  scenario('an attempt that closes during a rebuild leaves no slot behind', async ({ one, queue, world }) => {
    const [id] = await acquireAndClaim(1);
    const { rebuild } = one.backend;
    one.backend.rebuild = async (...args) => {
      await world.close([id!]);
      await one.limiter.release(queue, [id!]);
      return rebuild(...args);
    };
    await world.sql.query(`UPDATE limiter_state SET epoch = 'elsewhere', seen_at = docsched_now() - 60000`);
    assert.equal((await one.limiter.runOnce()).status, 'open');
    one.backend.rebuild = rebuild;
    assert.equal(await used(), 0);
  });

  scenario('of several instances that find the store lost only one rebuild counts', async ({ one, queue, world }) => {
    const ids = await acquireAndClaim(2);
    const instances = [one, ...(await Promise.all(Array.from({ length: 5 }, () => open())))];
    for (let time = 0; time < 10; time++) {
      await world.sql.query(`UPDATE limiter_state SET epoch = $1, seen_at = docsched_now() - 60000`, [newId()]);
      await Promise.all(instances.map(({ limiter }) => limiter.runOnce()));
      await eventually(async () => {
        const states = await Promise.all(instances.map(({ limiter }) => limiter.runOnce()));
        return states.every(({ status }) => status === 'open');
      });
      assert.equal(new Set(instances.map(({ limiter }) => limiter.epoch())).size, 1);
      assert.equal(one.limiter.epoch(), (await world.inForce()).epoch);
      assert.deepEqual(await slotsOf(one, queue), ids.sort());
    }
  });

  scenario(
    'a store that lost its epoch closes the limiter at the next call, and the next look opens it again',
    async ({ one, queue, server, world }) => {
      const ids = await acquireAndClaim(2, 2);
      if (server) await withRedis(server.url, (client) => client.flushall());
      else await world.sql.query('DELETE FROM limiter_store');
      await assert.rejects(take(one, queue, newIds(1), 5), LimiterClosed);
      assert.equal(one.limiter.epoch(), null);
      assert.equal(one.limiter.state().status, 'closed');
      await world.forgetProof();
      assert.deepEqual((await one.limiter.runOnce()).status, 'open');
      assert.deepEqual(await slotsOf(one, queue), ids.sort());
      assert.deepEqual(await take(one, queue, newIds(1), 2), []);
    },
  );

  scenario(
    'a release that could not be delivered is delivered when the store is back',
    async ({ one, queue, world }) => {
      const ids = await acquireAndClaim(2);
      const { release } = one.backend;
      one.backend.release = () => Promise.reject(new Error('away'));
      await world.close(ids);
      await one.limiter.release(queue, ids);
      assert.equal(one.limiter.state().status, 'closed');
      one.backend.release = release;
      assert.equal((await one.limiter.runOnce()).status, 'open');
      assert.equal(await used(), 0);
    },
  );

  scenario('slots that an acquire without an answer may have taken are given back', async ({ one, queue }) => {
    const { acquire } = one.backend;
    one.backend.acquire = async (...args) => {
      await acquire(...args);
      throw new Error('no answer');
    };
    await assert.rejects(take(one, queue, newIds(3), 5), LimiterClosed);
    one.backend.acquire = acquire;
    await one.limiter.runOnce();
    assert.equal(await used(), 0);
  });

  const reportOf = async ({ limiter }: Instance) => (await limiter.reconcile()).find((r) => r.queue === place.queue);
});
