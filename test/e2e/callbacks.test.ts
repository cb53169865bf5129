/** Callbacks from outside: batches, signatures, the lenient form, bounds of each queue, and tasks that others hold. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import fc from 'fast-check';
import { ERROR_CODES, type ErrorCode } from '../../src/errors.ts';
import { sign } from '../../src/signature.ts';
import { createWorld, type World } from '../db/insert-world.ts';
import { eventually } from '../support/eventually.ts';
import { getTask, install, LIMITERS, NO_RECONCILIATION, submitMany } from '../support/installation.ts';
import { type RunningService, startService } from '../support/process.ts';

const RESULT_MAX_BYTES = 100_000;
const BATCH_MAX_BYTES = 300_000;
const ENVELOPE_BYTES = 65_536;
const FIVE_MINUTES_MS = 300_000;
const newSecret = () => `whsec_${randomBytes(24).toString('base64')}`;
const SECRETS = [newSecret(), newSecret()];

// biome-ignore lint/suspicious/noExplicitAny: answers are looked at member by member
type Reply = { status: number; headers: Headers; text: string; body: any };
type Body = string | object;

let world: World;
let service: RunningService;
let tasks = 0;

before(async () => {
  world = await createWorld('callbacks');
  await world.addQueue('signed', { callback_auth: 'signature', secrets: SECRETS });
  await world.addQueue('other', { callback_auth: 'signature', secrets: [newSecret()] });
  await world.addQueue('lenient', { callback_auth: 'signature', fence: 'lenient', secrets: SECRETS });
  await world.addQueue('small', { result_max_bytes: 1_000 });
  await world.addQueue('large', { result_max_bytes: 2 * BATCH_MAX_BYTES });
  const env = {
    DATABASE_URL: world.url,
    RESULT_MAX_BYTES: String(RESULT_MAX_BYTES),
    BATCH_MAX_BYTES: String(BATCH_MAX_BYTES),
  };
  service = await startService({ env });
});
after(async () => {
  await service?.stop();
  await world?.end();
});

const textOf = (body: Body): string => (typeof body === 'string' ? body : JSON.stringify(body));

async function call(method: string, path: string, body?: Body, headers: Record<string, string> = {}): Promise<Reply> {
  const response = await fetch(service.url + path, {
    method,
    headers: { 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: textOf(body) }),
  });
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    text,
    body: text.startsWith('{') ? JSON.parse(text) : {},
  };
}
const post = (path: string, body: Body, headers?: Record<string, string>) => call('POST', path, body, headers);
const signed = (path: string, body: Body, secret = SECRETS[0]!, atMs = Date.now(), over = textOf(body)) =>
  post(path, body, sign([secret], 'msg_1', atMs, over));
const batch = (callbacks: unknown[]) => post('/v1/callbacks/batch', { callbacks });
const get = (key: Key) => call('GET', `/v1/tasks/${key.taskId}/versions/${key.taskVersion}?queue=${key.queue}`);

type Key = { queue: string; taskId: string; taskVersion: string };
type Task = Key & { attemptId: string };

/** A Processing task of its own. */
async function running(queue = 'default', more: object = {}): Promise<Task> {
  const key = { queue, taskId: String(++tasks), taskVersion: '1' };
  const body = { queue, task_id: key.taskId, task_version: '1', payload: null, ...more };
  assert.equal((await post('/v1/tasks', body)).status, 202);
  return { ...key, attemptId: await world.claim(key) };
}
const plain = (task: Key, more: object = {}) => ({
  queue: task.queue,
  task_id: task.taskId,
  task_version: task.taskVersion,
  status_code: 0,
  ...more,
});
const success = (attempt_id: string, more: object = {}) => ({ attempt_id, status_code: 0, ...more });
const stateOf = async (task: Key): Promise<unknown> => (await get(task)).body.status;

const isProblem = (code: ErrorCode, pointer?: string) => ({ code, status: ERROR_CODES[code][0], pointer });
const problemOf = (body: Reply['body'] = {}) => ({ code: body.code, status: body.status, pointer: body.pointer });
function assertProblem(reply: Reply, code: ErrorCode, pointer?: string): void {
  assert.deepEqual(problemOf(reply.body), isProblem(code, pointer), reply.text);
  assert.equal(reply.status, ERROR_CODES[code][0]);
}
const outcomesOf = (reply: Reply): unknown[] => {
  assert.equal(reply.status, 200, reply.text);
  return reply.body.results.map((one: Reply['body']) => one.outcome ?? problemOf(one.error));
};

