/** Invariant 2 under load: several instances, one queue, one parser that counts what it has on its hands. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { install, LIMITERS, NO_RECONCILIATION, submitMany } from '../support/installation.ts';

const TASKS = 300;
const LIMIT = 10;
const WAVE_MS = 600;

for (const limiter of LIMITERS) {
  test(`three instances keep a parser at the limit and never above it (${limiter})`, async (t) => {
    const place = await install(t, { limiter, env: { ...NO_RECONCILIATION, MAX_PROCESSING: String(LIMIT) } });
    const { parser } = place;
    // In waves: what is at the limit must not depend on how many of ten slots are just between two tasks.
    parser.autoCallback({ afterMs: () => WAVE_MS - (performance.now() % WAVE_MS) });
    const instances = await Promise.all([place.start(), place.start(), place.start()]);
    const began = performance.now();
    const shares = instances.map((instance, nth) =>
      submitMany(
        instance,
        Array.from({ length: TASKS / 3 }, (_, i) => ({ task_id: 3 * i + nth, priority: 1 + (i % 5) })),
      ),
    );
    await Promise.all(shares);
    await parser.waitForPushes(TASKS, 60_000);
    const ended = performance.now();
    await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: TASKS }));

    const { surely } = parser.outstanding;
    assert.equal(surely.max, LIMIT);
    assert.ok(surely.shareAtLeast(LIMIT, began, ended) >= 0.5, 'at the limit for at least half of the time');
    assert.equal(parser.pushes.length, TASKS, 'each task was pushed once');
    await eventually(async () => assert.equal(await place.slots(), 0));
  });

  test(`a limit of 1 lets two instances push one at a time (${limiter})`, async (t) => {
    const place = await install(t, { limiter, env: { ...NO_RECONCILIATION, MAX_PROCESSING: '1' } });
    place.parser.autoCallback({ afterMs: 5 });
    const [one, two] = await Promise.all([place.start(), place.start()]);
    const tasks = (first: number) =>
      Array.from({ length: 50 }, (_, i) => ({ task_id: first + i, priority: 1 + (i % 5) }));
    await Promise.all([submitMany(one, tasks(0)), submitMany(two, tasks(50))]);
    await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: 100 }), { timeoutMs: 20_000 });
    assert.equal(place.parser.outstanding.surely.max, 1);
    assert.equal(place.parser.pushes.length, 100);
    await eventually(async () => assert.equal(await place.slots(), 0));
  });
}
