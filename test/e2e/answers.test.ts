/**
 * The answers in docs/design.md, row by row, end to end: what the parser says, what becomes of the task and
 * of its attempts, and that no slot is left behind. No reconciliation runs, so a slot that leaks stays leaked.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Answer, accept, drip, finish, hang, type Push, reply, reset } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import {
  ended,
  getAttempts,
  getTask,
  type Installation,
  install,
  LIMITERS,
  NO_RECONCILIATION,
  setQueue,
  slotsShown,
  submit,
} from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

/** The other spellings of "accepted": 2xx without a status_code. */
const ACCEPTED: Record<string, Answer> = {
  '202': accept,
  '202 with a status_code': reply(202, {}, { status_code: 0 }),
  '200 with an empty object': reply(200),
  '200 with an array': reply(200, {}, [{ status_code: 0 }]),
  '200 with text': (_pushes, _req, res) => void res.writeHead(200).end('ok'),
  '201 with another object': reply(201, {}, { id: 'job-1' }),
  '204': (_pushes, _req, res) => void res.writeHead(204).end(),
};

/** Promises a hundred bytes, sends some, and breaks off. */
const cutShort: Answer = (_pushes, _req, res) => {
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': 100 });
  res.write('{"status_code":0', () => res.destroy());
};
const IN_DOUBT: Record<string, Answer> = {
  '502': reply(502),
  '504': reply(504),
  'no answer within the time-out': hang,
  'an answer that never ends': drip(100, 1_000),
  'a reset': reset,
  'an answer cut short': cutShort,
  'a status_code that is no integer': reply(200, {}, { status_code: 'done' }),
};

/** Only where no answer is to come: a healthy one may be late on a slow machine. */
const PUSH_TIMEOUT_MS = 400;
/** Long enough for a second push, had one been due: several rounds of the safety net and of the watcher. */
const QUIET_MS = 1_500;

