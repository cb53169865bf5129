/** A parser that cannot be reached costs little and spoils nothing: few connects, no retry counted, no task Failed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../support/eventually.ts';
import { install, LIMITERS, metric, submitMany } from '../support/installation.ts';

const TASKS = 1_000;
/** The target is tried at 0, 1 and 3 s: it is up again before the next try at 7 s. */
const AWAY_MS = 5_000;
/** 200 a minute, for all instances together. */
const MOST_CONNECTS = (200 * AWAY_MS) / 60_000;
/** Beside the one try a second: the pushes that were on their way when the first failed, from both instances. */
const FIRST_TRIES = 10;

describe('a refused port with a backlog', { concurrency: true }, () => {
  for (const limiter of LIMITERS)
    test(`is tried seldom by two instances together, and all succeed once it is up (${limiter})`, async (t) => {
      const place = await install(t, { limiter, env: { MAX_PROCESSING: '10', MAX_RETRIES: '0' } });
      await place.parser.stop();
      const instances = await Promise.all([place.start(), place.start()]);
      const tasks = Array.from({ length: TASKS }, (_, i) => ({ task_id: i, priority: 1 + (i % 5) }));
      const began = performance.now();
      await submitMany(instances[0]!, tasks.slice(0, TASKS / 2));
      await submitMany(instances[1]!, tasks.slice(TASKS / 2));
      await sleep(AWAY_MS - (performance.now() - began)); // The length of the outage is what is tested.

      assert.deepEqual(await place.countTasks(), { Pending: TASKS });
      const connects = await broken(instances);
      assert.ok(connects >= 3, `${connects} connects: the growing pause ends in a try`);
      assert.ok(connects < MOST_CONNECTS && connects <= FIRST_TRIES + 3, `${connects} connects`);
      const { rows } = await place.sql.query('SELECT max(retry_count) AS retries FROM task_scheduler_tasks');
      assert.equal(rows[0].retries, 0);

      const parser = await place.replaceParser();
      parser.autoCallback();
      await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: TASKS }), {
        timeoutMs: 60_000,
      });
      assert.equal(parser.pushes.length, TASKS);
      assert.ok(parser.outstanding.surely.max <= 10);
      const more = (await broken(instances)) - connects;
      assert.ok(more <= 1, `${more} connects failed after the parser was up`);
      await eventually(async () => assert.equal(await place.slots(), 0));
    });
});

async function broken(instances: Parameters<typeof metric>[0][]): Promise<number> {
  const counts = await Promise.all(
    instances.map((instance) => metric(instance, 'docsched_push_duration_seconds_count', { outcome: 'broken' })),
  );
  return counts.reduce((sum, count) => sum + count, 0);
}
