/** The pusher's rounds, with its stores scripted. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createLog } from '../../src/log.ts';
import type { PushAnswer } from '../../src/pusher/answer.ts';
import type { ClaimedTask, ClaimRound } from '../../src/pusher/claim.ts';
import { claimSizes, createPusher, mostOnTheWay } from '../../src/pusher/pusher.ts';
import type { Queue, Target } from '../../src/queues.ts';
import { eventually } from '../support/eventually.ts';

const NOTHING: ClaimRound = { tasks: [], lost: [], claimedAt: 0, more: false, drained: false };
const TARGET: Target = { url: 'http://127.0.0.1:1/', mode: 'async', batch: 1, push_timeout_ms: 1_000 };

const queueOf = (more: Partial<Queue> = {}) =>
  ({ queue: 'default', targets: [TARGET], concurrency_limit: 10, paused: false, ...more }) as Queue;
const taskOf = (more: Partial<ClaimedTask> = {}) =>
  ({ attempt_id: 'a', payload: '{}', target: TARGET, started_at: '0', pending_since: '0', ...more }) as ClaimedTask;

/** A pusher over a queue that always has something; pushes are answered by `answer`. */
function scripted(first: Queue, task: ClaimedTask = taskOf()) {
  let queue = first;
  const requests: (readonly ClaimedTask[])[] = [];
  const asked: unknown[] = [];
  const rooms: number[] = [];
  const answers: (() => void)[] = [];
  let woken = 0;
  let whenAsked = () => {};
  let drained = false;
  let offered = Number.POSITIVE_INFINITY;
  const pusher = createPusher({
    db: {
      query: async (name: string) => {
        asked.push(name);
        whenAsked();
        return offered > 0 ? [{}] : [];
      },
    } as unknown as Db,
    claim: async (_, room) => {
      rooms.push(room);
      whenAsked();
      const claimed = Math.min(room, offered);
      if (claimed === 0) return NOTHING;
      return { ...NOTHING, tasks: Array.from({ length: claimed }, () => task), more: !drained, drained };
    },
    push: (_, tasks) =>
      new Promise((resolve) => {
        requests.push(tasks);
        answers.push(() => resolve(tasks.map((): PushAnswer => ({ kind: 'accepted' }))));
      }),
    outcomes: { act: async () => {}, giveBack: async () => {}, stop: () => {} },
    queue: () => queue,
    wake: () => {
      woken += 1;
    },
    observeDispatch: () => {},
    log: createLog('silent'),
  });
  return {
    pusher,
    asked,
    rooms,
    requests,
    answers,
    woken: () => woken,
    /** So much can be claimed in a round from now on; drained: and nothing is left then. */
    offer: (count: number, last: { drained?: boolean } = {}) => {
      offered = count;
      drained = last.drained ?? false;
    },
    /** Settings from the next time on that a round looks for work or claims, while it does. */
    changeMeanwhile: (next: Queue) => {
      whenAsked = () => {
        queue = next;
      };
    },
    answerAll: () => {
      for (const answer of answers.splice(0)) answer();
    },
  };
}

/** Rounds until there is nothing more to claim or no room. */
async function runAll({ runOnce }: ReturnType<typeof createPusher>): Promise<void> {
  while (await runOnce());
}

test('an idle queue takes no slots: a round looks for work before it claims', async () => {
  const { pusher, asked, rooms, offer, answerAll } = scripted(queueOf());
  offer(0);
  assert.equal(await pusher.runOnce(), false);
  assert.equal(await pusher.runOnce(), false);
  assert.deepEqual(rooms, []);
  offer(1);
  await pusher.runOnce();
  assert.equal(rooms.length, 1);
  await pusher.runOnce();
  assert.deepEqual(asked, ['find_claimable', 'find_claimable', 'find_claimable']);
  answerAll();
  await pusher.idle();
});

test('a queue where somebody else found work claims without looking again', async () => {
  const { pusher, asked, rooms, answerAll } = scripted(queueOf());
  assert.equal(pusher.isDrained(), true);
  pusher.expectWork();
  await pusher.runOnce();
  assert.deepEqual([asked.length, rooms.length, pusher.isDrained()], [0, 1, false]);
  answerAll();
  await pusher.idle();
});

test('a queue whose last claim left nothing is looked at before the next, unless work is expected', async () => {
  const { pusher, asked, rooms, offer, answerAll } = scripted(queueOf());
  pusher.expectWork();
  offer(1, { drained: true });
  await pusher.runOnce();
  assert.equal(pusher.isDrained(), true);
  pusher.expectWork();
  assert.equal(pusher.isDrained(), false);
  await pusher.runOnce();
  assert.deepEqual([asked.length, rooms.length], [0, 2]);
  await pusher.runOnce();
  assert.deepEqual([asked.length, rooms.length], [1, 3]);
  offer(1);
  await pusher.runOnce();
  await pusher.runOnce();
  assert.deepEqual([asked.length, rooms.length], [2, 5]);
  answerAll();
  await pusher.idle();
});