/** Mostly waiting, so both at once. */
describe('what a parser answers', { concurrency: true }, () => {
  for (const limiter of LIMITERS)
    test(`with the ${limiter} limiter`, async (t) => {
      const place = await install(t, {
        limiter,
        env: {
          ...NO_RECONCILIATION,
          MAX_PROCESSING: '20',
          MAX_RETRIES: '1',
          RETRY_BASE_MS: '100',
          TRIGGER_INTERVAL_MS: '200',
        },
      });
      const service = await place.start();
      const desk = answerByTask(place);

      await t.test('a 2xx without a status_code is accepted, and the callback ends the task', async () => {
        for (const [name, answer] of Object.entries(ACCEPTED)) {
          const id = desk.nextId();
          desk.answer(id, answer);
          await submit(service, { task_id: id });
          const push = await desk.pushOf(id);
          await eventually(() => push.answered !== null);
          assert.equal((await getTask(service, id)).status, 'Processing', name);
          await slots(place, 1);
          assert.deepEqual((await place.parser.callback(push, { result: { of: name } })).body, { outcome: 'applied' });
          const task = await ended(service, id);
          assert.equal(task.status, 'Success', name);
          assert.deepEqual([task.reason, task.status_code, task.retry_count], [null, 0, 0], name);
          assert.deepEqual(task.result, { of: name });
          await assertAttempts(service, id, ['success'], name);
          await slots(place, 0);
        }
      });

      await t.test('a callback that reports a failure is retried while retries are left', async () => {
        const id = desk.nextId();
        await submit(service, { task_id: id });
        await place.parser.callback(await desk.pushOf(id), { status_code: 7, status_msg: 'torn page' });
        assert.equal((await getAttempts(service, id))[0]!.outcome, 'parser_failed');
        const between = await getTask(service, id);
        assert.deepEqual(
          [between.reason, between.retry_count, between.status_code, between.status_msg],
          [null, 1, 7, 'torn page'],
        );
        await place.parser.callback(await desk.pushOf(id, 2), { status_code: 8 });
        const task = await ended(service, id);
        assert.deepEqual([task.status, task.reason, task.status_code], ['Failed', 'parser_failed', 8]);
        assert.equal(task.retry_count, 1);
        await assertAttempts(service, id, ['parser_failed', 'parser_failed']);
        await slots(place, 0);
      });

      await t.test('a 200 with a status_code settles in the same call', async () => {
        const good = desk.nextId();
        desk.answer(good, finish({ result: { pages: 3 } }));
        const bad = desk.nextId();
        desk.answer(bad, finish({ status_code: 41, status_msg: 'encrypted' }));
        const mended = desk.nextId();
        desk.answer(mended, finish({ status_code: 1 }), finish({ result: 'at last' }));
        for (const id of [good, bad, mended]) await submit(service, { task_id: id });

        const success = await ended(service, good);
        assert.deepEqual([success.status, success.status_code, success.reason], ['Success', 0, null]);
        assert.deepEqual(success.result, { pages: 3 });
        await assertAttempts(service, good, ['success']);

        const failure = await ended(service, bad);
        assert.deepEqual([failure.status, failure.reason, failure.status_code], ['Failed', 'parser_failed', 41]);
        assert.deepEqual([failure.status_msg, failure.retry_count], ['encrypted', 1]);
        await assertAttempts(service, bad, ['parser_failed', 'parser_failed']);

        const retried = await ended(service, mended);
        assert.deepEqual([retried.status, retried.retry_count, retried.result], ['Success', 1, 'at last']);
        await assertAttempts(service, mended, ['parser_failed', 'success']);
        await slots(place, 0);
      });

      for (const [name, busy] of Object.entries({
        '429 with Retry-After': reply(429, { 'retry-after': '1' }),
        '429 without Retry-After': reply(429),
        '503 with Retry-After': reply(503, { 'retry-after': '1' }),
      }))
        await t.test(`${name} is busy: nothing is counted, and nothing is pushed there before its time`, async () => {
          const id = desk.nextId();
          desk.answer(id, busy, finish());
          await submit(service, { task_id: id });
          const first = await desk.pushOf(id);
          await eventually(async () => (await getAttempts(service, id))[0]?.outcome === 'busy');
          assert.equal((await getTask(service, id)).retry_count, 0);
          const other = desk.nextId();
          desk.answer(other, finish());
          await submit(service, { task_id: other });

          const task = await ended(service, id);
          assert.deepEqual([task.status, task.reason, task.retry_count], ['Success', null, 0]);
          await assertAttempts(service, id, ['busy', 'success']);
          await ended(service, other);
          assert.ok((await desk.pushOf(id, 2)).atMs - first.atMs >= 1_000, 'the busy task waited');
          assert.ok((await desk.pushOf(other)).atMs - first.atMs >= 1_000, 'the target was left alone');
          await slots(place, 0);
        });

      await t.test('408, 425 and the other 5xx are refused tries: retried while retries are left', async () => {
        const rows = [408, 425, 500, 501, 503, 505, 507].map((status) => ({ status, id: desk.nextId() }));
        for (const { status, id } of rows) desk.answer(id, reply(status, {}, { detail: `no ${status}` }));
        const lucky = desk.nextId();
        desk.answer(lucky, reply(500), finish());
        for (const id of [...rows.map((row) => row.id), lucky]) await submit(service, { task_id: id });
        for (const { status, id } of rows) {
          const task = await ended(service, id);
          assert.deepEqual([task.status, task.reason, task.retry_count], ['Failed', 'try_failed', 1], String(status));
          assert.deepEqual([task.status_code, task.status_msg], [null, `the parser answered ${status}: no ${status}`]);
          await assertAttempts(service, id, ['try_failed', 'try_failed'], String(status));
        }
        const task = await ended(service, lucky);
        assert.deepEqual([task.status, task.retry_count], ['Success', 1]);
        await assertAttempts(service, lucky, ['try_failed', 'success']);
        await slots(place, 0);
      });

      await t.test('a refused try without retries left fails at once', async () => {
        const id = desk.nextId();
        desk.answer(id, reply(500));
        await submit(service, { task_id: id, max_retries: 0 });
        const task = await ended(service, id);
        assert.deepEqual([task.status, task.reason, task.retry_count], ['Failed', 'try_failed', 0]);
        assert.equal(desk.pushesOf(id).length, 1);
      });

      await t.test('no clear answer is in doubt: the slot stays held, and a later callback is accepted', async () => {
        const rows = Object.entries(IN_DOUBT).map(([name, answer]) => ({ name, answer, id: desk.nextId() }));
        for (const { answer, id } of rows) desk.answer(id, answer);
        await setQueue(service, 'default', {
          targets: [{ url: place.parser.url, push_timeout_ms: PUSH_TIMEOUT_MS }],
        });
        for (const { id } of rows) await submit(service, { task_id: id });
        for (const { id } of rows) await desk.pushOf(id);
        await sleep(PUSH_TIMEOUT_MS + QUIET_MS); // That nothing happens can only be seen by waiting.

        await slots(place, rows.length);
        for (const { name, id } of rows) {
          const task = await getTask(service, id);
          assert.deepEqual([task.status, task.retry_count, task.attempt], ['Processing', 0, 1], name);
          assert.equal(desk.pushesOf(id).length, 1, `${name}: pushed once`);
        }
        for (const { name, id } of rows) {
          const answered = await place.parser.callback(await desk.pushOf(id), { result: name });
          assert.deepEqual([answered.status, answered.body.outcome], [200, 'applied'], name);
          const task = await ended(service, id);
          assert.deepEqual([task.status, task.result, task.retry_count], ['Success', name, 0]);
          await assertAttempts(service, id, ['success'], name);
        }
        await setQueue(service, 'default', {});
        await slots(place, 0);
      });

      await t.test('past its deadline an attempt in doubt, or accepted, is closed and counted as a retry', async () => {
        const doubtful = desk.nextId();
        const accepted = desk.nextId();
        desk.answer(doubtful, reset);
        for (const id of [doubtful, accepted]) await submit(service, { task_id: id, max_retries: 1 });
        for (const number of [1, 2]) {
          for (const id of [doubtful, accepted]) await desk.pushOf(id, number);
          await eventually(async () => (await getAttempts(service, accepted)).at(-1)!.accepted_at !== null);
          await slots(place, 2);
          await place.sql.query('UPDATE attempts SET deadline = docsched_now() - 1 WHERE closed_at IS NULL');
        }
        for (const [id, reason] of [
          [doubtful, 'in_doubt_expired'],
          [accepted, 'processing_expired'],
        ] as const) {
          const task = await ended(service, id);
          assert.deepEqual([task.status, task.reason, task.retry_count], ['Failed', reason, 1]);
          await assertAttempts(service, id, [reason, reason]);
          assert.equal((await place.parser.callback(await desk.pushOf(id, 1))).body.code, 'stale_attempt');
        }
        await slots(place, 0);
      });

      await t.test('400, 413, 415, 422 and other 4xx refuse the document for good', async () => {
        const rows = [400, 402, 406, 409, 413, 415, 418, 422].map((status) => ({ status, id: desk.nextId() }));
        for (const { status, id } of rows) desk.answer(id, reply(status, {}, { title: 'no thanks' }));
        for (const { id } of rows) await submit(service, { task_id: id, max_retries: 5 });
        for (const { status, id } of rows) {
          const task = await ended(service, id);
          assert.deepEqual([task.status, task.reason, task.retry_count], ['Failed', 'refused', 0], String(status));
          assert.deepEqual([task.status_code, task.status_msg], [null, `the parser answered ${status}: no thanks`]);
          await assertAttempts(service, id, ['refused'], String(status));
        }
        await slots(place, 0);
      });

      await t.test('401, 403, 404, 405, 410 and 3xx mean a broken target: nothing is counted', async () => {
        for (const status of [401, 403, 404, 405, 410, 301, 307]) {
          const id = desk.nextId();
          desk.answer(id, reply(status, { location: `${place.parser.url}/elsewhere` }), finish());
          await submit(service, { task_id: id, max_retries: 0 });
          await eventually(async () => (await getAttempts(service, id))[0]?.outcome === 'broken');
          const between = await getTask(service, id);
          assert.deepEqual([between.reason, between.retry_count], [null, 0], String(status));
          await place.sql.query('UPDATE targets SET not_before = 0');
          assert.equal((await ended(service, id)).status, 'Success', String(status));
          await assertAttempts(service, id, ['broken', 'success'], String(status));
        }
        await slots(place, 0);
      });

      await t.test('a broken target is left alone for a second, then for two, then tried with one task', async () => {
        const [first, second, third] = [desk.nextId(), desk.nextId(), desk.nextId()];
        desk.answer(first, reply(404), reply(404), finish());
        for (const id of [second, third]) desk.answer(id, finish());
        await submit(service, { task_id: first });
        await desk.pushOf(first);
        for (const id of [second, third]) await submit(service, { task_id: id });
        for (const id of [first, second, third]) assert.equal((await ended(service, id)).status, 'Success');
        const [began, again, probe] = desk.pushesOf(first).map(({ atMs }) => atMs);
        assert.ok(again! - began! >= 1_000, `a second: ${again! - began!} ms`);
        assert.ok(probe! - again! >= 2_000, `then two: ${probe! - again!} ms`);
        for (const id of [second, third]) assert.ok((await desk.pushOf(id)).atMs > probe!, 'the others waited for it');
      });

      await t.test(
        'a refused connection is a broken target: the task waits, uncounted, until the parser is up',
        async () => {
          await place.parser.stop();
          const id = desk.nextId();
          await submit(service, { task_id: id, max_retries: 0 });
          await eventually(async () => (await getAttempts(service, id))[0]?.outcome === 'broken');
          const between = await getTask(service, id);
          assert.deepEqual([between.reason, between.retry_count], [null, 0]);
          await slots(place, 0);
          (await place.replaceParser()).answerWith(finish());
          const task = await ended(service, id);
          assert.deepEqual([task.status, task.retry_count], ['Success', 0]);
          const attempts = await getAttempts(service, id);
          assert.ok(attempts.slice(0, -1).every(({ outcome }) => outcome === 'broken'));
          assert.equal(attempts.at(-1)!.outcome, 'success');
        },
      );

      await t.test('once all has ended, no slot is in use and /metrics says so', async () => {
        await slots(place, 0);
        await eventually(async () => assert.equal(await slotsShown(service), 0));
      });
    });
});

