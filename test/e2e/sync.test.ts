/** Parsers that answer when they are done (mode sync): the answer to the push is the result. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Answer, accept, finish, hang, type Push } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import {
  ended,
  getAttempts,
  getTask,
  install,
  LIMITERS,
  NO_RECONCILIATION,
  setQueue,
  submit,
  submitMany,
} from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

/** More than an instance has on their way to parsers that answer soon. */
const MANY = 600;
/** Long enough for a push or a progress that a slow machine delays by a second. */
const EXPIRED_MS = 3_000;
const RESULT_MAX_BYTES = 10_000;

describe('a synchronous parser', { concurrency: true }, () => {
  for (const limiter of LIMITERS)
    test(`with the ${limiter} limiter`, async (t) => {
      const place = await install(t, {
        limiter,
        env: { ...NO_RECONCILIATION, MAX_RETRIES: '0', SHUTDOWN_TIMEOUT_MS: '2000' },
      });
      let service = await place.start();
      const { parser } = place;
      const set = (settings: Record<string, unknown> = {}) =>
        setQueue(service, 'default', {
          targets: [{ url: parser.url, mode: 'sync', push_timeout_ms: 100 }],
          result_max_bytes: RESULT_MAX_BYTES,
          ...settings,
        });
      const outcomes = async (id: number) => (await getAttempts(service, id)).map(({ outcome }) => outcome);

      await t.test('may take longer than the push time-out', async () => {
        await set();
        parser.answerWith(late(500, finish({ rawResult: '{"n":1.0}' })));
        await submit(service, { task_id: 1 });
        const task = await ended(service, 1);
        assert.deepEqual([task.status, task.result, task.status_code], ['Success', { n: 1 }, 0]);
        assert.deepEqual(await outcomes(1), ['success']);
      });

      await t.test('may report a failure, or answer 202 and call back', async () => {
        parser.answerWith(finish({ status_code: 7, status_msg: 'torn page' }));
        await submit(service, { task_id: 2 });
        const task = await ended(service, 2);
        assert.deepEqual([task.status, task.reason, task.status_code], ['Failed', 'parser_failed', 7]);
        parser.answerWith(accept);
        await submit(service, { task_id: 3 });
        const pushed = await pushOf(parser.pushes, 3);
        await eventually(() => pushed.answered === 202);
        assert.equal((await parser.callback(pushed)).status, 200);
        assert.equal((await ended(service, 3)).status, 'Success');
      });

      await t.test('may work on as many documents at once as the limit allows', async () => {
        await set({ limit: MANY });
        const open: (() => void)[] = [];
        const from = parser.pushes.length;
        parser.answerWith(
          (...asked) => new Promise((resolve) => open.push(() => resolve(finish()(...asked) as undefined))),
        );
        await submitMany(
          service,
          Array.from({ length: MANY + 10 }, (_, i) => ({ task_id: 1_000 + i })),
        );
        await parser.waitForPushes(from + MANY, 30_000);
        assert.equal(open.length, MANY);
        const answerAll = () => {
          for (const answer of open.splice(0)) answer();
        };
        answerAll();
        await parser.waitForPushes(from + MANY + 10);
        answerAll();
        await eventually(async () => assert.equal((await place.countTasks()).Processing ?? 0, 0));
        assert.equal(parser.outstanding.surely.max, MANY);
        await eventually(async () => assert.equal(await place.slots(), 0));
      });

      await t.test('may not send a result above result_max_bytes', async () => {
        await set();
        const result = (bytes: number) => JSON.stringify('x'.repeat(bytes - 2));
        // The last two fit the answer, or do not even fit that.
        const sizes = [RESULT_MAX_BYTES, RESULT_MAX_BYTES + 1, 1_000_000];
        parser.answerWith(finish(({ body }) => ({ rawResult: result(sizes[Number(body.task_id) - 11]!) })));
        for (const i of sizes.keys()) await submit(service, { task_id: 11 + i, max_retries: 5 });
        assert.equal((await ended(service, 11)).status, 'Success');
        for (const id of [12, 13]) {
          const task = await ended(service, id);
          assert.deepEqual([task.status, task.reason, task.retry_count], ['Failed', 'result_too_large', 0]);
          assert.deepEqual(await outcomes(id), ['result_too_large']);
        }
      });

      await t.test('is waited for until the deadline and no longer', async () => {
        await set({ processing_expired_ms: EXPIRED_MS });
        const closed = Promise.withResolvers<number>();
        parser.answerWith(async ([push], req) => {
          await once(req.socket, 'close');
          closed.resolve(Date.now() - push!.body.deadline);
        });
        await submit(service, { task_id: 21 });
        const lateMs = await closed.promise;
        assert.ok(lateMs > -50 && lateMs < 5_000, `${lateMs} ms after the deadline`);
        const task = await ended(service, 21);
        assert.deepEqual([task.status, task.reason], ['Failed', 'in_doubt_expired']);
      });

      await t.test('is waited for beyond that when its progress moved the deadline', async () => {
        parser.answerWith(async (pushes, req, res) => {
          await sleep(EXPIRED_MS / 2);
          await parser.progress(pushes[0]!, { percent: 50 });
          await sleep(pushes[0]!.body.deadline + 200 - Date.now());
          await finish({ result: 'at last' })(pushes, req, res);
        });
        await submit(service, { task_id: 22 });
        const task = await ended(service, 22);
        assert.deepEqual([task.status, task.result], ['Success', 'at last']);
        assert.deepEqual(await outcomes(22), ['success']);
      });

      await t.test('when the instance stops, what is on its way is in doubt: a callback still counts', async () => {
        await set();
        parser.answerWith(hang);
        await submit(service, { task_id: 31 });
        const pushed = await pushOf(parser.pushes, 31);
        const { code, ms } = await service.stop();
        assert.equal(code, 0);
        assert.ok(ms < 8_000, `${ms} ms`);
        service = await place.start();
        assert.equal((await getTask(service, 31)).status, 'Processing');
        await eventually(async () => assert.equal(await place.slots(), 1));
        assert.deepEqual((await callBack(service, pushed)).outcome, 'applied');
        assert.equal((await ended(service, 31)).status, 'Success');
      });

      await t.test('leaves no slot behind', async () => {
        await eventually(async () => assert.equal(await place.slots(), 0));
      });
    });
});

const late =
  (ms: number, answer: Answer): Answer =>
  async (...asked) => {
    await sleep(ms);
    await answer(...asked);
  };

const pushOf = (pushes: Push[], id: number): Promise<Push> =>
  eventually(() => {
    const pushed = pushes.find(({ body }) => body.task_id === String(id));
    if (!pushed) throw new Error(`task ${id} was not pushed`);
    return pushed;
  });

/** To an instance that was started after the push. */
async function callBack(service: RunningService, { body }: Push): Promise<{ outcome?: string }> {
  const { pathname } = new URL(body.callback_url);
  const answer = await fetch(`${service.url}${pathname}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{"status_code":0}',
  });
  return (await answer.json()) as { outcome?: string };
}