test('a queue that is paused, has no target or no slot asks no store', async () => {
  for (const held of [{ paused: true }, { targets: [] }, { concurrency_limit: 0 }]) {
    const { pusher, asked, rooms } = scripted(queueOf(held));
    pusher.expectWork();
    assert.equal(await pusher.runOnce(), false);
    assert.deepEqual([asked, rooms], [[], []], JSON.stringify(held));
  }
});

test('a queue that is paused while a round looks for work is not claimed from', async () => {
  const { pusher, asked, rooms, changeMeanwhile } = scripted(queueOf());
  changeMeanwhile(queueOf({ paused: true }));
  assert.equal(await pusher.runOnce(), false);
  assert.deepEqual([asked, rooms], [['find_claimable'], []]);
});

test('pushes go by the settings of their target when they leave, or by the last it had', async () => {
  const changed = { ...TARGET, batch: 8, mode: 'sync' as const };
  for (const [targets, expected] of [
    [[changed], changed],
    [[{ ...TARGET, url: 'http://other.test/' }], TARGET],
  ] as const) {
    const { pusher, requests, changeMeanwhile, answerAll } = scripted(queueOf());
    pusher.expectWork();
    changeMeanwhile(queueOf({ targets: [...targets] }));
    await pusher.runOnce();
    assert.deepEqual(requests.flat()[0]!.target, expected);
    assert.equal(requests.length, expected === changed ? 1 : 8);
    answerAll();
    await pusher.idle();
  }
});

test('with its room full a pusher claims nothing until a push is answered, and then looks again', async () => {
  const { pusher, rooms, answers, woken, answerAll } = scripted(queueOf());
  await runAll(pusher);
  assert.equal(answers.length, 256);
  assert.equal(
    rooms.reduce((sum, room) => sum + room, 0),
    256,
  );
  const claims = rooms.length;
  assert.equal(await pusher.runOnce(), false);
  assert.equal(rooms.length, claims);
  assert.equal(woken(), 0);
  answers.shift()!();
  await eventually(() => woken() === 1);
  await pusher.runOnce();
  assert.deepEqual(rooms.slice(claims), [1]);
  answerAll();
  await pusher.idle();
});

test('a synchronous target has as many pushes on their way as the limit allows', async () => {
  const { pusher, answers, answerAll } = scripted(
    queueOf({ targets: [{ ...TARGET, mode: 'sync' }], concurrency_limit: 3_000 }),
  );
  await runAll(pusher);
  assert.equal(answers.length, 3_000);
  answerAll();
  await pusher.idle();
});

test('payload on its way is bounded, however many tasks may be', async () => {
  const large = taskOf({ payload: 'x'.repeat(16 * 1024 * 1024) });
  const { pusher, answers, answerAll } = scripted(queueOf(), large);
  await runAll(pusher);
  assert.equal(answers.length, 8);
  answerAll();
  await pusher.idle();
});

test('a claim takes no more tasks than fit, by the largest of the claim before', async () => {
  const { pusher, rooms, answers, answerAll } = scripted(queueOf(), taskOf({ payload: 'x'.repeat(10 * 1024 * 1024) }));
  await runAll(pusher);
  assert.deepEqual(rooms, [8, 4, 1]);
  assert.equal(answers.length, 13);
  answerAll();
  await pusher.idle();
});

test('tasks on their way are bounded by batches, by the limit of synchronous targets, and at last by ten thousand', () => {
  const cases: [targets: Partial<Target>[], limit: number, most: number][] = [
    [[{}], 10, 256],
    [[{}], 50_000, 256],
    [[{ batch: 20 }], 50_000, 5_120],
    [[{ batch: 1_000 }], 50_000, 10_000],
    [[{ mode: 'sync' }], 10, 256],
    [[{ mode: 'sync' }], 5_000, 5_000],
    [[{}, { mode: 'sync' }], 5_000, 5_000],
    [[{ mode: 'sync' }], 50_000, 10_000],
  ];
  for (const [targets, concurrency_limit, most] of cases) {
    const queue = queueOf({ targets: targets.map((one) => ({ ...TARGET, ...one })), concurrency_limit });
    assert.equal(mostOnTheWay(queue), most, JSON.stringify([targets, concurrency_limit]));
  }
});

test('a claim asks for whole batches of every target', () => {
  const cases: [batches: number[], fewest: number, most: number][] = [
    [[1], 8, 128],
    [[1, 1, 1], 8, 128],
    [[10], 10, 120],
    [[50, 50], 100, 100],
    [[100], 100, 100],
    [[300], 300, 300],
    [[1_000], 512, 512],
  ];
  for (const [batches, fewest, most] of cases) {
    const queue = queueOf({ targets: batches.map((batch) => ({ ...TARGET, batch })) });
    assert.deepEqual(claimSizes(queue), { fewest, most }, String(batches));
  }
});
