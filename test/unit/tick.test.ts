/** The watcher's jobs come by the wall clock, and survive every step of it. */
import assert from 'node:assert/strict';
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

test('a job whose lease was refused, and that runs by then, is not begun a second time', async (t) => {
  let asked = 0;
  let running = 0;
  const looked: unknown[] = [];
  const end = Promise.withResolvers<void>();
  const query = async (name: string) => {
    looked.push(name);
    return [];
  };
  const watcher = createWatcher({
    jobs: [{ name: 'long', schedule: '* * * * * *', runOnce: () => end.promise.then(() => 0) }],
    lease: {
      run: async (_job, work) => {
        if (++asked === 1) return undefined;
        running += 1;
        return work();
      },
    },
    db: { query } as unknown as Db,
    observe: () => {},
    log: createLog('silent'),
  });
  watcher.start();
  t.after(() => watcher.stop());
  // The holder may have died over it: so it is looked after when its lease is over.
  await eventually(() => looked.includes('find_completed_job'));
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(running, 1);
  end.resolve();
});

test('a clock that is stepped forward by a day makes each job run once, and holds nothing up', async (t) => {
  const { ran, step } = watch(t);
  const before = process.cpuUsage();
  step(DAY_MS);
  await eventually(() => ran.length >= 5, { timeoutMs: 20_000 });
  assert.deepEqual(ran.toSorted(), ['a', 'b', 'c', 'd', 'e']);
  const usedMs = process.cpuUsage(before).user / 1_000;
  assert.ok(usedMs < 5_000, `it took ${Math.round(usedMs)} ms of the processor`);
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
