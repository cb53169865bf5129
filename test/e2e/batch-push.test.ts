/** Targets that take batches: what goes together, and what an answer to all, or to each, makes of the tasks. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { accept, type Entry, hang, type Push, reply, results } from '../support/answers.ts';
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
  submitMany,
} from '../support/installation.ts';

const BATCH = 10;
/** Only where no answer is to come: a healthy one may be late on a slow machine. */
const PUSH_TIMEOUT_MS = 400;

describe('a target that takes batches', { concurrency: true }, () => {
  for (const limiter of LIMITERS)
    test(`with the ${limiter} limiter`, async (t) => {
      const place = await install(t, {
        limiter,
        env: { ...NO_RECONCILIATION, MAX_RETRIES: '1', RETRY_BASE_MS: '100', TRIGGER_INTERVAL_MS: '200' },
      });
      const service = await place.start();
      const { parser } = place;
      let ids = 0;
      let urls = 0;
      /** A new one each time: no breaker remembers what the one before answered. */
      const target = (batch: number, more: object = {}) => ({ url: `${parser.url}/${++urls}`, batch, ...more });
      /** Submits tasks so that they are claimed together; answers their first pushes. */
      const pushTogether = async (count: number, payload: unknown = null, targets = [target(BATCH)]) => {
        const settings = { targets, limit: 100, retry: { jitter: 0 } };
        await setQueue(service, 'default', { ...settings, paused: true });
        const from = parser.pushes.length;
        const first = ids + 1;
        ids += count;
        const tasks = Array.from({ length: count }, (_, i) => ({ task_id: first + i, payload }));
        // Few at a time: a request has at most 8 MB.
        for (let i = 0; i < count; i += 30) await submitMany(service, tasks.slice(i, i + 30));
        await setQueue(service, 'default', settings);
        return (await parser.waitForPushes(from + count)).slice(from, from + count);
      };
      const outcomes = async ({ body }: Push) =>
        (await getAttempts(service, body.task_id)).map(({ outcome }) => outcome);

      await t.test('one document that spoils its batch is refused alone; those beside it are taken', async () => {
        parser.answerWith((pushes, req, res) => {
          const isSpoilt = pushes.some(({ body }) => Number(body.task_id) % BATCH === 3);
          return (isSpoilt ? reply(413) : accept)(pushes, req, res);
        });
        const pushes = await pushTogether(BATCH);
        for (const { body } of pushes) {
          const spoilt = Number(body.task_id) % BATCH === 3;
          if (spoilt) assert.equal((await ended(service, body.task_id)).reason, 'refused');
          else await eventually(async () => assert.equal((await getTask(service, body.task_id)).status, 'Processing'));
        }
        const taken = parser.pushes.filter((push) => push.answered === 202);
        assert.equal(taken.length, BATCH - 1);
        for (const push of taken) await parser.callback(push);
      });

      await t.test('gets a backlog in batches, each with a key of its own and the trace of each task', async () => {
        parser.answerWith(accept);
        const pushes = await pushTogether(25);
        const requests = Map.groupBy(pushes, ({ raw }) => raw);
        const sizes = [...requests.values()].map((together) => together.length);
        assert.deepEqual(
          sizes.toSorted((a, b) => b - a),
          [10, 10, 5],
        );
        const keys = [...requests.values()].map(([first]) => first!.headers['idempotency-key']);
        assert.equal(new Set(keys).size, 3);
        const attemptIds = new Set(pushes.map(({ body }) => body.attempt_id));
        for (const key of keys) {
          assert.match(String(key), /^[\w-]{22,}$/);
          assert.ok(!attemptIds.has(String(key)));
        }
        assert.equal(new Set(pushes.map(({ body }) => body.traceparent)).size, 25);
        for (const [first] of requests.values()) assert.equal(first!.headers.traceparent, first!.body.traceparent);
        for (const { body } of pushes) {
          const { rows } = await place.sql.query('SELECT traceparent FROM task_scheduler_tasks WHERE task_id = $1', [
            body.task_id,
          ]);
          assert.equal(body.traceparent!.slice(3, 35), rows[0].traceparent.slice(3, 35));
          assert.equal(body.callback_url, `${service.url}/v1/callbacks/${body.attempt_id}`);
        }
        for (const push of pushes) assert.equal((await getTask(service, push.body.task_id)).status, 'Processing');
        await callBack(place, pushes);
        for (const push of pushes) assert.deepEqual(await outcomes(push), ['success']);
      });

      await t.test('gets a lone task as a batch of one, at once', async () => {
        const [only, ...others] = await pushTogether(1);
        assert.deepEqual(others, []);
        assert.match(only!.raw, /^\{"tasks":\[\{.*\}\]\}$/);
        await callBack(place, [only!]);
      });

      await t.test('answers for each task apart: every row of the table, and the task it leaves out', async () => {
        const rawResult = '{ "big": 12345678901234567890.10, "nul":"\\u0000" }';
        const entries: (Entry | null)[] = [
          { http_status: 200, status_code: 0, rawResult },
          { http_status: 200, status_code: 41, status_msg: 'encrypted' },
          { http_status: 202 },
          { http_status: 422, detail: 'no text layer' },
          { http_status: 500 },
          { http_status: 429, retry_after_s: 1 },
          { http_status: 404 },
          { http_status: 502 },
          null,
        ];
        const first = ids + 1;
        parser.answerWith(
          results(({ body }) =>
            body.attempt === 1 ? (entries[Number(body.task_id) - first] ?? null) : { http_status: 200, status_code: 0 },
          ),
        );
        const pushes = await pushTogether(entries.length);
        assert.equal(new Set(pushes.map(({ raw }) => raw)).size, 1);
        const at = (i: number) => String(first + i);

        const done = await ended(service, at(0));
        assert.deepEqual([done.status, done.status_code, done.reason], ['Success', 0, null]);
        const { rows } = await place.sql.query('SELECT result FROM task_scheduler_tasks WHERE task_id = $1', [at(0)]);
        assert.equal(rows[0].result, rawResult);
        const refused = await ended(service, at(3));
        assert.deepEqual([refused.status, refused.reason], ['Failed', 'refused']);
        assert.equal(refused.status_msg, 'the parser answered 422: no text layer');
        // Not settled by the answer: accepted, or in doubt.
        for (const i of [2, 7, 8]) assert.equal((await getTask(service, at(i))).status, 'Processing', `task ${i}`);
        await callBack(
          place,
          [2, 7, 8].map((i) => pushes[i]!),
        );
        const expected: [outcomes: string[], retries: number][] = [
          [['success'], 0],
          [['parser_failed', 'success'], 1],
          [['success'], 0],
          [['refused'], 0],
          [['try_failed', 'success'], 1],
          [['busy', 'success'], 0],
          [['broken', 'success'], 0],
          [['success'], 0],
          [['success'], 0],
        ];
        for (const [i, [attempts, retries]] of expected.entries()) {
          const task = await ended(service, at(i));
          assert.deepEqual([await outcomes(pushes[i]!), task.retry_count], [attempts, retries], `task ${i}`);
        }
        await noSlots(place);
      });

      const alike: [name: string, status: number, outcome: string, retries: number][] = [
        ['500', 500, 'try_failed', 1],
        ['429', 429, 'busy', 0],
        ['401', 401, 'broken', 0],
      ];
      for (const [name, status, outcome, retries] of alike)
        await t.test(`answers ${name}: for all alike`, async () => {
          const done = results(() => ({ http_status: 200, status_code: 0 }));
          parser.answerWith((...asked) => (asked[0][0]!.body.attempt === 1 ? reply(status) : done)(...asked));
          for (const push of await pushTogether(BATCH)) {
            const task = await ended(service, push.body.task_id);
            assert.deepEqual([task.status, task.retry_count], ['Success', retries]);
            assert.deepEqual(await outcomes(push), [outcome, 'success']);
          }
          await noSlots(place);
        });

      await t.test(
        'answers 413: refused, all alike, and no task shows the attempt id that the parser quotes',
        async () => {
          parser.answerWith((pushes, req, res) => {
            const quoted = pushes.map(({ body }) => body.attempt_id).join(' and ');
            reply(413, {}, { detail: `too large: ${quoted}` })(pushes, req, res);
          });
          const pushes = await pushTogether(3);
          for (const { body } of pushes) {
            const task = await ended(service, body.task_id);
            assert.deepEqual([task.status, task.reason], ['Failed', 'refused']);
            for (const other of pushes) assert.ok(!String(task.status_msg).includes(other.body.attempt_id));
          }
          await noSlots(place);
        },
      );

      await t.test('does not answer: all are in doubt, and each callback counts', async () => {
        parser.answerWith(hang);
        const pushes = await pushTogether(BATCH, null, [target(BATCH, { push_timeout_ms: PUSH_TIMEOUT_MS })]);
        await service.waitForLine(({ event, outcome, attempt_id }) => {
          return (
            event === 'push_answered' &&
            outcome === 'in_doubt' &&
            attempt_id === pushes.at(-1)!.body.attempt_id.slice(0, 8)
          );
        });
        assert.equal(await place.slots(), BATCH);
        for (const { body } of pushes) assert.equal((await getTask(service, body.task_id)).status, 'Processing');
        await callBack(place, pushes);
        for (const push of pushes) assert.deepEqual(await outcomes(push), ['success']);
        await noSlots(place);
      });

      await t.test('answers a 200 that names no results: accepted', async () => {
        parser.answerWith(reply(200, {}, { status_code: 0 }));
        const pushes = await pushTogether(2);
        await eventually(async () => {
          const attempts = (await Promise.all(pushes.map(({ body }) => getAttempts(service, body.task_id)))).flat();
          assert.ok(attempts.every((attempt) => attempt.outcome === null && attempt.accepted_at !== null));
        });
        await callBack(place, pushes);
        await noSlots(place);
      });

      await t.test('gets no more than 8 MB at a time', async () => {
        parser.answerWith(accept);
        const pushes = await pushTogether(50, 'x'.repeat(250_000), [target(100)]);
        const requests = [...Map.groupBy(pushes, ({ raw }) => raw)];
        assert.ok(requests.length >= 2);
        for (const [raw] of requests) assert.ok(raw.length <= 8 * 1024 * 1024, `${raw.length} bytes`);
        await callBack(place, pushes);
        await noSlots(place);
      });

      await t.test('may be one of several, and gets its own batches', async () => {
        parser.answerWith(accept);
        const pushes = await pushTogether(16, null, [target(4), target(1)]);
        const sizes = Map.groupBy(pushes, ({ raw }) => raw);
        for (const [raw, together] of sizes) {
          assert.ok(together.length <= 4);
          assert.equal(raw.startsWith('{"tasks":'), together[0]!.body.traceparent !== undefined);
        }
        const single = pushes.filter(({ raw }) => !raw.startsWith('{"tasks":'));
        assert.ok(single.length > 0 && single.length < pushes.length, `${single.length} alone`);
        for (const { body, headers } of single) assert.equal(headers['idempotency-key'], body.attempt_id);
        await callBack(place, pushes);
        await noSlots(place);
      });
    });
});

async function callBack({ parser }: Installation, pushes: Push[]): Promise<void> {
  for (const push of pushes) assert.equal((await parser.callback(push)).body.outcome, 'applied');
}

async function noSlots(place: Installation): Promise<void> {
  await eventually(async () => assert.equal(await place.slots(), 0));
}