describe('a batch', () => {
  test('is settled entry by entry, in order, and a bad one does not sink the others', async () => {
    const [first, failing, cancelled, named] = await Promise.all([
      running(),
      running('default', { max_retries: 0 }),
      running(),
      running(),
    ]);
    await world.cancel(cancelled);
    const unknown = 'n'.repeat(22);
    const reply = await batch([
      success(first.attemptId, { result: 1, unknown: true }),
      { attempt_id: failing.attemptId, status_code: '-9223372036854775808', status_msg: 'no pages' },
      success(cancelled.attemptId),
      success(unknown),
      { attempt_id: named.attemptId, result: 1 },
      success(first.attemptId, { result: 2 }),
      plain(named, { attempt_id: unknown }),
      plain(named, { attempt_id: named.attemptId, result: 3 }),
      plain(named),
      plain(named, { task_version: '01', attempt_id: named.attemptId }),
      { status_code: 0 },
      success('short'),
      null,
      7,
      success(first.attemptId, { status_code: 0.5 }),
      plain(named, { attempt_id: first.attemptId }),
    ]);
    assert.deepEqual(outcomesOf(reply), [
      'applied',
      'applied',
      isProblem('stale_attempt'),
      isProblem('unknown_attempt'),
      isProblem('missing_field', '/callbacks/4/status_code'),
      'duplicate',
      isProblem('unknown_attempt'),
      'applied',
      isProblem('missing_field', '/callbacks/8/attempt_id'),
      isProblem('invalid_field', '/callbacks/9/task_version'),
      isProblem('missing_field', '/callbacks/10/attempt_id'),
      isProblem('invalid_field', '/callbacks/11/attempt_id'),
      isProblem('invalid_field', '/callbacks/12'),
      isProblem('invalid_field', '/callbacks/13'),
      isProblem('invalid_field', '/callbacks/14/status_code'),
      isProblem('unknown_attempt'),
    ]);
    assert.deepEqual(
      reply.body.results.slice(0, 4).map((one: Reply['body']) => one.attempt_id),
      [first.attemptId, failing.attemptId, cancelled.attemptId, unknown],
    );
    assert.equal((await get(first)).body.result, 1, 'the first report on an attempt counts');
    const { body: failed } = await get(failing);
    assert.deepEqual(
      [failed.status, failed.status_code, failed.status_msg],
      ['Failed', '-9223372036854775808', 'no pages'],
    );
    assert.equal((await get(named)).body.result, 3);
    assert.equal(await stateOf(cancelled), 'Stopped');
  });

  test('keeps each result byte for byte', async () => {
    const results = ['12345678901234567890.10', '{"b":1, "a":[ "\\u0000\\ud800" ],"b":2}', '"]},{\\""', 'null'];
    const of = await Promise.all(results.map(() => running()));
    const entries = of.map(
      ({ attemptId }, i) => `{"result":${results[i]} , "attempt_id":"${attemptId}","status_code":0}`,
    );
    const reply = await post('/v1/callbacks/batch', `{"more":[{"result":0}],"callbacks":[${entries.join(' ,')}]}`);
    assert.deepEqual(outcomesOf(reply), Array(4).fill('applied'));
    for (const [i, task] of of.entries()) {
      const { text } = await get(task);
      assert.ok(text.includes(`"result":${results[i]},"result_url"`), text);
    }
  });

  test('of a thousand is taken; of none, of more, or of no list it is not, and nothing is settled', async () => {
    const task = await running();
    const many = (count: number) => Array.from({ length: count }, () => success(task.attemptId));
    for (const body of [{ callbacks: [] }, { callbacks: many(1_001) }, { callbacks: success(task.attemptId) }])
      assertProblem(await post('/v1/callbacks/batch', body), 'invalid_field', '/callbacks');
    assertProblem(await post('/v1/callbacks/batch', {}), 'missing_field', '/callbacks');
    assertProblem(await post('/v1/callbacks/batch', []), 'invalid_field', '');
    assertProblem(await post('/v1/callbacks/batch', '{'), 'malformed_json', '');
    assert.equal(await stateOf(task), 'Processing');
    assert.deepEqual(outcomesOf(await batch(many(1_000))), ['applied', ...Array(999).fill('duplicate')]);
  });

  test('may be as large as BATCH_MAX_BYTES, or as the largest result of any queue needs', async () => {
    const task = await running('large');
    const result = 'x'.repeat(2 * BATCH_MAX_BYTES - 2);
    assertProblem(
      await batch([success(task.attemptId, { result, more: 'x'.repeat(ENVELOPE_BYTES) })]),
      'body_too_large',
      '',
    );
    assert.deepEqual(outcomesOf(await batch([success(task.attemptId, { result })])), ['applied']);
  });

  test('with a result too large for its queue refuses that entry alone', async () => {
    const [small, other] = [await running('small'), await running()];
    const result = 'x'.repeat(2_000);
    const reply = await batch([success(other.attemptId, { result }), success(small.attemptId, { result })]);
    assert.deepEqual(outcomesOf(reply), ['applied', isProblem('result_too_large', '/callbacks/1/result')]);
    assert.equal(await stateOf(small), 'Processing');
  });

  test('of any shape never makes the service fail', async () => {
    const task = await running('default', { max_retries: 0 });
    const value = fc.oneof(fc.jsonValue(), fc.constantFrom('0', '\0', '\ud800', 1e300));
    const entry = fc.record(
      {
        status_code: fc.oneof(fc.integer(), value),
        status_msg: value,
        result: value,
        queue: fc.constantFrom('default', 'lenient', 'nowhere', 5),
        task_id: fc.oneof(fc.constantFrom(task.taskId, 0), value),
        task_version: fc.oneof(fc.constantFrom('1'), value),
        attempt_id: fc.constantFrom(task.attemptId, 'b'.repeat(22), 'x', null),
      },
      { requiredKeys: [] },
    );
    const entries = fc.array(fc.oneof({ weight: 4, arbitrary: entry }, fc.jsonValue()), { maxLength: 5 });
    await fc.assert(
      fc.asyncProperty(fc.oneof({ weight: 9, arbitrary: entries }, fc.jsonValue()), async (callbacks) => {
        const reply = await post('/v1/callbacks/batch', { callbacks });
        assert.ok(reply.status < 500, reply.text);
        for (const { error } of reply.body.results ?? [])
          assert.ok(!error || error.status < 500, JSON.stringify(error));
      }),
      { numRuns: 200 },
    );
  });
});

