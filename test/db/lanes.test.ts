/** Retries stand in lanes of their own: how they share the turns of a level, and the slots of a queue, with new tasks. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';
import { createWorld, type Instance, queueNames, type World } from '../support/world.ts';

const EVEN = [50, 0, 0, 0, 50];
const CLASSIC = [80, 0, 0, 0, 20];

type Claimed = { level: number; retry: boolean; attempt_id: string; task_id: string };

const count = <T>(values: readonly T[], is: (value: T) => boolean): number => values.filter(is).length;
const lanesOf = (tasks: readonly Claimed[]): string => tasks.map(({ retry }) => (retry ? 'r' : 'n')).join('');
const shown = (tasks: readonly Claimed[]): string =>
  tasks.map(({ level, retry }) => `${retry ? 'r' : 'n'}${level}`).join(' ');

for (const store of ['postgres', 'redis'])
  describe(`slots in ${store}:`, () => {
    const nextName = queueNames();
    let redis: TestRedis | undefined;
    let world: World;
    let one: Instance;

    before(async () => {
      redis = store === 'redis' ? await startRedis() : undefined;
      world = await createWorld(`lanes_${store}`, redis ? { redisUrl: redis.url } : {});
      one = await world.instance();
    });
    after(async () => {
      await world.end();
      await redis?.stop();
    });

    const addQueue = (columns: Record<string, unknown> = {}) =>
      world.addQueue(nextName(), { concurrency_limit: 100_000, ...columns });
    const claim = async (queue: string, room: number, from = one): Promise<Claimed[]> =>
      (await from.claim(await world.queue(queue), room)).tasks;
    const end = (tasks: readonly Claimed[]) =>
      Promise.all(tasks.map((task) => one.settler.settle({ attemptId: task.attempt_id, verdict: 'success' })));
    const inUse = async (queue: string) => (await one.limiter.usage([queue])).get(queue);
    /** New tasks and retries of a level; ids of new ones are even. */
    const fill = async (queue: string, level: number, fresh: number, retries: number) => {
      await world.fill(queue, level, fresh, level * 100_000);
      await world.fill(queue, level, retries, level * 100_000 + 50_000, 1);
    };
    /** Claims of one, each ended before the next. */
    const claimOneByOne = async (queue: string, times: number): Promise<Claimed[]> => {
      const claimed: Claimed[] = [];
      for (let i = 0; i < times; i++) {
        const tasks = await eventually(async () => {
          const found = await claim(queue, 1);
          return found.length > 0 && found;
        });
        claimed.push(...(tasks || []));
        await end(tasks || []);
      }
      return claimed;
    };

    test('inside a level new tasks and retries take turns, in each lane the oldest first', async () => {
      const queue = await addQueue();
      await fill(queue, 5, 5, 5);
      const first = await claim(queue, 5);
      const second = await claim(queue, 3);
      assert.equal(lanesOf(first) + lanesOf(second), 'nrnrnrnr');
      assert.deepEqual(
        [...first, ...second].map((task) => Number(task.task_id) - 500_000),
        [0, 50_000, 1, 50_001, 2, 50_002, 3, 50_003],
      );
    });

    test('an empty lane leaves its turns to the other', async () => {
      const queue = await addQueue();
      await fill(queue, 5, 2, 6);
      assert.equal(lanesOf(await claim(queue, 7)), 'nrnrrrr');
      await fill(queue, 4, 3, 0);
      assert.equal(shown(await claim(queue, 9)), 'n4 n4 r5 n4');
    });

    test('over claims of one the lanes of each level alternate, whatever levels come between', async () => {
      const queue = await addQueue({ priority_weights: EVEN });
      await fill(queue, 1, 30, 30);
      await fill(queue, 5, 30, 30);
      const claimed: Claimed[] = [];
      for (let i = 0; i < 20; i++) claimed.push(...(await claim(queue, 1)));
      for (const level of [1, 5])
        assert.equal(lanesOf(claimed.filter((task) => task.level === level)), 'nrnrnrnrnr', shown(claimed));
    });

    test('retries leave the shares of the levels as they are', async () => {
      const queue = await addQueue({ priority_weights: CLASSIC });
      await fill(queue, 1, 150, 150);
      await fill(queue, 5, 30, 30);
      const claimed: Claimed[] = [];
      for (const room of [1, 1, 1, 7, 30, 60, 50, 50]) claimed.push(...(await claim(queue, room)));
      assert.equal(claimed.length, 200);
      for (let i = 0; i + 5 <= 200; i++)
        assert.equal(
          count(claimed.slice(i, i + 5), ({ level }) => level === 5),
          1,
          `from ${i} on`,
        );
      for (const level of [1, 5]) {
        const own = claimed.filter((task) => task.level === level);
        assert.equal(lanesOf(own), 'nr'.repeat(own.length / 2));
      }
    });

    test('all retries together hold no more slots than their share, and new tasks take the rest', async () => {
      const queue = await addQueue({ concurrency_limit: 10, retry_share: 0.35 });
      await fill(queue, 2, 0, 20);
      await fill(queue, 5, 20, 5);
      const first = await claim(queue, 16);
      assert.deepEqual([first.length, count(first, ({ retry }) => retry)], [10, 3]);
      await end(first.filter(({ retry }) => !retry).slice(0, 2));
      await eventually(async () => (await inUse(queue)) === 8);
      assert.equal(lanesOf(await claim(queue, 16)), 'nn');
      await end(first.filter(({ retry }) => retry).slice(0, 2));
      await eventually(async () => (await inUse(queue)) === 8);
      assert.equal(
        count(await claim(queue, 16), ({ retry }) => retry),
        2,
      );
    });

    test('a level whose retries may hold no more slots leaves its turns to the others', async () => {
      const queue = await addQueue({ concurrency_limit: 20, retry_share: 0.1, priority_weights: CLASSIC });
      await fill(queue, 1, 0, 20);
      await fill(queue, 5, 40, 0);
      const claimed = await claim(queue, 20);
      assert.equal(
        count(claimed, ({ level }) => level === 1),
        2,
      );
      assert.equal(
        count(claimed, ({ level }) => level === 5),
        18,
      );
    });

    test('with nothing but retries waiting they hold their share and leave the other slots free', async () => {
      const queue = await addQueue({ concurrency_limit: 10, retry_share: 0.5 });
      await fill(queue, 5, 0, 20);
      assert.equal((await claim(queue, 16)).length, 5);
      assert.equal((await claim(queue, 16)).length, 0);
      assert.equal(await inUse(queue), 5);
    });

    test('eight claimers at once never open more retries than the share', async () => {
      const queue = await addQueue({ concurrency_limit: 12, retry_share: 0.25 });
      await fill(queue, 3, 100, 100);
      const instances = await Promise.all(Array.from({ length: 8 }, () => world.instance()));
      for (let round = 0; round < 8; round++) {
        const claimed = (await Promise.all(instances.map((from) => claim(queue, 4, from)))).flat();
        const retries = count(claimed, ({ retry }) => retry);
        assert.ok(retries >= 1 && retries <= 3, `${retries} retries`);
        await end(claimed);
        await eventually(async () => (await inUse(queue)) === 0);
      }
    });

    test('with a limit of 1 new tasks and retries alternate inside a level', async () => {
      const queue = await addQueue({ concurrency_limit: 1 });
      await fill(queue, 5, 10, 10);
      assert.equal(lanesOf(await claimOneByOne(queue, 10)), 'nrnrnrnrnr');
    });

    test('with a limit of 1 they alternate whatever their levels are', async () => {
      const queue = await addQueue({ concurrency_limit: 1 });
      await fill(queue, 1, 10, 0);
      await fill(queue, 5, 0, 10);
      assert.equal(lanesOf(await claimOneByOne(queue, 10)), 'nrnrnrnrnr');
    });

    test('with a limit of 1 each lane serves all of its levels, also one the other lane serves all the time', async () => {
      const queue = await addQueue({ concurrency_limit: 1, priority_weights: CLASSIC });
      await fill(queue, 1, 60, 0);
      await fill(queue, 5, 60, 60);
      const claimed = await claimOneByOne(queue, 80);
      assert.equal(lanesOf(claimed), 'nr'.repeat(40));
      const fresh = count(claimed, ({ level, retry }) => level === 5 && !retry);
      assert.ok(fresh >= 3 && fresh <= 9, `${fresh} new ones of level 5: ${shown(claimed)}`);
    });

    test('with a limit of 1 an empty lane leaves its turns to the other', async () => {
      const queue = await addQueue({ concurrency_limit: 1 });
      await fill(queue, 1, 2, 0);
      await fill(queue, 5, 0, 4);
      assert.equal(lanesOf(await claimOneByOne(queue, 6)), 'nrnrrr');
    });

    test('where retries may hold every slot they alternate across levels too', async () => {
      const queue = await addQueue({ concurrency_limit: 8, retry_share: 1 });
      await fill(queue, 1, 10, 0);
      await fill(queue, 4, 0, 10);
      assert.equal(shown(await claim(queue, 4)), 'n1 r4 n1 r4');
    });

    for (const [limit, times] of [
      [1, 240],
      [100_000, 240],
    ] as const)
      test(`with endless retries at level 1 and a limit of ${limit}, level 5 gets 15% of any 200 claims`, async () => {
        const queue = await addQueue({ concurrency_limit: limit });
        await fill(queue, 1, times, times);
        await fill(queue, 5, times, 0);
        const claimed = await claimOneByOne(queue, times);
        for (let i = 0; i + 200 <= claimed.length; i++) {
          const share = count(claimed.slice(i, i + 200), ({ level }) => level === 5);
          assert.ok(share >= 30, `${share} from ${i} on`);
        }
        assert.ok(Math.abs(count(claimed, ({ retry }) => retry) - times * (limit === 1 ? 0.5 : 0.4)) <= 2);
      });

    test('a retry is known by its attempt', async () => {
      const queue = await addQueue();
      await fill(queue, 5, 1, 1);
      const attempts = await Promise.all((await claim(queue, 2)).map((task) => world.attempt(task.attempt_id)));
      assert.deepEqual(
        attempts.map((attempt) => attempt.retry),
        [false, true],
      );
    });
  });
