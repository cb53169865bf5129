/** Wake-ups: they coalesce, none is missed, and rounds never overlap. */
import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { createLog } from '../../src/log.ts';
import { createTrigger, type Trigger } from '../../src/trigger/trigger.ts';
import { eventually } from '../support/eventually.ts';

const HOUR_MS = 3_600_000;

type Round = { finish(more?: boolean): void; fail(): void };

/** A trigger whose rounds end when the test says so. `rounds`: every round that began. */
function scripted(intervalMs = HOUR_MS) {
  const rounds: Round[] = [];
  let running = 0;
  let most = 0;
  const trigger = createTrigger({
    name: 'test',
    intervalMs,
    log: createLog('silent'),
    runOnce: async () => {
      most = Math.max(most, ++running);
      try {
        return await new Promise<boolean>((resolve, reject) => {
          rounds.push({ finish: (more = false) => resolve(more), fail: () => reject(new Error('the store is away')) });
        });
      } finally {
        running -= 1;
      }
    },
  });
  started.push({ trigger, rounds });
  return { trigger, rounds, most: () => most, begun: (count: number) => eventually(() => rounds.length === count) };
}

const started: { trigger: Trigger; rounds: Round[] }[] = [];
afterEach(async () => {
  for (const { trigger, rounds } of started.splice(0)) {
    const stopped = trigger.stop();
    for (const round of rounds) round.finish();
    await stopped;
  }
});

/** Everything that is ready to run has run. */
async function settled(): Promise<void> {
  for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve));
}

test('start runs a round at once', async () => {
  const { trigger, rounds } = scripted();
  trigger.start();
  await settled();
  assert.equal(rounds.length, 1);
});

test('before start a wake-up does nothing', async () => {
  const { trigger, rounds } = scripted();
  trigger.wake();
  await settled();
  assert.equal(rounds.length, 0);
});

test('any number of wake-ups during a round become one round after it', async () => {
  const { trigger, rounds, begun, most } = scripted();
  trigger.start();
  await begun(1);
  for (let i = 0; i < 100; i++) trigger.wake();
  await settled();
  assert.equal(rounds.length, 1);
  rounds[0]!.finish();
  await begun(2);
  rounds[1]!.finish();
  await settled();
  assert.equal(rounds.length, 2);
  assert.equal(most(), 1);
});

test('without a wake-up there is no further round', async () => {
  const { trigger, rounds, begun } = scripted();
  trigger.start();
  await begun(1);
  rounds[0]!.finish();
  await settled();
  assert.equal(rounds.length, 1);
});

test('a round that found more is followed by another', async () => {
  const { trigger, rounds, begun } = scripted();
  trigger.start();
  await begun(1);
  rounds[0]!.finish(true);
  await begun(2);
  rounds[1]!.finish(true);
  await begun(3);
});

test('a wake-up at any moment around the end of a round is not missed, and rounds never overlap', async () => {
  for (let delay = 0; delay < 8; delay++) {
    const { trigger, rounds, begun, most } = scripted();
    trigger.start();
    await begun(1);
    rounds[0]!.finish();
    for (let i = 0; i < delay; i++) await null;
    trigger.wake();
    await begun(2);
    rounds[1]!.finish();
    await settled();
    assert.equal(rounds.length, 2, `after ${delay} steps`);
    assert.equal(most(), 1);
  }
});

test('a wake-up from inside a round means one more', async () => {
  let rounds = 0;
  const trigger = createTrigger({
    name: 'test',
    intervalMs: HOUR_MS,
    log: createLog('silent'),
    runOnce: async () => {
      if (++rounds < 5) trigger.wake();
      return false;
    },
  });
  started.push({ trigger, rounds: [] });
  trigger.start();
  await settled();
  assert.equal(rounds, 5);
});

test('the safety net wakes it every intervalMs', async () => {
  const { trigger, rounds, begun } = scripted(30);
  trigger.start();
  await begun(1);
  rounds[0]!.finish();
  await begun(2);
  rounds[1]!.finish();
  await begun(3);
});

test('a round that failed is tried again soon, without a wake-up', async () => {
  const { trigger, rounds, begun } = scripted();
  trigger.start();
  await begun(1);
  rounds[0]!.fail();
  await settled();
  assert.equal(rounds.length, 1, 'not at once');
  await begun(2);
  rounds[1]!.fail();
  await begun(3);
});

test('a wake-up during a round that fails is not missed', async () => {
  const { trigger, rounds, begun } = scripted();
  trigger.start();
  await begun(1);
  trigger.wake();
  rounds[0]!.fail();
  await begun(2);
});

test('the age of the last success counts from rounds that succeeded only', async () => {
  const { trigger, rounds, begun } = scripted();
  assert.equal(trigger.lastOkAgeMs(), null);
  trigger.start();
  await begun(1);
  rounds[0]!.fail();
  await begun(2);
  assert.equal(trigger.lastOkAgeMs(), null);
  rounds[1]!.finish();
  await settled();
  assert.ok(trigger.lastOkAgeMs()! < 1_000);
});

test('stop waits for the round under way and lets no other begin', async () => {
  const { trigger, rounds, begun } = scripted(10);
  trigger.start();
  await begun(1);
  trigger.wake();
  let stopped = false;
  const stopping = trigger.stop().then(() => {
    stopped = true;
  });
  await settled();
  assert.equal(stopped, false);
  rounds[0]!.finish(true);
  await stopping;
  trigger.wake();
  await settled();
  assert.equal(rounds.length, 1);
});

test('stop after a failure leaves no retry behind', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { trigger, rounds } = scripted();
  trigger.start();
  await settled();
  rounds[0]!.fail();
  await settled();
  await trigger.stop();
  t.mock.timers.tick(HOUR_MS);
  await settled();
  assert.equal(rounds.length, 1);
});
