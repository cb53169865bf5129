/** GLOBAL_LIMIT: the total over all queues, guaranteed parts, lending and what is owed. Both stores. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createPostgresBackend } from '../../src/limiter/postgres.ts';
import type { Limits } from '../../src/queues.ts';
import { loadStatements } from '../../src/schema.ts';
import { eventually } from '../support/eventually.ts';
import {
  createWorld,
  type Instance,
  keep,
  newId,
  newIds,
  onBothStores,
  take,
  type World,
  whileReconciling,
} from './limiter-world.ts';

const GLOBAL = 10;
const part = (guaranteed: number, more: Partial<Limits> = {}): Limits => ({
  limit: 100,
  retries: 50,
  global: GLOBAL,
  guaranteed,
  ...more,
});

onBothStores(' under a global limit', (place) => {
  const { open, endWants, rebuild } = place;
  /** What `grab` got. */
  const held = new Map<string, string[]>();
  /** Every test begins with an empty store: the total counts the queues of the other tests too. */
  const scenario: typeof place.scenario = (name, body) =>
    place.scenario(name, async (at) => {
      held.clear();
      await rebuild();
      await body(at);
      for (const queue of ['a', 'b', 'c']) await at.world.close(await at.world.openAttempts(queue));
    });
  const grab = async (queue: string, count: number, limits: Limits): Promise<number> => {
    const ids = await take(place.one, queue, newIds(count), limits);
    held.set(queue, [...(held.get(queue) ?? []), ...ids]);
    return ids.length;
  };
  const give = async (queue: string, count: number) => {
    await place.one.limiter.release(queue, held.get(queue)!.splice(0, count));
  };
  const usage = async () => {
    const values = await place.one.limiter.usage(['a', 'b', 'c']);
    return ['a', 'b', 'c'].map((queue) => values.get(queue)!);
  };

  scenario('no acquire lifts the total above it, whatever the queues have left of their own limits', async () => {
    assert.equal(await grab('a', 6, part(5)), 6);
    assert.equal(await grab('b', 6, part(5)), 4);
    assert.equal(await grab('c', 6, part(0)), 0);
    assert.deepEqual(await usage(), [6, 4, 0]);
  });

  scenario("a queue's own limit holds as well", async () => {
    assert.equal(await grab('a', 6, part(5, { limit: 4 })), 4);
  });

  scenario('without one the other queues do not matter, and nothing is owed', async () => {
    const off = part(0, { global: 0 });
    assert.equal(await grab('a', 20, part(5, { global: 0, limit: 15 })), 15);
    assert.equal(await grab('b', 20, off), 20);
    assert.equal(await grab('a', 5, part(5, { global: 0, limit: 15 })), 0, 'short, but that leaves no want');
    await give('a', 15);
    assert.equal(await grab('b', 10, part(0, { global: 30 })), 10);
  });

  scenario('an idle queue lends its part', async () => {
    assert.equal(await grab('a', 20, part(5)), GLOBAL);
  });

  scenario(
    'a queue gets its guaranteed part back as slots are released, though the borrower keeps asking',
    async () => {
      await grab('a', 20, part(5));
      assert.equal(await grab('b', 20, part(5)), 0);
      for (let taken = 1; taken <= 5; taken++) {
        await give('a', 1);
        assert.equal(await grab('a', 20, part(5)), 0, 'what came back is owed to b');
        assert.equal(await grab('b', 20, part(5)), 1);
      }
      assert.deepEqual(await usage(), [5, 5, 0]);
      await give('a', 1);
      assert.equal(await grab('b', 20, part(5)), 0, 'beyond its part it borrows, and this is owed to a');
      assert.equal(await grab('a', 20, part(5)), 1);
    },
  );

  scenario('several borrowers give way to one that is owed', async () => {
    await grab('a', 6, part(2));
    await grab('c', 6, part(2));
    assert.equal(await grab('b', 6, part(6)), 0);
    await give('a', 2);
    await give('c', 1);
    assert.equal(await grab('a', 1, part(2)), 0);
    assert.equal(await grab('c', 1, part(2)), 0);
    assert.equal(await grab('b', 6, part(6)), 3);
    assert.deepEqual(await usage(), [4, 3, 3]);
  });

  scenario('below its own part a queue takes without regard to what others want', async () => {
    await grab('a', 20, part(2));
    await grab('b', 4, part(4));
    await give('a', 3);
    assert.equal(await grab('c', 4, part(4)), 3);
    await give('a', 1);
    assert.equal(await grab('b', 4, part(4)), 1);
  });

  scenario('no more is owed than was asked for', async () => {
    await grab('a', 20, part(5));
    assert.equal(await grab('b', 2, part(5)), 0);
    await give('a', 5);
    assert.equal(await grab('a', 20, part(5)), 3);
    assert.equal(await grab('b', 2, part(5)), 2);
  });

  scenario("no more is owed than the guaranteed part, nor than the queue's own limit", async () => {
    await grab('a', 20, part(5));
    assert.equal(await grab('b', 20, part(3)), 0);
    assert.equal(await grab('c', 20, part(3, { limit: 1 })), 0);
    await give('a', 10);
    assert.equal(await grab('a', 20, part(0)), 6);
    assert.equal(await grab('b', 20, part(3)), 3, 'one is owed to c');
    assert.equal(await grab('c', 20, part(3, { limit: 1 })), 1);
  });

  scenario('a queue with more to do keeps its part when its own slots come back', async () => {
    await grab('a', 20, part(5));
    await grab('b', 20, part(5));
    await give('a', 5);
    assert.equal(await grab('b', 20, part(5)), 5);
    await give('b', 3);
    assert.equal(await grab('a', 20, part(5)), 0);
    assert.equal(await grab('b', 2, part(5)), 2, 'it got all it asked for this time');
    assert.equal(await grab('a', 20, part(5)), 0, 'one is still owed');
    assert.equal(await grab('b', 20, part(5)), 1);
  });

  scenario('slots that come back unused end the want: there was no more to do', async ({ one }) => {
    await grab('a', 20, part(5));
    await grab('b', 20, part(5));
    await give('a', 3);
    assert.equal(await grab('a', 20, part(5)), 0);
    const ids = await take(one, 'b', newIds(20), part(5));
    assert.equal(ids.length, 3);
    assert.deepEqual(await keep(one, 'b', ids.slice(0, 1), ids.slice(1), part(5)), []);
    assert.equal(await grab('a', 20, part(5)), 2);
  });

  scenario('a want ends by itself when the queue stopped asking, and its part is lent again', async () => {
    await grab('a', 20, part(5));
    await grab('b', 20, part(5));
    await give('a', 4);
    assert.equal(await grab('a', 20, part(5)), 0);
    await endWants();
    assert.equal(await grab('a', 3, part(5)), 3);
    assert.equal(await grab('b', 20, part(5)), 1);
    assert.equal(await grab('a', 1, part(5)), 0, 'asking again renews it');
    await give('a', 1);
    assert.equal(await grab('a', 1, part(5)), 0);
  });

  scenario(
    'confirm refuses while the total is above the limit, in whichever queue, and gives the slots back',
    async (at) => {
      const { one } = at;
      const a = await take(one, 'a', newIds(6), part(6));
      const b = await take(one, 'b', newIds(4), part(4));
      const lowered = { global: 7 };
      assert.deepEqual(await keep(one, 'b', b, [], part(4, lowered)), b.slice(0, 3));
      assert.deepEqual(await keep(one, 'a', a, [], part(6, lowered)), []);
      assert.deepEqual(await usage(), [6, 1, 0]);
    },
  );

  scenario(
    'confirm counts what it gives back itself, and takes no slot that would lift the total above',
    async (at) => {
      const { one } = at;
      const a = await take(one, 'a', newIds(6), part(6));
      const b = await take(one, 'b', newIds(4), part(4));
      await one.limiter.release('b', b.slice(0, 2));
      await grab('c', 2, part(0));
      assert.deepEqual(await keep(one, 'b', b, [], part(4)), b.slice(0, 2));
      assert.deepEqual(await keep(one, 'a', [...a.slice(0, 4), newId(), newId()], a.slice(4), part(6)), []);
      assert.deepEqual(await usage(), [6, 2, 2]);
    },
  );

  scenario(
    'an open attempt added above it is counted, not confirmed, and stops every queue',
    async ({ one, world }) => {
      const [sleeper] = await take(one, 'a', newIds(1), part(5));
      await one.limiter.release('a', [sleeper!]);
      const b = await take(one, 'b', newIds(GLOBAL), part(5));
      await world.claim(one.limiter.epoch(), 'b', b);
      assert.deepEqual(await keep(one, 'b', b, [], part(5)), []);
      await world.claim(one.limiter.epoch(), 'a', [sleeper!]);
      await one.limiter.reconcile();
      assert.deepEqual(await usage(), [1, GLOBAL, 0]);
      await one.limiter.release('b', b.slice(0, 1));
      assert.equal(await grab('c', 1, part(5)), 0);
      await one.limiter.release('b', b.slice(1, 2));
      assert.equal(await grab('c', 1, part(5)), 1);
      await rebuild();
      assert.deepEqual(await usage(), [1, GLOBAL, 0], 'all that is open');
      assert.deepEqual(await keep(one, 'a', [sleeper!], [], part(5)), [sleeper]);
      assert.equal(await grab('c', 1, part(5)), 0);
    },
  );

  scenario('a rebuild counts the total anew and forgets the wants', async ({ one, world }) => {
    const a = await take(one, 'a', newIds(GLOBAL), part(5));
    await world.claim(one.limiter.epoch(), 'a', a.slice(0, 6));
    await grab('b', 20, part(5));
    await rebuild();
    assert.equal(await grab('c', 20, part(0)), 4);
  });

  scenario(
    'instances hammering several queues, beside a hasty reconciliation, never confirm more than it',
    async ({ one, world }) => {
      const queues = ['a', 'b', 'c'];
      const limits = part(2, { global: 5 });
      const clients = await Promise.all(Array.from({ length: 6 }, () => open(1)));
      const seen = { confirmed: 0, most: 0, lost: 0 };
      const client = async (instance: Instance) => {
        const { limiter } = instance;
        for (let round = 0; round < 50 || ((seen.lost === 0 || seen.most < limits.global) && round < 2_000); round++) {
          const queue = queues[Math.floor(Math.random() * 3)]!;
          const ids = await take(instance, queue, newIds(1 + Math.floor(Math.random() * 5)), limits);
          if (ids.length === 0) continue;
          const wanted = ids.slice(0, Math.ceil(Math.random() * ids.length));
          if (Math.random() < 0.3) await world.sql.query('SELECT pg_sleep(0.005)');
          const claimed = await world.claim(limiter.epoch(), queue, wanted);
          const lost = await keep(instance, queue, claimed, ids.slice(wanted.length), limits);
          seen.lost += lost.length;
          const kept = claimed.length - lost.length;
          seen.confirmed += kept;
          seen.most = Math.max(seen.most, seen.confirmed);
          if (Math.random() < 0.3) await world.sql.query('SELECT pg_sleep(0.005)');
          seen.confirmed -= kept;
          await world.close(claimed);
          await limiter.release(queue, claimed);
        }
      };
      await whileReconciling([one, clients[0]!], () => Promise.all(clients.map(client)));
      assert.equal(seen.most, limits.global);
      assert.ok(seen.lost > 0, 'the reconciliation did get in the way');
    },
  );

  scenario(
    'with nothing added from outside the total stands at the limit at most, at every moment',
    async ({ one }) => {
      const queues = ['a', 'b', 'c'];
      const clients = await Promise.all(Array.from({ length: 5 }, () => open()));
      let running = true;
      let most = 0;
      const watching = (async () => {
        while (running) {
          const values = await one.limiter.usage(queues);
          most = Math.max(
            most,
            [...values.values()].reduce((sum, value) => sum + value, 0),
          );
        }
      })();
      await Promise.all(
        clients.map(async (instance) => {
          for (let round = 0; round < 120; round++) {
            const queue = queues[Math.floor(Math.random() * 3)]!;
            const ids = await take(instance, queue, newIds(1 + Math.floor(Math.random() * 6)), part(3));
            const used = Math.floor(Math.random() * (ids.length + 1));
            await keep(instance, queue, ids.slice(0, used), ids.slice(used), part(3));
            await instance.limiter.release(queue, ids);
          }
        }),
      );
      running = false;
      await watching;
      assert.equal(most, GLOBAL);
      await endWants();
      assert.equal(await grab('a', 20, part(3)), GLOBAL, 'and nothing is left behind');
    },
  );
});