describe('a queue that wants signatures', () => {
  const forms: [string, (task: Task) => [path: string, body: Body]][] = [
    ['a callback', ({ attemptId }) => [`/v1/callbacks/${attemptId}`, { status_code: 0 }]],
    ['a callback in the plain form', (task) => ['/v1/callbacks', plain(task, { attempt_id: task.attemptId })]],
    ['progress', ({ attemptId }) => [`/v1/callbacks/${attemptId}/progress`, { percent: 50 }]],
  ];
  for (const [name, form] of forms)
    test(`takes ${name} only with the signature of one of its secrets over these very bytes`, async () => {
      for (const secret of SECRETS) {
        const task = await running('signed');
        const [path, body] = form(task);
        const before = await world.states(task.taskId, 'signed');
        const refusals = [
          await post(path, body),
          await signed(path, body, newSecret()),
          await signed(path, body, secret, Date.now() - 2 * FIVE_MINUTES_MS),
          await signed(path, body, secret, Date.now(), `${textOf(body)} `),
          await post(path, body, { 'webhook-id': 'm', 'webhook-timestamp': 'now', 'webhook-signature': 'v1,é' }),
        ];
        for (const refused of refusals) {
          assertProblem(refused, 'bad_signature');
          assert.match(refused.body.detail, /webhook-signature/);
        }
        assert.deepEqual(await world.states(task.taskId, 'signed'), before);
        const taken = await signed(path, body, secret);
        assert.deepEqual([taken.status, taken.body.outcome], [200, 'applied']);
      }
    });

  test('refuses its entries of a batch by themselves, each by its own secrets', async () => {
    const [mine, others, unsigned] = [await running('signed'), await running('other'), await running()];
    const all = [mine, others, unsigned];
    const body = { callbacks: [...all.map(({ attemptId }) => success(attemptId)), success('u'.repeat(22))] };
    const first = await signed('/v1/callbacks/batch', body);
    assert.deepEqual(outcomesOf(first), [
      'applied',
      isProblem('bad_signature'),
      'applied',
      isProblem('unknown_attempt'),
    ]);
    assert.deepEqual(await Promise.all(all.map(stateOf)), ['Success', 'Processing', 'Success']);
    assert.deepEqual(outcomesOf(await batch([success(mine.attemptId)])), [isProblem('bad_signature')]);
  });

  test('still says that an attempt is unknown or closed', async () => {
    const task = await running('signed');
    assertProblem(await signed(`/v1/callbacks/${'u'.repeat(22)}`, { status_code: 0 }), 'unknown_attempt');
    assertProblem(await post(`/v1/callbacks/${'u'.repeat(22)}/progress`, {}), 'unknown_attempt');
    await world.cancel(task);
    assertProblem(await signed(`/v1/callbacks/${task.attemptId}`, { status_code: 0 }), 'stale_attempt');
  });
});