/** The answers of each task in turn, the last one for ever; 202 for a task that has none. */
function answerByTask(place: Installation) {
  const scripts = new Map<string, Answer[]>();
  let ids = 0;
  const answerOf = ({ body }: Push): Answer => scripts.get(body.task_id)?.[body.attempt - 1] ?? lastOf(body.task_id);
  const lastOf = (id: string): Answer => scripts.get(id)?.at(-1) ?? accept;
  place.parser.answerWith((pushes, req, res) => answerOf(pushes[0]!)(pushes, req, res));
  const pushesOf = (id: string) => place.parser.pushes.filter(({ body }) => body.task_id === id);
  return {
    nextId: () => String(++ids),
    answer: (id: string, ...answers: Answer[]) => void scripts.set(id, answers),
    pushesOf,
    /** The `number`th push of the task, once it has come. */
    pushOf: async (id: string, number = 1): Promise<Push> => {
      await eventually(() => pushesOf(id).length >= number);
      return pushesOf(id)[number - 1]!;
    },
  };
}

/** A round that looks for work holds a few more for a moment, and a release follows the commit a moment later. */
async function slots(place: Installation, count: number): Promise<void> {
  await eventually(async () => assert.equal(await place.slots(), count));
}

async function assertAttempts(service: RunningService, id: string, outcomes: string[], message = `task ${id}`) {
  const attempts = await getAttempts(service, id);
  assert.deepEqual(
    attempts.map(({ number, outcome }) => [number, outcome]),
    outcomes.map((outcome, i) => [i + 1, outcome]),
    message,
  );
}
