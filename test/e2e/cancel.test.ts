/** Cancelling: what waits is stopped at once; what is being parsed keeps its slot until the parser lets go or its time is up. */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Push } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import {
  getAttempts,
  getTask,
  type Installation,
  install,
  LIMITERS,
  NO_RECONCILIATION,
  post,
  submit,
} from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

/** Several rounds of the safety net: a freed slot would have been taken by then. */
const QUIET_MS = 1_500;

for (const limiter of LIMITERS)
  describe(`with the ${limiter} limiter`, { concurrency: true }, () => {
    test('a Pending task is Stopped at once and never pushed', async (t) => {
      const { place, service, running } = await oneRunning(t, limiter);
      await submit(service, { task_id: 2 });
      const cancelled = await cancel(service, 2);
      assert.equal(cancelled.status, 200);
      const task = await getTask(service, 2);
      assert.deepEqual([task.status, task.reason, task.retry_count], ['Stopped', 'cancelled', 0]);
      assert.equal((await cancel(service, 2)).status, 200, 'repeating it is no error');
      await place.parser.callback(running);
      await sleep(QUIET_MS); // That it is not pushed can only be seen by waiting.
      assert.equal(place.parser.pushes.length, 1);
      assert.equal(await place.slots(), 0);
      const again = await cancel(service, 1);
      assert.deepEqual([again.status, again.body.code], [409, 'state_forbids'], 'a Success cannot be cancelled');
      assert.equal((await cancel(service, 3)).status, 404);
    });

    test('the slot of a cancelled task is freed by its callback, which is told that it is stale', async (t) => {
      const { place, service, running } = await oneRunning(t, limiter);
      await cancelWithOneWaiting(place, service);
      assert.equal((await cancel(service, 1)).status, 200, 'repeating it is no error');
      const answered = await place.parser.callback(running, { result: 'too late' });
      assert.deepEqual([answered.status, answered.body.code], [409, 'stale_attempt']);
      await place.parser.waitForPushes(2);
      await stillCancelled(service);
      const again = await place.parser.callback(running);
      assert.deepEqual([again.status, again.body.code], [409, 'stale_attempt']);
      await sleep(QUIET_MS); // That nothing else is freed can only be seen by waiting.
      assert.equal(await place.slots(), 1);
    });

    test('the slot of a cancelled task is freed by a progress that says done', async (t) => {
      const { place, service, running } = await oneRunning(t, limiter);
      const before = await place.parser.progress(running, { percent: 10 });
      assert.deepEqual([before.status, before.body.cancel_requested], [200, false]);
      const deadline = Number(before.body.deadline);
      await cancelWithOneWaiting(place, service);
      await sleep(1_100); // A progress is stored once a second: one more would be, and would move the deadline.
      const told = await place.parser.progress(running, { percent: 20 });
      assert.deepEqual([told.status, told.body.cancel_requested], [200, true]);
      assert.equal(told.body.deadline, deadline, 'it extends nothing');
      assert.equal(await place.slots(), 1);
      assert.equal(place.parser.pushes.length, 1);
      const done = await place.parser.progress(running, { done: true });
      assert.deepEqual([done.status, done.body.cancel_requested], [200, true]);
      await place.parser.waitForPushes(2);
      await stillCancelled(service);
      assert.equal((await place.parser.progress(running)).status, 409);
      assert.equal((await place.parser.callback(running)).status, 409);
    });

    test('the slot of a cancelled task is freed at its deadline', async (t) => {
      const { place, service } = await oneRunning(t, limiter);
      await cancelWithOneWaiting(place, service);
      await place.sql.query('UPDATE attempts SET deadline = docsched_now() - 1 WHERE closed_at IS NULL');
      await place.parser.waitForPushes(2);
      await stillCancelled(service);
      assert.equal((await getTask(service, 1)).retry_count, 0, 'it is not retried');
    });

    test('a progress that says done frees nothing while its task is not cancelled', async (t) => {
      const { place, service, running } = await oneRunning(t, limiter);
      await submit(service, { task_id: 2 });
      assert.equal((await place.parser.progress(running, { done: true })).body.cancel_requested, false);
      await sleep(QUIET_MS); // That the slot stays held can only be seen by waiting.
      assert.equal(place.parser.pushes.length, 1);
      assert.equal((await place.parser.callback(running)).body.outcome, 'applied');
      await place.parser.waitForPushes(2);
    });

    test('a cancelled task that is submitted again runs beside its cancelled attempt, each in a slot of its own', async (t) => {
      const { place, service, running } = await oneRunning(t, limiter);
      assert.equal((await cancel(service, 1)).status, 200);
      const again = await submit(service, { task_id: 1 });
      assert.deepEqual([again.status, again.body.outcome], [202, 'recreated']);
      await sleep(QUIET_MS); // That it waits for the slot can only be seen by waiting.
      assert.equal(place.parser.pushes.length, 1);
      assert.equal((await place.parser.callback(running)).body.code, 'stale_attempt');
      await place.parser.waitForPushes(2);
      assert.equal((await getTask(service, 1)).status, 'Processing');
      assert.equal((await place.parser.callback(running)).body.code, 'stale_attempt');
      assert.equal((await place.parser.callback(place.parser.pushes[1]!)).body.outcome, 'applied');
      assert.equal((await getTask(service, 1)).status, 'Success');
      await eventually(async () => assert.equal(await place.slots(), 0));
    });
  });

/** A limit of 1, and task 1 being parsed. */
async function oneRunning(t: TestContext, limiter: (typeof LIMITERS)[number]) {
  const place = await install(t, { limiter, env: { ...NO_RECONCILIATION, MAX_PROCESSING: '1' } });
  const service = await place.start();
  await submit(service, { task_id: 1 });
  const [running] = (await place.parser.waitForPushes(1)) as [Push];
  await eventually(async () => (await getTask(service, 1)).status === 'Processing');
  return { place, service, running };
}

const cancel = (service: RunningService, id: number) => post(service, `/v1/tasks/${id}/versions/1/cancel`);

/** Cancels task 1, and sees that task 2 does not get its slot. */
async function cancelWithOneWaiting(place: Installation, service: RunningService): Promise<void> {
  await submit(service, { task_id: 2 });
  const cancelled = await cancel(service, 1);
  const task = cancelled.body.task as { status: string; reason: string };
  assert.deepEqual([cancelled.status, task.status, task.reason], [200, 'Stopped', 'cancelled']);
  await sleep(QUIET_MS); // That the slot stays held can only be seen by waiting.
  assert.equal(place.parser.pushes.length, 1);
  await eventually(async () => assert.equal(await place.slots(), 1));
}

async function stillCancelled(service: RunningService): Promise<void> {
  const task = await getTask(service, 1);
  assert.deepEqual([task.status, task.reason], ['Stopped', 'cancelled']);
  assert.ok((await getAttempts(service, 1))[0]!.closed_at !== null, 'its attempt is closed');
}