describe('a queue whose fence is lenient', () => {
  const report = (task: Key, more: object = {}) => signed('/v1/callbacks', plain(task, more));

  test('must want signatures', () =>
    assert.rejects(world.addQueue('loose', { fence: 'lenient' }), /queues_lenient_is_signed/));

  test('takes a report without attempt_id for the attempt that its task has now', async () => {
    const task = await running('lenient');
    const before = await world.states(task.taskId, 'lenient');
    assertProblem(await post('/v1/callbacks', plain(task)), 'bad_signature');
    assert.deepEqual(await world.states(task.taskId, 'lenient'), before);
    assert.deepEqual((await report(task, { result: [1] })).body, { outcome: 'applied' });
    const { body } = await get(task);
    assert.deepEqual([body.status, body.result], ['Success', [1]]);
    assert.deepEqual((await report(task, { status_code: 5 })).body, { outcome: 'duplicate' });
  });

  test('answers by what became of the task once it is not Processing', async () => {
    const failed = await running('lenient', { max_retries: 0 });
    const retried = await running('lenient');
    const cancelled = await running('lenient');
    const refused = await running('lenient');
    assert.deepEqual((await report(failed, { status_code: 5 })).body, { outcome: 'applied' });
    assert.deepEqual((await report(failed, { status_code: 5 })).body, { outcome: 'duplicate' });
    assert.deepEqual((await report(retried, { status_code: 5 })).body, { outcome: 'applied' });
    assertProblem(await report(retried), 'stale_attempt');
    await world.cancel(cancelled);
    assertProblem(await report(cancelled), 'stale_attempt');
    await world.settle(refused.attemptId, 'refused');
    assertProblem(await report(refused), 'stale_attempt');
    assertProblem(await report({ ...failed, taskVersion: '2' }), 'unknown_task');
  });

  test('is the only one: elsewhere attempt_id is required', async () => {
    for (const queue of ['default', 'signed'])
      assertProblem(await report(await running(queue)), 'missing_field', '/attempt_id');
    assertProblem(await report({ queue: 'nowhere', taskId: '1', taskVersion: '1' }), 'unknown_queue', '/queue');
  });

  test('takes such entries in a batch, and does not tell their attempts', async () => {
    const [task, strict] = [await running('lenient'), await running('signed')];
    const body = { callbacks: [plain(task), plain(task), plain(strict), plain({ ...strict, queue: 'nowhere' })] };
    const reply = await signed('/v1/callbacks/batch', body);
    assert.deepEqual(outcomesOf(reply), [
      'applied',
      'duplicate',
      isProblem('missing_field', '/callbacks/2/attempt_id'),
      isProblem('unknown_queue', '/callbacks/3/queue'),
    ]);
    assert.ok(!reply.text.includes(task.attemptId) && !reply.text.includes(strict.attemptId));
  });
});

describe('the bound of a result', () => {
  test('is that of its queue, and above it nothing is settled', async () => {
    for (const [queue, bound] of [
      ['small', 1_000],
      ['default', RESULT_MAX_BYTES],
      ['large', 2 * BATCH_MAX_BYTES],
    ] as const) {
      const task = await running(queue);
      const path = `/v1/callbacks/${task.attemptId}`;
      const result = 'x'.repeat(bound - 2);
      assertProblem(await post(path, { status_code: 0, result: `${result}x` }), 'result_too_large', '/result');
      assert.equal(await stateOf(task), 'Processing');
      assert.deepEqual((await post(path, { status_code: 0, result })).body, { outcome: 'applied' });
    }
  });
});

