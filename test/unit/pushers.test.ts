/** A pusher for each queue: what wakes which, and that none waits for another. Stores and parser are scripted. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { Db } from '../../src/db.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { createLog } from '../../src/log.ts';
import { createPushers, type PushersDeps } from '../../src/pusher/pushers.ts';
import { limitsOf, type Queue } from '../../src/queues.ts';
import { createTrigger } from '../../src/trigger/trigger.ts';
import { eventually } from '../support/eventually.ts';

const TARGET = { url: 'http://parser.test/', mode: 'async' as const, batch: 1, push_timeout_ms: 1_000 };
const queueOf = (queue: string, more: Partial<Queue> = {}) =>
  ({
    queue,
    targets: [TARGET],
    concurrency_limit: 10,
    priority_weights: [80, 60, 40, 30, 20],
    retry_share: 0.5,
    secrets: [],
    paused: false,
    ...more,
  }) as unknown as Queue;

/** Pushers whose queues have nothing to claim, but for those in `claimable`; `acquired` names the queue of each try. */
function scripted(t: TestContext, more: Partial<PushersDeps> & { acquire?: (queue: string) => Promise<void> } = {}) {
  const claimable = new Set<string>();
  const looks: string[][] = [];
  const acquired: string[] = [];
  const log = createLog('silent');
  const { acquire = async () => {}, ...deps } = more;
  const pushers = createPushers({
    db: {
      query: async (name: string, [queues]: [string[]]) => {
        assert.equal(name, 'find_claimable');
        looks.push(queues);
        return queues.filter((queue) => claimable.has(queue)).map((queue) => ({ queue }));
      },
    } as unknown as Db,
    limiter: {
      epoch: () => 'epoch',
      acquire: async (queue: string) => {
        acquired.push(queue);
        await acquire(queue);
        return { ids: [], retries: 0 };
      },
    } as unknown as Limiter,
    client: undefined as never,
    settler: undefined as never,
    createTrigger,
    intervalMs: 3_600_000,
    limits: (queue) => limitsOf(queue, [queue], 0),
    onUnused: () => {},
    callbackUrl: (attemptId) => attemptId,
    observePush: () => {},
    observeDispatch: () => {},
    log,
    ...deps,
  });
  t.after(() => pushers.stop());
  return { pushers, claimable, looks, acquired };
}

/** Each queue has looked once, and the look at all of them is done. */
async function started({ pushers, looks }: ReturnType<typeof scripted>, queues: Queue[]): Promise<void> {
  pushers.set(queues);
  pushers.start();
  const open = queues.filter(({ paused, targets }) => !paused && targets.length > 0).length;
  await eventually(() => looks.length === open + (open > 0 ? 1 : 0) && pushers.lastOkAgeMs() !== null);
  looks.length = 0;
}

test('a wake-up for all is one look at the idle queues, and leaves alone those without work', async (t) => {
  const it = scripted(t);
  await started(it, [queueOf('a'), queueOf('b'), queueOf('c', { paused: true }), queueOf('d', { targets: [] })]);
  assert.deepEqual(it.acquired, []);
  it.claimable.add('b');
  it.pushers.wake();
  await eventually(() => it.acquired.length > 0);
  assert.deepEqual(it.acquired, ['b']);
  assert.deepEqual(it.looks, [['a', 'b']]);
});

test('a wake-up for one queue looks at no other', async (t) => {
  const it = scripted(t);
  await started(it, [queueOf('a'), queueOf('b')]);
  it.claimable.add('a').add('b');
  it.pushers.wake('a');
  it.pushers.wake('of nobody');
  await eventually(() => it.acquired.length > 0);
  assert.deepEqual([it.acquired, it.looks], [['a'], [['a']]]);
});

for (const name of ['hangs', 'fails'])
  test(`a queue whose round ${name} holds up no other, and its age is told`, async (t) => {
    const stuck = Promise.withResolvers<void>();
    t.after(() => stuck.resolve());
    const it = scripted(t, {
      acquire: async (queue) => {
        if (queue === 'hangs') await stuck.promise;
        if (queue === 'fails') throw new Error('away');
      },
    });
    await started(it, [queueOf(name), queueOf('well')]);
    it.claimable.add(name).add('well');
    it.pushers.wake(name);
    await eventually(() => it.acquired.length === 1);
    it.pushers.wake(name);
    const since = performance.now();
    it.pushers.wake('well');
    await eventually(() => it.acquired.includes('well'));
    // Looks at all queues go on succeeding meanwhile.
    await eventually(() => performance.now() - since > 100);
    for (let looks = 1; looks <= 2; looks++) {
      const seen = it.looks.length + it.acquired.length;
      it.pushers.wake();
      await eventually(() => it.looks.length + it.acquired.length > seen);
    }
    const age = it.pushers.lastOkAgeMs()!;
    assert.ok(age >= 100, `${age} ms`);
  });

test('a queue that is new is looked at, and one that is paused is not any more', async (t) => {
  const it = scripted(t);
  await started(it, [queueOf('a')]);
  it.claimable.add('a').add('b');
  it.pushers.set([queueOf('a', { paused: true }), queueOf('b')]);
  await eventually(() => it.acquired.length > 0);
  it.pushers.wake('a');
  it.pushers.wake();
  await eventually(() => it.acquired.length > 1);
  assert.deepEqual(new Set(it.acquired), new Set(['b']));
});

test('what is woken before the start, or after the stop, asks no store', async (t) => {
  const it = scripted(t);
  it.claimable.add('a');
  it.pushers.set([queueOf('a')]);
  it.pushers.wake();
  it.pushers.wake('a');
  it.pushers.start();
  await eventually(() => it.acquired.length > 0);
  await it.pushers.stop();
  const [looks, acquired] = [it.looks.length, it.acquired.length];
  it.pushers.wake();
  it.pushers.wake('a');
  await it.pushers.idle();
  assert.deepEqual([it.looks.length, it.acquired.length], [looks, acquired]);
});

test('work that was put into a queue is claimed without a look', async (t) => {
  const it = scripted(t);
  await started(it, [queueOf('a'), queueOf('b')]);
  it.pushers.expectWork('a');
  it.pushers.expectWork('of nobody');
  await eventually(() => it.acquired.length > 0);
  assert.deepEqual([it.acquired, it.looks], [['a'], []]);
});

test('a slot that is freed wakes a queue that has work, or looks for it right now, and no other', async (t) => {
  const slots = Promise.withResolvers<void>();
  const it = scripted(t, { acquire: () => slots.promise });
  await started(it, [queueOf('a'), queueOf('b')]);
  it.pushers.slotFreed('a');
  it.pushers.expectWork('b');
  it.pushers.slotFreed('b');
  it.pushers.slotFreed('of nobody');
  slots.resolve();
  // The first claim found no slot; the one that was freed meanwhile is tried.
  await eventually(() => it.acquired.length === 2);
  it.pushers.slotFreed('b');
  await eventually(() => it.acquired.length === 3);
  assert.deepEqual([it.acquired, it.looks], [['b', 'b', 'b'], []]);
});
