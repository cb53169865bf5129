/** The watcher's jobs come by the wall clock, and survive every step of it. */
import assert from 'node:assert/strict';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { type TestContext, test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createLog } from '../../src/log.ts';
import { createWatcher } from '../../src/watcher/watcher.ts';
import { eventually } from '../support/eventually.ts';

const DAY_MS = 86_400_000;
const START_MS = Date.UTC(2030, 0, 1, 12);

/** Jobs on a wall clock that stands still but for `step`; a round of jobs as an installation has them. */
function watch(t: TestContext) {
  t.mock.timers.enable({ apis: ['Date'], now: START_MS });
  let now = START_MS;
  const ran: string[] = [];
  const jobs = ['a', 'b', 'c', 'd', 'e'].map((name) => ({
    name,
    schedule: '* * * * * *',
    runOnce: async () => ran.push(name),
  }));
  const watcher = createWatcher({
    jobs,
    lease: { run: (_job, work) => work() },
    db: { query: async () => [] } as unknown as Db,
    observe: () => {},
    log: createLog('silent'),
  });
  watcher.start();
  t.after(() => watcher.stop());
  return {
    ran,
    step: (ms: number) => {
      now += ms;
      t.mock.timers.setTime(now);
    },
  };
}

test('a clock that is stepped forward by a day makes each job run once, and holds nothing up', async (t) => {
  const { ran, step } = watch(t);
  const delay = monitorEventLoopDelay({ resolution: 10 });
  delay.enable();
  step(DAY_MS);
  await eventually(() => ran.length >= 5, { timeoutMs: 5_000 });
  delay.disable();
  assert.deepEqual(ran.toSorted(), ['a', 'b', 'c', 'd', 'e']);
  assert.ok(delay.max < 1e9, `nothing else ran for ${Math.round(delay.max / 1e6)} ms`);
});

test('a clock that is stepped back by a day does not stop the jobs for a day', async (t) => {
  const { ran, step } = watch(t);
  step(-DAY_MS);
  // Only a clock that goes on shows it: by half a second at a time, as the jobs look at it.
  await eventually(
    () => {
      step(100);
      return ran.length >= 5;
    },
    { timeoutMs: 5_000, everyMs: 100 },
  );
});
