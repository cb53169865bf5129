/** GLOBAL_LIMIT over several queues: never exceeded, and nobody waits for the safety net while slots are free. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../support/eventually.ts';
import { install, LIMITERS, post, setQueue } from '../support/installation.ts';

const GLOBAL = 8;
const QUEUES = ['one', 'two', 'three'];
const ROUNDS = 6;
/** Far below TRIGGER_INTERVAL_MS. */
const SOON_MS = 10_000;

for (const limiter of LIMITERS)
  test(`queues that share a global limit are pushed to at once and never above it (${limiter})`, async (t) => {
    const env = { GLOBAL_LIMIT: String(GLOBAL), TRIGGER_INTERVAL_MS: '30000' };
    const place = await install(t, { limiter, env });
    const { parser } = place;
    parser.autoCallback({ afterMs: 5 });
    const instance = await place.start();
    for (const queue of QUEUES) await setQueue(instance, queue, { limit: GLOBAL, targets: [{ url: parser.url }] });
    let taskId = 0;
    for (let round = 0; round < ROUNDS; round++) {
      const from = parser.pushes.length;
      const tasks = QUEUES.map((queue) => ({ queue, task_id: ++taskId, task_version: 1, payload: null }));
      assert.equal((await post(instance, '/v1/tasks/batch', { tasks })).status, 200);
      await parser.waitForPushes(from + QUEUES.length, SOON_MS);
      await sleep(20);
    }
    const many = Array.from({ length: 300 }, (_, i) => ({
      queue: QUEUES[i % QUEUES.length],
      task_id: ++taskId,
      task_version: 1,
      payload: null,
    }));
    await post(instance, '/v1/tasks/batch', { tasks: many });
    await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: taskId }), {
      timeoutMs: 20_000,
    });
    const { max } = parser.outstanding.surely;
    assert.ok(max > GLOBAL / 2 && max <= GLOBAL, `at most ${max} outstanding`);
  });