describe('the postgres limiter, whose acquires under a global limit wait for each other', () => {
  let world: World;
  let one: Instance;
  before(async () => {
    world = await createWorld('waiting');
    one = await world.instance('postgres');
    assert.equal((await one.limiter.runOnce()).status, 'open');
  });
  after(() => world.end());

  test('does not let a release wait with them', async () => {
    const held = await take(one, 'a', newIds(2), part(5));
    const client = await world.sql.connect();
    try {
      await client.query('BEGIN');
      // As an acquire of another queue that has not committed.
      await client.query(`SELECT docsched_limiter_lock($1, 'b', 10)`, [one.limiter.epoch()]);
      const waiting = take(one, 'a', newIds(1), part(5));
      await eventually(world.someoneWaits);
      await one.limiter.release('a', held.slice(0, 1));
      assert.deepEqual(await one.limiter.usage(['a']), new Map([['a', 1]]));
      await client.query('COMMIT');
      assert.equal((await waiting).length, 1);
    } finally {
      client.release(true);
    }
  });

  test('never deadlocks, with releases, repairs and rebuilds of the same queues in between', async () => {
    const statements = loadStatements();
    // Without the retry of deadlocks that src/db.ts would hide them by.
    const query = async (name: string, params: readonly unknown[]) =>
      (await world.sql.query(statements[name]!, params as unknown[])).rows;
    const backend = createPostgresBackend({ db: { ...world.db, query: query as Db['query'] } });
    const epoch = one.limiter.epoch()!;
    let running = true;
    const client = async () => {
      for (let round = 0; round < 80; round++) {
        const queue = ['a', 'b', 'c', `new-${newId()}`][Math.floor(Math.random() * 4)]!;
        const granted = await backend.acquire(epoch, queue, newIds(2), part(3), 1_000);
        assert.ok(granted);
        await backend.confirm(epoch, queue, { fresh: granted.ids, retries: [], unused: [] }, part(3));
        await backend.release(epoch, queue, granted.ids);
      }
    };
    const others = [
      () => backend.rebuild(epoch, epoch, new Map([['a', { fresh: newIds(1), retries: newIds(1) }]])),
      () => backend.repair(epoch, 'b', 1, [], { fresh: newIds(1), retries: newIds(1) }),
    ].map(async (call) => {
      while (running) await call();
    });
    await Promise.all(Array.from({ length: 4 }, client));
    running = false;
    await Promise.all(others);
  });
});