describe('a task whose row another transaction holds', () => {
  test('is answered 503 after two seconds, or once it is free; callbacks of others meanwhile as ever', async (t) => {
    const of = await Promise.all(Array.from({ length: 30 }, () => running()));
    const held = of[0]!;
    const holder = await world.sql.connect();
    let ended = false;
    const end = async () => {
      if (ended) return;
      ended = true;
      await holder.query('COMMIT');
      holder.release();
    };
    t.after(end);
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM task_scheduler_tasks WHERE queue = $1 AND task_id = $2 FOR UPDATE', [
      held.queue,
      held.taskId,
    ]);
    const timed = async (task: Task) => {
      const startedAt = performance.now();
      const reply = await post(`/v1/callbacks/${task.attemptId}`, { status_code: 0 });
      return { reply, ms: performance.now() - startedAt };
    };
    const [first, ...others] = await Promise.all(of.map(timed));
    assert.deepEqual(new Set(others.map(({ reply }) => reply.body.outcome)), new Set(['applied']));
    assert.ok(Math.max(...others.map(({ ms }) => ms)) < first!.ms, 'others are not delayed');
    assertProblem(first!.reply, 'task_locked');
    assert.equal(first!.reply.headers.get('retry-after'), '1');
    const again = timed(held);
    const inBatch = batch([success((await running()).attemptId), success(held.attemptId)]);
    await end();
    const { reply } = await again;
    const outcomes = outcomesOf(await inBatch);
    assert.equal(outcomes[0], 'applied');
    assert.deepEqual([reply.body.outcome, outcomes[1]].toSorted(), ['applied', 'duplicate']);
  });
});

for (const limiter of LIMITERS)
  describe(`with the ${limiter} limiter`, { concurrency: true }, () => {
    test('a batch of callbacks frees the slots of all its attempts', async (t) => {
      const place = await install(t, { limiter, env: { ...NO_RECONCILIATION, MAX_PROCESSING: '20' } });
      const running = await place.start();
      await submitMany(
        running,
        Array.from({ length: 40 }, (_, index) => ({ task_id: index + 1 })),
      );
      const pushes = await place.parser.waitForPushes(20);
      const callbacks = pushes.slice(0, 20).map(({ body }) => success(body.attempt_id));
      const reply = await place.parser.post(`${running.url}/v1/callbacks/batch`, JSON.stringify({ callbacks }));
      assert.equal(reply.status, 200, reply.text);
      for (const { body } of pushes.slice(0, 20)) place.parser.outstanding.remove(body.attempt_id);
      const more = (await place.parser.waitForPushes(40)).slice(20);
      assert.equal(await place.slots(), 20);
      const rest = JSON.stringify({ callbacks: more.map(({ body }) => success(body.attempt_id)) });
      await place.parser.post(`${running.url}/v1/callbacks/batch`, rest);
      await eventually(async () => assert.equal(await place.slots(), 0));
      assert.deepEqual(await place.countTasks(), { Success: 40 });
    });

    test('a queue that begins to want signatures keeps the slot until a signed report comes', async (t) => {
      const place = await install(t, { limiter, env: { ...NO_RECONCILIATION, MAX_PROCESSING: '1' } });
      const running = await place.start();
      await submitMany(running, [{ task_id: 1 }, { task_id: 2 }]);
      const [push] = await place.parser.waitForPushes(1);
      const own = { callback_auth: 'signature', secrets: SECRETS };
      await place.sql.query(`UPDATE queues SET own = own || $1 WHERE queue = 'default'`, [JSON.stringify(own)]);
      const wrong = { status_code: 0, status_msg: 'not signed' };
      await eventually(async () => {
        const refused = await place.parser.post(`${push!.body.callback_url}/progress`, '{}');
        assert.equal(refused.status, 401);
      });
      const refused = await place.parser.post(push!.body.callback_url, JSON.stringify(wrong));
      assert.deepEqual([refused.status, refused.body.code], [401, 'bad_signature']);
      assert.equal((await getTask(running, 1)).status, 'Processing');
      assert.equal(place.parser.pushes.length, 1);
      const report = '{"status_code":0,"result":null}';
      const headers = sign([SECRETS[1]!], push!.body.attempt_id, Date.now(), report);
      const taken = await place.parser.callback(push!, {}, headers);
      assert.deepEqual([taken.status, taken.body.outcome], [200, 'applied'], taken.text);
      await place.parser.waitForPushes(2);
    });
  });

test('nothing of all this was logged as an error', () => {
  const errors = service.lines.filter((line) => /"level":"(error|fatal)"/.test(line));
  assert.deepEqual(errors.slice(0, 3), []);
});
