/** The HTTP API, from outside: what it answers, what it refuses, and that bad input leaves no trace. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import type { Router } from 'express';
import fc from 'fast-check';
import type { Db } from '../../src/db.ts';
import { ERROR_CODES } from '../../src/errors.ts';
import { createEventRoutes } from '../../src/events.ts';
import { createHealth } from '../../src/health.ts';
import { createServer } from '../../src/http.ts';
import { createInserterRoutes } from '../../src/inserter/route.ts';
import { createJournal } from '../../src/journal.ts';
import { createLog } from '../../src/log.ts';
import { createMetrics } from '../../src/metrics.ts';
import { createQueueRoutes } from '../../src/queue-routes.ts';
import { createReceiverRoutes } from '../../src/receiver/route.ts';
import { STATUS, type Status } from '../../src/task.ts';
import { createTaskRoutes } from '../../src/tasks.ts';
import { createWaiter } from '../../src/waiter.ts';
import { createWorld, type Key, type World } from '../db/insert-world.ts';
import { eventually } from '../support/eventually.ts';
import { type RunningService, startService } from '../support/process.ts';

const DAY_MS = 86_400_000;
const RESULT_MAX_BYTES = 100_000;
const BATCH_MAX_BYTES = 1_000_000;
const ENVELOPE_BYTES = 65_536;

let world: World;
let one: RunningService;
let two: RunningService;
let tasks = 0;
const newTask = () => String(++tasks);

before(async () => {
  world = await createWorld('http');
  await world.addQueue('lane');
  const env = {
    DATABASE_URL: world.url,
    RESULT_MAX_BYTES: String(RESULT_MAX_BYTES),
    BATCH_MAX_BYTES: String(BATCH_MAX_BYTES),
  };
  [one, two] = await Promise.all([startService({ env }), startService({ env })]);
});
after(async () => {
  await Promise.all([one?.stop(), two?.stop()]);
  await world?.end();
});

// biome-ignore lint/suspicious/noExplicitAny: answers are looked at member by member
type Reply = { status: number; headers: Headers; text: string; body: any };
/** Text and bytes are sent as they are, anything else as JSON. */
type Body = string | Uint8Array<ArrayBuffer> | object | undefined;

const isRaw = (body: Body): body is string | Uint8Array<ArrayBuffer> =>
  typeof body === 'string' || body instanceof Uint8Array;

async function call(method: string, path: string, body?: Body, headers: Record<string, string> = {}): Promise<Reply> {
  const response = await fetch((path.startsWith('http') ? '' : one.url) + path, {
    method,
    headers: body === undefined ? headers : { 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: isRaw(body) ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  const json = response.headers.get('content-type')?.includes('json') && text !== '';
  return { status: response.status, headers: response.headers, text, body: json ? JSON.parse(text) : {} };
}
const get = (path: string, headers?: Record<string, string>) => call('GET', path, undefined, headers);
const post = (path: string, body?: Body, headers?: Record<string, string>) => call('POST', path, body, headers);
const submit = (taskId: string, taskVersion = '1', more: object = {}) =>
  post('/v1/tasks', { task_id: taskId, task_version: taskVersion, payload: null, ...more });
const pathOf = (taskId: string, taskVersion = '1') => `/v1/tasks/${taskId}/versions/${taskVersion}`;

/** A problem of RFC 9457 with that code, and pointer when given; returned for more questions. */
function assertProblem(reply: Reply, code: keyof typeof ERROR_CODES, pointer?: string): Reply {
  const said = `${reply.status} ${reply.text.slice(0, 300)}`;
  const [status, title] = ERROR_CODES[code];
  assert.equal(reply.body.code, code, said);
  assert.equal(reply.status, status, said);
  assert.match(reply.headers.get('content-type') ?? '', /^application\/problem\+json/, said);
  assert.deepEqual(
    [reply.body.type, reply.body.title, reply.body.status],
    [`urn:docsched:problem:${code}`, title, status],
  );
  assert.ok(typeof reply.body.detail === 'string' && reply.body.detail.length > 0, said);
  if (pointer !== undefined) assert.equal(reply.body.pointer, pointer, said);
  return reply;
}

const countRows = async (): Promise<string> =>
  (
    await world.sql.query(
      `SELECT (SELECT count(*) FROM task_scheduler_tasks) || ' tasks, ' || (SELECT count(*) FROM version_floors) ||
              ' floors, ' || (SELECT count(*) FROM attempts WHERE closed_at IS NULL) || ' open attempts' AS counts`,
    )
  ).rows[0].counts;

/** Runs what must leave no trace. */
async function unchanged(work: () => Promise<unknown>): Promise<void> {
  const before = await countRows();
  await work();
  assert.equal(await countRows(), before, 'nothing is stored');
}

/** A task of its own in that state; its attempt's id where it has one. */
async function bring(key: Key, status: Status): Promise<string> {
  await submit(key.taskId, key.taskVersion, key.queue ? { queue: key.queue } : {});
  if (status === 'Pending') return '';
  const attemptId = await world.claim(key);
  if (status === 'Success') await world.settle(attemptId, 'success', '{"pages": 3}');
  if (status === 'Failed') await world.settle(attemptId, 'refused');
  if (status === 'Stopped') await world.cancel(key);
  return attemptId;
}
const statusOf = async (taskId: string, taskVersion = '1'): Promise<string> =>
  (await get(pathOf(taskId, taskVersion))).body.status;

describe('submits', () => {
  test('of one new task from fifty callers on two processes make one row', async () => {
    const taskId = newTask();
    const urls = [one.url, two.url];
    const body = { task_id: taskId, task_version: '1', payload: { from: 'many' } };
    const all = () => Promise.all(Array.from({ length: 50 }, (_, index) => post(`${urls[index % 2]}/v1/tasks`, body)));
    const replies = await all();
    assert.deepEqual(new Set(replies.map((reply) => reply.status)), new Set([202]));
    const outcomes = replies.map((reply) => reply.body.outcome);
    assert.equal(outcomes.filter((outcome) => outcome === 'created').length, 1);
    assert.equal(outcomes.filter((outcome) => outcome === 'refreshed').length, 49);
    assert.equal((await world.states(taskId)).length, 1);

    await world.claim({ taskId, taskVersion: '1' });
    const again = await all();
    assert.deepEqual(new Set(again.map((reply) => `${reply.status} ${reply.body.outcome}`)), new Set(['200 existing']));
  });

  test('are answered 202, 200 or 409 by their outcome, with the task or the latest version', async () => {
    const taskId = newTask();
    const created = await submit(taskId, '1');
    assert.deepEqual([created.status, created.body.outcome, created.body.task.task_id], [202, 'created', taskId]);
    assert.equal(created.headers.get('location'), `${pathOf(taskId)}?queue=default`);
    assert.equal((await get(created.headers.get('location')!)).body.task_version, '1');
    assert.deepEqual((await submit(taskId, '1')).body.outcome, 'refreshed');
    const attemptId = await world.claim({ taskId, taskVersion: '1' });
    const existing = await submit(taskId, '1');
    assert.deepEqual(
      [existing.status, existing.body.outcome, existing.body.task.status],
      [200, 'existing', 'Processing'],
    );
    await world.settle(attemptId, 'refused');
    const recreated = await submit(taskId, '1');
    assert.deepEqual([recreated.status, recreated.body.outcome], [202, 'recreated']);
    await submit(taskId, '3');
    const stale = assertProblem(await submit(taskId, '2'), 'stale_version', '/task_version');
    assert.deepEqual(stale.body.outcome, 'stale');
    assert.deepEqual(stale.body.latest, { task_version: '3', status: 'Pending' });
    await world.cleanUp({ taskId, taskVersion: '3' });
    assert.deepEqual((await submit(taskId, '2')).body.latest, { task_version: '3', status: null });
  });

  test('may name ids as exact numbers, and get them back as text', async () => {
    const taskId = newTask();
    const { body } = await post('/v1/tasks', { task_id: Number(taskId), task_version: 9007199254740991, payload: 1 });
    assert.deepEqual([body.task.task_id, body.task.task_version], [taskId, '9007199254740991']);
  });

  test('in a batch get one outcome an entry, in order, the bad ones too', async () => {
    const taskId = newTask();
    const entry = (members: object) => ({ task_id: taskId, task_version: '2', payload: null, ...members });
    const { status, body } = await post('/v1/tasks/batch', {
      tasks: [
        entry({}),
        entry({ priority: 6 }),
        entry({ task_version: '1' }),
        entry({ nested: { x: 1 } }),
        entry({ queue: 'no-such-queue' }),
        entry({ task_version: '3', queue: 'lane' }),
        { task_id: taskId, task_version: '4' },
        null,
        entry({ task_version: 2 ** 53 }),
      ],
    });
    assert.equal(status, 200);
    assert.deepEqual(
      body.results.map((result: Reply['body']) =>
        result.error ? `${result.error.status} ${result.error.code} ${result.error.pointer}` : result.outcome,
      ),
      [
        'created',
        '400 invalid_field /tasks/1/priority',
        'stale',
        '400 unknown_field /tasks/3/nested',
        '404 unknown_queue /tasks/4/queue',
        'created',
        '400 missing_field /tasks/6/payload',
        '400 invalid_field /tasks/7',
        '400 integer_not_exact /tasks/8/task_version',
      ],
    );
    assert.deepEqual(body.results[2].latest, { task_version: '2', status: 'Pending' });
    assert.equal((await world.states(taskId)).length, 1);
  });

  test('in a batch may be a thousand', async () => {
    const tasks = Array.from({ length: 1000 }, () => ({ task_id: newTask(), task_version: 1, payload: null }));
    const { body } = await post('/v1/tasks/batch', { tasks });
    assert.equal(body.results.length, 1000);
    assert.deepEqual(new Set(body.results.map((result: Reply['body']) => result.outcome)), new Set(['created']));
  });

  test('of which a member is named twice mean the last, as JSON parsers do', async () => {
    const [first, second] = [newTask(), newTask()];
    const { body } = await post(
      '/v1/tasks',
      `{"task_id":"${first}","payload":1,"task_version":"1","task_id":"${second}","payload":[2]}`,
    );
    assert.equal(body.task.task_id, second);
    assert.equal((await world.states(second))[0]?.payload, '[2]');
    assert.deepEqual(await world.states(first), []);
  });

  test('may come compressed', async () => {
    const taskId = newTask();
    const body = gzipSync(JSON.stringify({ task_id: taskId, task_version: '1', payload: 'x' }));
    assert.equal((await post('/v1/tasks', body, { 'content-encoding': 'gzip' })).status, 202);
  });

  test('survive brackets nested a hundred thousand deep, in a payload and anywhere else', async () => {
    const taskId = newTask();
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    assert.equal((await post('/v1/tasks', `{"task_id":"${taskId}","task_version":"1","payload":${deep}}`)).status, 202);
    assert.ok((await get(`${pathOf(taskId)}?include=payload`)).text.endsWith(`,"payload":${deep}}`));
    assertProblem(await post('/v1/tasks', deep), 'invalid_field', '');
    assertProblem(
      await post('/v1/tasks', `{"task_id":${deep},"task_version":"1","payload":1}`),
      'invalid_field',
      '/task_id',
    );
    const { body } = await post('/v1/tasks/batch', `{"tasks":[${deep}]}`);
    assert.equal(body.results[0].error.pointer, '/tasks/0');
  });
});

describe('a bad submit', () => {
  const good = { task_id: '1000000', task_version: '1', payload: null };
  const without = (name: string) => Object.fromEntries(Object.entries(good).filter(([key]) => key !== name));
  const text = JSON.stringify(good);
  const faults: [string, Body, keyof typeof ERROR_CODES, string][] = [
    ['that is cut off', text.slice(0, -1), 'malformed_json', ''],
    ['that is empty', '', 'malformed_json', ''],
    ['with more after its end', `${text}{}`, 'malformed_json', ''],
    ['with a byte order mark', `\uFEFF${text}`, 'malformed_json', ''],
    ['with NaN', '{"task_id":NaN}', 'malformed_json', ''],
    ['that is not UTF-8', Buffer.from(text.replace('null', '"é"'), 'latin1'), 'malformed_json', ''],
    [
      'with half a surrogate pair as bytes',
      Buffer.from(text.replace('null', '"\xED\xA0\x80"'), 'latin1'),
      'malformed_json',
      '',
    ],
    ['with a raw NUL in a string', text.replace('null', '"\0"'), 'malformed_json', ''],
    ['that is an array', [good], 'invalid_field', ''],
    ['that is null', 'null', 'invalid_field', ''],
    ['that is a string', '"x"', 'invalid_field', ''],
    ['without task_id', without('task_id'), 'missing_field', '/task_id'],
    ['without task_version', without('task_version'), 'missing_field', '/task_version'],
    ['without payload', without('payload'), 'missing_field', '/payload'],
    ['with an unknown member', { ...good, prio: 1 }, 'unknown_field', '/prio'],
    ['with an unknown member of an odd name', { ...good, 'a/b~c': 1 }, 'unknown_field', '/a~1b~0c'],
    ['with the member __proto__', `${text.slice(0, -1)},"__proto__":{}}`, 'unknown_field', '/__proto__'],
    ...[0, 6, '1', 1.5, null, -1, 1e300].map((priority): [string, Body, 'invalid_field', string] => [
      `with priority ${JSON.stringify(priority)}`,
      { ...good, priority },
      'invalid_field',
      '/priority',
    ]),
    ...['-1', '01', '', ' 1', '1.0', '1e3', '9223372036854775808', -1, 1.5, true, null, [1], '\0'].flatMap((id) =>
      ['task_id', 'task_version'].map((name): [string, Body, 'invalid_field', string] => [
        `with ${name} ${JSON.stringify(id)}`,
        { ...good, [name]: id },
        'invalid_field',
        `/${name}`,
      ]),
    ),
    ['with an id that is not exact', text.replace('"1000000"', '9007199254740993'), 'integer_not_exact', '/task_id'],
    ['with a version out of range', text.replace('"1"', '1e400'), 'invalid_field', '/task_version'],
    ['with run_at more than a year ahead', { ...good, run_at: Date.now() + 366 * DAY_MS }, 'invalid_field', '/run_at'],
    ['with run_at in words', { ...good, run_at: 'tomorrow' }, 'invalid_field', '/run_at'],
    ['with run_at before all time', { ...good, run_at: -1 }, 'invalid_field', '/run_at'],
    ['with negative max_retries', { ...good, max_retries: -1 }, 'invalid_field', '/max_retries'],
    ['with endless max_retries', { ...good, max_retries: 1001 }, 'invalid_field', '/max_retries'],
    ['with queue ""', { ...good, queue: '' }, 'invalid_field', '/queue'],
    ['with a queue in capitals', { ...good, queue: 'Default' }, 'invalid_field', '/queue'],
    ['with a queue of 65 letters', { ...good, queue: 'q'.repeat(65) }, 'invalid_field', '/queue'],
    ['with a queue that holds a NUL', { ...good, queue: 'a\0' }, 'invalid_field', '/queue'],
    ['with a queue that is not there', { ...good, queue: 'nowhere' }, 'unknown_queue', '/queue'],
    ['with a payload one byte too large', { ...good, payload: 'x'.repeat(262_143) }, 'payload_too_large', '/payload'],
    ['with a body far too large', { ...good, payload: 'x'.repeat(400_000) }, 'payload_too_large', ''],
  ];
  for (const [name, body, code, pointer] of faults)
    test(`${name} is refused as ${code} at '${pointer}'`, () =>
      unchanged(async () => assertProblem(await post('/v1/tasks', body), code, pointer)));

  const batches: [string, Body, keyof typeof ERROR_CODES, string][] = [
    ['that is no object', '[]', 'invalid_field', ''],
    ['of none', { tasks: [] }, 'invalid_field', '/tasks'],
    ['of 1001', { tasks: Array(1001).fill(good) }, 'invalid_field', '/tasks'],
    ['without tasks', {}, 'missing_field', '/tasks'],
    ['whose tasks are an object', { tasks: { 0: good } }, 'invalid_field', '/tasks'],
    ['with an unknown member', { tasks: [good], speed: 1 }, 'unknown_field', '/speed'],
    ['that is too large', { tasks: [{ ...good, payload: 'x'.repeat(BATCH_MAX_BYTES) }] }, 'body_too_large', ''],
  ];
  for (const [name, body, code, pointer] of batches)
    test(`batch ${name} is refused as ${code}`, () =>
      unchanged(async () => assertProblem(await post('/v1/tasks/batch', body), code, pointer)));

  test('of another content type is refused as unsupported_media_type', () =>
    unchanged(async () => {
      for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/jsonx', ''])
        assertProblem(await post('/v1/tasks', text, { 'content-type': type }), 'unsupported_media_type');
      assertProblem(await post('/v1/tasks'), 'unsupported_media_type');
      assertProblem(await post('/v1/tasks', text, { 'content-encoding': 'compress' }), 'unsupported_media_type');
    }));

  test('compressed badly, or to hide its size, is refused', () =>
    unchanged(async () => {
      const gzip = { 'content-encoding': 'gzip' };
      assertProblem(await post('/v1/tasks', 'not gzip', gzip), 'malformed_json');
      assertProblem(await post('/v1/tasks', gzipSync(Buffer.alloc(50_000_000, ' ')), gzip), 'payload_too_large');
    }));

  test('that breaks off in its middle stores nothing, and the service goes on', () =>
    unchanged(async () => {
      const { hostname, port } = new URL(one.url);
      const socket = connect(Number(port), hostname);
      await once(socket, 'connect');
      const head = `POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${text.length}`;
      socket.write(`${head}\r\n\r\n${text.slice(0, 10)}`);
      socket.resetAndDestroy();
      await once(socket, 'close');
      assert.equal((await get('/livez')).status, 200);
    }));

  test('lists all its faults', async () => {
    const reply = await post('/v1/tasks', { task_id: -1, task_version: 1, payload: 1, priority: 0, x: 1 });
    assert.deepEqual(reply.body.errors.map((error: Reply['body']) => `${error.code} ${error.pointer}`).toSorted(), [
      'invalid_field /priority',
      'invalid_field /task_id',
      'unknown_field /x',
    ]);
  });

  test('of any shape never makes the service fail, and is stored only when it is answered so', async () => {
    const value = fc.oneof(
      fc.jsonValue(),
      fc.integer(),
      fc.constantFrom('1', '2', '\0', '\ud800', 'default', 'lane', ''),
    );
    const entry = fc.record(
      {
        task_id: fc.oneof(fc.constantFrom('5000001', '5000002', 5000003), value),
        task_version: fc.oneof(fc.nat(3), value),
        payload: value,
        priority: fc.oneof(fc.nat(6), value),
        queue: fc.oneof(fc.constantFrom('default', 'lane'), value),
        run_at: fc.oneof(fc.integer(), value),
        max_retries: value,
        [randomBytes(3).toString('hex')]: value,
      },
      { requiredKeys: [] },
    );
    const valid = fc.record({
      task_id: fc.constantFrom('5000001', '5000002'),
      task_version: fc.nat(3),
      payload: value,
    });
    const body = fc.oneof(
      fc.json(),
      fc.uint8Array({ maxLength: 100 }),
      entry.map((one) => JSON.stringify(one)),
      valid.map((one) => JSON.stringify(one)),
    );
    const path = fc.constantFrom('/v1/tasks', '/v1/tasks/batch');
    const batch = fc.array(fc.oneof(entry, valid, value), { maxLength: 5 }).map((tasks) => JSON.stringify({ tasks }));
    const rowsOf = async () =>
      Number((await world.sql.query('SELECT count(*) FROM task_scheduler_tasks')).rows[0].count);
    const rows = await rowsOf();
    let created = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.oneof(fc.tuple(path, body), fc.tuple(fc.constant('/v1/tasks/batch'), batch)),
        async ([path, body]) => {
          const reply = await post(path, body);
          assert.ok(reply.status < 500, `${reply.status} ${reply.text}`);
          if (reply.status >= 400) assertProblem(reply, reply.body.code);
          for (const result of reply.body.results ?? [reply.body]) {
            assert.ok(result.error === undefined || result.error.status < 500, JSON.stringify(result.error));
            if (result.outcome === 'created') created++;
          }
        },
      ),
      { numRuns: 400 },
    );
    assert.equal(await rowsOf(), rows + created);
    assert.ok(created > 0, 'some of them are good');
  });
});

describe('callbacks', () => {
  /** A Processing task and its attempt; `work` must leave both as they are, and a good callback then still counts. */
  async function stillOpen(work: (path: string, attemptId: string) => Promise<unknown>): Promise<void> {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const before = [await world.states(taskId), await countRows()];
    await work(`/v1/callbacks/${attemptId}`, attemptId);
    assert.deepEqual([await world.states(taskId), await countRows()], before, 'nothing is settled');
    const reply = await post(`/v1/callbacks/${attemptId}`, { status_code: 0 });
    assert.deepEqual([reply.status, reply.body], [200, { outcome: 'applied' }]);
  }

  test('settle once: applied, then duplicate', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const report = { status_code: 0, status_msg: 'fine', result: { pages: 3 }, unknown: { x: 1 } };
    assert.deepEqual((await post(`/v1/callbacks/${attemptId}`, report)).body, { outcome: 'applied' });
    assert.deepEqual((await post(`/v1/callbacks/${attemptId}`, { status_code: 7 })).body, { outcome: 'duplicate' });
    const { body } = await get(pathOf(taskId));
    assert.deepEqual(
      [body.status, body.status_code, body.status_msg, body.result, body.result_url],
      ['Success', 0, 'fine', { pages: 3 }, null],
    );
  });

  test('of failure need no result, and carry codes of 64 bits', async () => {
    const taskId = newTask();
    await submit(taskId, '1', { max_retries: 0 });
    const attemptId = await world.claim({ taskId, taskVersion: '1' });
    const reply = await post(`/v1/callbacks/${attemptId}`, { status_code: '-9223372036854775808' });
    assert.deepEqual([reply.status, reply.body], [200, { outcome: 'applied' }]);
    const { body } = await get(pathOf(taskId));
    assert.deepEqual(
      [body.status, body.reason, body.status_code, body.result],
      ['Failed', 'parser_failed', '-9223372036854775808', undefined],
    );
  });

  test('with words PostgreSQL cannot store are stored as near as it can', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const body = '{"status_code":0,"status_msg":"a\\u0000b\\ud800c","result":"\\u0000\\ud800"}';
    assert.equal((await post(`/v1/callbacks/${attemptId}`, body)).status, 200);
    const reply = await get(pathOf(taskId));
    assert.equal(reply.body.status_msg, 'a\uFFFDb\uFFFDc');
    assert.ok(reply.text.includes('"result":"\\u0000\\ud800"'), 'a result is kept as its own text');
  });

  test('with a status_code that is none are refused', () =>
    stillOpen(async (path) => {
      for (const code of ['1.5', '"0x0"', '""', 'true', 'null', '[0]', '9007199254740993', '"9223372036854775808"'])
        assertProblem(await post(path, `{"status_code":${code},"result":1}`), 'invalid_field', '/status_code');
      assertProblem(await post(path, { result: 1 }), 'missing_field', '/status_code');
      assertProblem(await post(path, { status_code: 0, status_msg: 5 }), 'invalid_field', '/status_msg');
      assertProblem(await post(path, []), 'invalid_field', '');
      assertProblem(await post(path, '{"status_code":0'), 'malformed_json', '');
      assertProblem(await post(path, ''), 'malformed_json', '');
      assertProblem(await post(path, '{"status_code":0}', { 'content-type': 'text/plain' }), 'unsupported_media_type');
    }));

  test('with a result that is too large settle nothing, and a failure may then be reported', () =>
    stillOpen(async (path) => {
      const result = 'x'.repeat(RESULT_MAX_BYTES - 1);
      assertProblem(await post(path, { status_code: 0, result }), 'result_too_large', '/result');
      assertProblem(
        await post(path, { status_code: 0, result: 'x'.repeat(RESULT_MAX_BYTES + ENVELOPE_BYTES) }),
        'result_too_large',
        '',
      );
    }));

  test('with a result of just the largest size are applied', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const result = 'x'.repeat(RESULT_MAX_BYTES - 2);
    assert.equal((await post(`/v1/callbacks/${attemptId}`, { status_code: 0, result })).status, 200);
    assert.equal((await get(pathOf(taskId))).body.result, result);
  });

  test('of attempts that never were are unknown, whatever stands for their id', async () => {
    const ids = ['x', 'a'.repeat(65), 'a'.repeat(30), '%00'.repeat(22), "'; DROP TABLE attempts --", 'é'.repeat(22)];
    for (const id of ids) {
      assertProblem(await post(`/v1/callbacks/${id}`, { status_code: 0 }), 'unknown_attempt');
      assertProblem(await post(`/v1/callbacks/${id}/progress`, {}), 'unknown_attempt');
    }
    assertProblem(await post('/v1/callbacks/%zz', { status_code: 0 }), 'not_found');
  });

  test('of a cancelled task are stale, and so is every one after', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Stopped');
    for (const _ of [1, 2])
      assertProblem(await post(`/v1/callbacks/${attemptId}`, { status_code: 0 }), 'stale_attempt');
    assert.equal(await statusOf(taskId), 'Stopped');
  });

  test('in the plain form name the task and the attempt, and both must fit', async () => {
    await stillOpen(async (_, attempt_id) => {
      const task = { task_id: String(tasks), task_version: 1, attempt_id, status_code: 0 };
      for (const wrong of [{ task_id: '0' }, { task_version: 2 }, { queue: 'lane' }, { attempt_id: 'b'.repeat(22) }])
        assertProblem(await post('/v1/callbacks', { ...task, ...wrong }), 'unknown_attempt');
      assertProblem(await post('/v1/callbacks', { ...task, attempt_id: 'short' }), 'invalid_field', '/attempt_id');
      assertProblem(await post('/v1/callbacks', { ...task, attempt_id: undefined }), 'missing_field', '/attempt_id');
      assertProblem(await post('/v1/callbacks', { ...task, task_id: '01' }), 'invalid_field', '/task_id');
    });
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const body = { task_id: taskId, task_version: '1', attempt_id: attemptId, status_code: '0', more: true };
    assert.deepEqual((await post('/v1/callbacks', body)).body, { outcome: 'applied' });
  });

  test('of progress are stored, checked, and told when the task was cancelled', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const path = `/v1/callbacks/${attemptId}/progress`;
    for (const [body, pointer] of [
      [{ percent: 101 }, '/percent'],
      [{ percent: '5' }, '/percent'],
      [{ message: 5 }, '/message'],
      [{ done: 'yes' }, '/done'],
      [[], ''],
    ] as const)
      assertProblem(await post(path, body), 'invalid_field', pointer);
    assertProblem(await post(path, { message: 'x'.repeat(70_000) }), 'body_too_large', '');
    const reply = await post(path, '{"percent":33.5,"message":"a\\u0000b","eta":5}');
    assert.deepEqual([reply.status, reply.body.outcome, reply.body.cancel_requested], [200, 'applied', false]);
    assert.equal(typeof reply.body.deadline, 'number');
    assert.deepEqual((await get(pathOf(taskId))).body.progress, { percent: 33.5, message: 'a\uFFFDb' });
    await post(`${pathOf(taskId)}/cancel`);
    assert.equal((await post(path, {})).body.cancel_requested, true);
    assert.equal((await post(path, { done: true })).status, 200);
    assertProblem(await post(path, {}), 'stale_attempt');
  });

  test('of any shape never make the service fail', async () => {
    const taskId = newTask();
    await submit(taskId, '1', { max_retries: 0 });
    const attemptId = await world.claim({ taskId, taskVersion: '1' });
    const stillOpen = await bring({ taskId: newTask(), taskVersion: '1' }, 'Processing');
    const value = fc.oneof(fc.jsonValue(), fc.constantFrom('0', '\0', '\ud800', 1e300));
    const report = fc.record(
      {
        status_code: fc.oneof(fc.bigInt({ min: -(2n ** 65n), max: 2n ** 65n }).map(String), fc.integer(), value),
        status_msg: fc.oneof(fc.string({ unit: 'binary' }), value),
        result: value,
        task_id: fc.constantFrom(taskId, 0),
        task_version: fc.oneof(fc.constantFrom('1'), value),
        attempt_id: fc.constantFrom(attemptId, 'b'.repeat(22)),
        percent: fc.oneof(fc.double(), value),
        message: fc.oneof(fc.string({ unit: 'binary' }), value),
        done: value,
      },
      { requiredKeys: [] },
    );
    const body = fc.oneof(
      { weight: 4, arbitrary: report.map((one) => JSON.stringify(one)) },
      fc.json(),
      fc.uint8Array(),
    );
    const id = fc.oneof(
      fc.constantFrom(attemptId, 'b'.repeat(22)),
      fc.string({ unit: 'grapheme', minLength: 1 }).map(encodeURIComponent),
    );
    const path = fc.oneof(
      id.map((one) => `/v1/callbacks/${one}`),
      fc.oneof(fc.constant(stillOpen), id).map((one) => `/v1/callbacks/${one}/progress`),
      fc.constant('/v1/callbacks'),
    );
    await fc.assert(
      fc.asyncProperty(path, body, async (path, body) => {
        const reply = await post(path, body);
        assert.ok(reply.status < 500, `${reply.status} ${reply.text}`);
        if (reply.status >= 400) assertProblem(reply, reply.body.code);
      }),
      { numRuns: 400 },
    );
  });
});

describe('reading', () => {
  test('the latest version, all versions, and one of them', async () => {
    const taskId = newTask();
    for (const version of ['1', '3', '20']) await submit(taskId, version);
    assert.equal((await get(`/v1/tasks/${taskId}`)).body.task_version, '20');
    const { body } = await get(`/v1/tasks/${taskId}/versions?queue=default`);
    assert.deepEqual(
      body.versions.map((task: Reply['body']) => task.task_version),
      ['20', '3', '1'],
    );
    assert.equal((await get(pathOf(taskId, '3'))).body.task_version, '3');
  });

  test('a task shows every member of the contract', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '1' }, 'Success');
    const { body } = await get(pathOf(taskId));
    const members = [
      'queue, task_id, task_version, status, reason, priority, status_code, status_msg, retry_count, max_retries',
      'attempt, progress, run_at, next_retry_time, pending_since, deadline, started_at, finished_at, create_at, update_at',
      'result, result_url',
    ];
    assert.deepEqual(Object.keys(body), members.join(', ').split(', '));
    assert.deepEqual((await get(`${pathOf(taskId)}?include=payload`)).body.payload, null);
  });

  test('attempts, oldest first', async () => {
    const taskId = newTask();
    await submit(taskId);
    assert.deepEqual((await get(`${pathOf(taskId)}/attempts`)).body, { attempts: [] });
    await world.settle(await world.claim({ taskId, taskVersion: '1' }), 'parser_failed');
    await world.claim({ taskId, taskVersion: '1' });
    const { attempts } = (await get(`${pathOf(taskId)}/attempts`)).body;
    assert.deepEqual(
      attempts.map((attempt: Reply['body']) => [attempt.number, attempt.outcome, attempt.error]),
      [
        [1, 'parser_failed', 'said the parser'],
        [2, null, null],
      ],
    );
    assert.ok(attempts[0].closed_at >= attempts[0].claimed_at && attempts[1].closed_at === null);
  });

  test('nothing but a push ever shows an attempt’s id', async () => {
    const taskId = newTask();
    await submit(taskId);
    const first = await world.claim({ taskId, taskVersion: '1' });
    await world.settle(first, 'parser_failed');
    const second = await world.claim({ taskId, taskVersion: '1' });
    const answers = await Promise.all([
      submit(taskId),
      get(`/v1/tasks/${taskId}`),
      get(`${pathOf(taskId)}?include=payload`),
      get(`/v1/tasks/${taskId}/versions`),
      get(`${pathOf(taskId)}/attempts`),
      get('/v1/tasks?limit=1000&status=Processing'),
      get('/metrics'),
      get('/readyz'),
      post(`${pathOf(taskId)}/cancel`),
      post(`/v1/callbacks/${first}`, { status_code: 0 }),
      post(`/v1/callbacks/${second}`, { status_code: 0 }),
    ]);
    const all = answers.map((answer) => answer.text).join('\n');
    assert.ok(all.includes(`"task_id":"${taskId}"`));
    for (const text of [all, one.lines.join('\n')]) assert.ok(!text.includes(first) && !text.includes(second));
    assert.doesNotMatch(all, /attempt_id"/);
  });

  test('what is not there is unknown', async () => {
    const taskId = newTask();
    await submit(taskId);
    const none = newTask();
    for (const path of [`/v1/tasks/${none}`, pathOf(none), pathOf(taskId, '2'), `${pathOf(taskId, '2')}/attempts`])
      assertProblem(await get(path), 'unknown_task');
    assertProblem(await get(`/v1/tasks/${none}/versions`), 'unknown_task');
    assertProblem(await get(`${pathOf(taskId)}?queue=lane`), 'unknown_task');
    assertProblem(await get(`${pathOf(taskId)}?queue=nowhere`), 'unknown_queue', 'queue');
    assertProblem(await get('/v1/tasks?queue=nowhere'), 'unknown_queue', 'queue');
  });

  test('an ETag that still holds is answered 304 without a body', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const etag = (await get(pathOf(taskId))).headers.get('etag')!;
    assert.match(etag, /^"[\w-]+"$/);
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
      const reply = await get(pathOf(taskId), { 'if-none-match': known });
      assert.deepEqual([reply.status, reply.text, reply.headers.get('etag')], [304, '', etag], known);
    }
    assert.equal((await get(pathOf(taskId), { 'if-none-match': '"other"' })).status, 200);
    assert.equal((await get(`${pathOf(taskId)}?include=payload`, { 'if-none-match': etag })).status, 200);
    await world.settle(attemptId, 'success', '1');
    const changed = await get(pathOf(taskId), { 'if-none-match': etag });
    assert.deepEqual([changed.status, changed.body.status], [200, 'Success']);
  });

  test('HEAD answers what GET would, without the body', async () => {
    const taskId = newTask();
    await submit(taskId);
    for (const path of [pathOf(taskId), '/v1/tasks?limit=1', '/livez', '/openapi.json', '/nowhere']) {
      const [head, full] = [await call('HEAD', path), await get(path)];
      assert.deepEqual([head.status, head.text], [full.status, ''], path);
      assert.equal(head.headers.get('etag'), full.headers.get('etag'));
    }
  });

  test('a list is filtered, and paged without losing or repeating a task', async () => {
    const versions = [newTask(), newTask(), newTask()].flatMap((taskId) => [
      { queue: 'lane', taskId, taskVersion: '1' },
      { queue: 'lane', taskId, taskVersion: '2' },
    ]);
    for (const [index, key] of versions.entries()) await bring(key, STATUS[index % 5]!);
    const list = async (query: string) => {
      const { body } = await get(`/v1/tasks?queue=lane&${query}`);
      return { ...body, keys: body.tasks.map((task: Reply['body']) => `${task.task_id}/${task.task_version}`) };
    };
    const mine = versions.map((key) => `${key.taskId}/${key.taskVersion}`);
    const all: string[] = (await list('')).keys.filter((key: string) => mine.includes(key));
    assert.deepEqual(all.toSorted(), mine.toSorted());

    const paged: string[] = [];
    let cursor: string | null = '';
    for (let pages = 0; cursor !== null; pages++) {
      assert.ok(pages < 20);
      const page: { keys: string[]; cursor: string | null } = await list(`limit=2${cursor && `&cursor=${cursor}`}`);
      assert.ok(page.keys.length <= 2);
      paged.push(...page.keys);
      cursor = page.cursor;
    }
    assert.deepEqual(paged, (await list('')).keys);

    for (const status of STATUS) {
      const { tasks } = await list(`status=${status}`);
      assert.ok(tasks.length > 0 && tasks.every((task: Reply['body']) => task.status === status), status);
    }
    const cancelled = (await list('reason=cancelled')).tasks;
    assert.ok(cancelled.length > 0 && cancelled.every((task: Reply['body']) => task.reason === 'cancelled'));
    const [failed] = (await list('status=Failed')).tasks;
    assert.deepEqual((await list(`status=Failed&finished_before=${failed.finished_at}`)).keys, []);
    assert.equal((await list(`status=Failed&finished_before=${failed.finished_at + 1}`)).keys.length, 1);
    assert.deepEqual((await list(`status=Failed&updated_after=${failed.update_at}`)).keys, []);
    assert.equal((await list(`status=Failed&updated_after=${failed.update_at - 1}`)).keys.length, 1);
    assert.deepEqual((await list('priority=1')).keys, []);
    assert.equal((await list('priority=5')).keys.length, (await list('')).keys.length);
  });

  const encode = (cursor: unknown) => Buffer.from(JSON.stringify(cursor)).toString('base64url');
  const parameters: [string, string, string][] = [
    ['limit=0', 'invalid_field', 'limit'],
    ['limit=1001', 'invalid_field', 'limit'],
    ['limit=ten', 'invalid_field', 'limit'],
    ['limit=1.5', 'invalid_field', 'limit'],
    ['limit=1&limit=2', 'invalid_field', 'limit'],
    ['status=pending', 'invalid_field', 'status'],
    ['status=1', 'invalid_field', 'status'],
    ['priority=6', 'invalid_field', 'priority'],
    ['reason=%00', 'invalid_field', 'reason'],
    ['queue=%00', 'invalid_field', 'queue'],
    ['updated_after=yesterday', 'invalid_field', 'updated_after'],
    ['updated_after=1e300', 'invalid_field', 'updated_after'],
    ['finished_before=-1', 'invalid_field', 'finished_before'],
    ['colour=red', 'unknown_field', 'colour'],
    ['cursor=', 'invalid_field', 'cursor'],
    ['cursor=%00', 'invalid_field', 'cursor'],
    ['cursor=x', 'invalid_field', 'cursor'],
    [`cursor=${encode({})}`, 'invalid_field', 'cursor'],
    [`cursor=${encode(['default', '1'])}`, 'invalid_field', 'cursor'],
    [`cursor=${encode(['default', '9999999999999999999', '1'])}`, 'invalid_field', 'cursor'],
    [`cursor=${encode(['default', '1', ['1']])}`, 'invalid_field', 'cursor'],
    [`cursor=${encode(['a\0', '1', '1'])}`, 'invalid_field', 'cursor'],
  ];
  for (const [query, code, pointer] of parameters)
    test(`a list with ${query} is refused as ${code}`, async () => {
      assertProblem(await get(`/v1/tasks?${query}`), code as 'invalid_field', pointer);
    });

  test('bad ids and parameters of a task are refused by name', async () => {
    for (const id of ['01', '-1', 'x', '9223372036854775808', '1.0', '%00', '%20'])
      for (const path of [`/v1/tasks/${id}`, `/v1/tasks/${id}/versions`, pathOf(id)])
        assertProblem(await get(path), 'invalid_field', 'task_id');
    assertProblem(await get(pathOf('1', 'x')), 'invalid_field', 'task_version');
    for (const action of ['cancel', 'retry'])
      assertProblem(await post(`${pathOf('1', '01')}/${action}`), 'invalid_field', 'task_version');
    for (const wait of ['-1', '61', 'x', 'Infinity'])
      assertProblem(await get(`${pathOf('1')}?wait=${wait}`), 'invalid_field', 'wait');
    assertProblem(await get(`${pathOf('1')}?include=result`), 'invalid_field', 'include');
    assertProblem(await get(`${pathOf('1')}?wait[]=1`), 'unknown_field', 'wait[]');
  });

  test('parameters of any shape never make the service fail', async () => {
    const names = [
      'queue',
      'status',
      'priority',
      'reason',
      'updated_after',
      'finished_before',
      'limit',
      'cursor',
      'wait',
    ];
    const value = fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.integer().map(String),
      fc.double().map(String),
      fc.bigInt().map(String),
      fc.constantFrom('default', 'Pending', '\0', '1'),
      fc.json().map((text) => Buffer.from(text).toString('base64url')),
      fc.tuple(fc.constantFrom('', 'default', '\0'), fc.jsonValue(), fc.bigInt().map(String)).map(encode),
    );
    const query = fc.array(fc.tuple(fc.constantFrom(...names), value), { maxLength: 3 });
    const path = fc.oneof(
      fc.constant('/v1/tasks'),
      value.map((id) => `/v1/tasks/${encodeURIComponent(id)}`),
      fc.tuple(value, value).map(([id, version]) => pathOf(encodeURIComponent(id), encodeURIComponent(version))),
    );
    await fc.assert(
      fc.asyncProperty(path, query, async (path, query) => {
        const reply = await get(`${path}?${new URLSearchParams(query)}`);
        assert.ok(reply.status < 500, `${reply.status} ${reply.text}`);
        if (reply.status >= 400) assertProblem(reply, reply.body.code);
      }),
      { numRuns: 300 },
    );
  });
});

describe('waiting', () => {
  const answered = async (path: string) => {
    const began = performance.now();
    const { body } = await get(path);
    return { status: body.status, ms: performance.now() - began };
  };

  test('ends with the task as it is when the time is over', async () => {
    const taskId = newTask();
    await submit(taskId);
    const { status, ms } = await answered(`${pathOf(taskId)}?wait=0.4`);
    assert.equal(status, 'Pending');
    assert.ok(ms >= 390, `${ms} ms`);
  });

  for (const status of ['Success', 'Failed', 'Stopped'] as const)
    test(`ends at once for a task that is ${status}`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      const reply = await answered(`${pathOf(taskId)}?wait=60`);
      assert.equal(reply.status, status);
      assert.ok(reply.ms < 5_000);
    });

  test('ends when a callback arrives, at this instance or another', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const waits = [one, two].map((service) => answered(`${service.url}${pathOf(taskId)}?wait=60`));
    await post(`/v1/callbacks/${attemptId}`, { status_code: 0 });
    for (const { status, ms } of await Promise.all(waits)) {
      assert.equal(status, 'Success');
      assert.ok(ms < 10_000);
    }
  });

  test('ends when the task is cancelled, and not when it is claimed', async () => {
    const taskId = newTask();
    await submit(taskId);
    const wait = answered(`${pathOf(taskId)}?wait=60`);
    await world.claim({ taskId, taskVersion: '1' });
    await post(`${two.url}${pathOf(taskId)}/cancel`);
    assert.equal((await wait).status, 'Stopped');
  });

  test('of five hundred clients costs one query a look, not one a client', async () => {
    const taskId = newTask();
    const attemptId = await bring({ taskId, taskVersion: '1' }, 'Processing');
    const queries: string[] = [];
    const db: Db = {
      ...world.db,
      query: (name, params) => {
        queries.push(name);
        return world.db.query(name, params);
      },
    };
    const log = createLog('silent');
    const waiter = createWaiter({ db, log });
    const queues = { get: () => ({}) } as never;
    const journal = createJournal(log);
    const server = createServer({
      routers: [createTaskRoutes({ db, queues, waiter, onRetried: () => {}, onFreed: () => {}, journal })],
      log,
    });
    const port = await server.listen('127.0.0.1', 0);
    waiter.start();
    const CLIENTS = 500;
    const count = (name: string) => queries.filter((query) => query === name).length;
    const waits = Array.from({ length: CLIENTS }, () => answered(`http://127.0.0.1:${port}${pathOf(taskId)}?wait=60`));
    await eventually(() => count('get_task') === CLIENTS);
    const looks = count('find_changed');
    await eventually(() => count('find_changed') >= looks + 3);
    assert.equal(count('get_task'), CLIENTS, 'nobody asks while waiting');
    await world.settle(attemptId, 'success', '1');
    for (const { status } of await Promise.all(waits)) assert.equal(status, 'Success');
    assert.equal(count('get_task'), 2 * CLIENTS);
    assert.ok(count('find_changed') < 100);
    await waiter.stop();
    await server.close();
  });
});

describe('cancel', () => {
  for (const status of ['Pending', 'Processing'] as const)
    test(`stops a ${status} task, and may be repeated`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      for (const _ of [1, 2]) {
        const reply = await post(`${pathOf(taskId)}/cancel`);
        assert.deepEqual(
          [reply.status, reply.body.task.status, reply.body.task.reason, reply.body.task.deadline],
          [200, 'Stopped', 'cancelled', null],
        );
        assert.equal(typeof reply.body.task.finished_at, 'number');
      }
    });

  for (const status of ['Success', 'Failed'] as const)
    test(`of a ${status} task is forbidden by its state`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      assertProblem(await post(`${pathOf(taskId)}/cancel`), 'state_forbids');
      assert.equal(await statusOf(taskId), status);
    });

  test('of a task that was stopped by something else is forbidden by its state', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '1' }, 'Success');
    await world.sql.query(`UPDATE task_scheduler_tasks SET status = 4, reason = 'retention' WHERE task_id = $1`, [
      taskId,
    ]);
    assertProblem(await post(`${pathOf(taskId)}/cancel`), 'state_forbids');
  });

  test('of the highest version lets the one behind it go', async () => {
    const taskId = newTask();
    await submit(taskId, '1');
    await submit(taskId, '2');
    await post(`${pathOf(taskId, '2')}/cancel`);
    assert.deepEqual(
      (await world.states(taskId)).map((row) => [row.status, row.hold]),
      [
        [0, 0],
        [4, 0],
      ],
    );
  });

  test('of what is not there is unknown', async () => {
    assertProblem(await post(`${pathOf(newTask())}/cancel`), 'unknown_task');
    assertProblem(await post(`${pathOf('1')}/cancel?queue=nowhere`), 'unknown_queue', 'queue');
  });
});

describe('retry', () => {
  for (const status of ['Failed', 'Stopped'] as const)
    test(`puts a ${status} task back in line as if it were new`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      await world.sql.query('UPDATE task_scheduler_tasks SET retry_count = 3 WHERE task_id = $1', [taskId]);
      const { status: code, body } = await post(`${pathOf(taskId)}/retry`);
      assert.equal(code, 202);
      assert.deepEqual(
        [body.task.status, body.task.reason, body.task.retry_count, body.task.finished_at, body.task.status_code],
        ['Pending', null, 0, null, null],
      );
      await eventually(async () => (await world.states(taskId))[0]?.hold === 0);
    });

  for (const status of ['Pending', 'Processing', 'Success'] as const)
    test(`of a ${status} task is forbidden by its state`, async () => {
      const taskId = newTask();
      await bring({ taskId, taskVersion: '1' }, status);
      const before = await world.states(taskId);
      assertProblem(await post(`${pathOf(taskId)}/retry`), 'state_forbids');
      assert.deepEqual(await world.states(taskId), before);
    });

  test('of a version below an accepted one is stale, also when that one is cleaned up', async () => {
    const taskId = newTask();
    await bring({ taskId, taskVersion: '1' }, 'Failed');
    await bring({ taskId, taskVersion: '2' }, 'Success');
    for (const _ of [1, 2]) {
      assertProblem(await post(`${pathOf(taskId)}/retry`), 'stale_version');
      assert.equal(await statusOf(taskId), 'Failed');
      await world.cleanUp({ taskId, taskVersion: '2' });
    }
  });

  test('of what is not there is unknown', async () => {
    assertProblem(await post(`${pathOf(newTask())}/retry`), 'unknown_task');
  });
});

describe('the service itself', () => {
  test('a route that is not there is not found', async () => {
    for (const path of [
      '/',
      '/v1',
      '/v2/tasks',
      '/v1/tasks/1/versions/1/nothing',
      '/v1/tasks/1/2',
      '/v1/%ff',
      '/favicon.ico',
    ])
      assertProblem(await get(path), 'not_found');
    assertProblem(await post('/v1/nothing', {}), 'not_found');
  });

  test('a route of another method says which it allows', async () => {
    const allowed: [string, string, string][] = [
      ['DELETE', '/v1/tasks', 'GET, HEAD, POST'],
      ['PUT', '/v1/tasks/1/versions/2', 'GET, HEAD'],
      ['GET', '/v1/tasks/1/versions/2/cancel', 'POST'],
      ['GET', '/v1/callbacks', 'POST'],
      ['PATCH', `/v1/callbacks/${'a'.repeat(22)}`, 'POST'],
      ['POST', '/livez', 'GET, HEAD'],
    ];
    for (const [method, path, allow] of allowed) {
      const reply = assertProblem(await call(method, path), 'method_not_allowed');
      assert.equal(reply.headers.get('allow'), allow, `${method} ${path}`);
    }
  });

  test('/livez and /readyz say how it is, each check with its age and limit', async () => {
    assert.deepEqual((await get('/livez')).body, { status: 'alive' });
    const { body } = await eventually(async () => {
      const reply = await get('/readyz');
      return reply.body.status === 'ready' && reply;
    }).then((reply) => reply as Reply);
    for (const [name, check] of Object.entries<Reply['body']>(body.checks))
      assert.ok(check.ok && check.last_ok_age_ms >= 0 && check.last_ok_age_ms <= check.limit_ms, name);
    assert.match(body.notes.join(), /PARSER_URL/);
  });

  test('/openapi.json names exactly the routes that are served', async () => {
    const none = {} as never;
    const log = createLog('silent');
    const routers: Router[] = [
      createHealth({
        db: none,
        limiter: none,
        checks: [],
        metrics: createMetrics({ version: '0' }),
        isRedisConnected: undefined,
        targets: () => [],
        notes: () => [],
        log,
      }).router,
      createInserterRoutes({ inserter: none, queues: none, batchMaxBytes: 1, journal: none }),
      createReceiverRoutes({ db: none, queues: none, settler: none, batchMaxBytes: 1, count: none, journal: none }),
      createQueueRoutes({ db: none, queues: none, redrive: none }),
      createTaskRoutes({ db: none, queues: none, waiter: none, onRetried: none, onFreed: none, journal: none }),
      createEventRoutes({ db: none, queues: none, waiter: none }).router,
    ];
    const served = routers.flatMap((router) =>
      router.stack.flatMap(({ route }) =>
        (route?.stack ?? []).map(({ method }) => `${method} ${route!.path.replace(/:(\w+)/g, '{$1}')}`),
      ),
    );
    const { body } = await get('/openapi.json');
    const documented = Object.entries<object>(body.paths).flatMap(([path, item]) =>
      Object.keys(item).map((method) => `${method} ${path}`),
    );
    assert.deepEqual(documented.toSorted(), [...new Set(served)].toSorted());
    for (const route of documented) {
      const [method, path] = route.split(' ') as [string, string];
      const { body } = await call(
        method.toUpperCase(),
        path.replace(/\{\w+\}/g, '0'),
        method === 'post' ? '{' : undefined,
      );
      assert.ok(!['not_found', 'method_not_allowed'].includes(body.code), route);
    }
  });

  test('/openapi.json is OpenAPI 3.1 in itself', async () => {
    const { body } = await get('/openapi.json');
    assert.match(body.openapi, /^3\.1\.\d+$/);
    assert.ok(body.info.title && body.info.version);
    const references: string[] = [];
    JSON.stringify(body, (key, value) => {
      if (key === '$ref') references.push(value);
      return value;
    });
    const schemas = Object.keys(body.components.schemas).map((name) => `#/components/schemas/${name}`);
    assert.deepEqual(new Set(references), new Set(schemas), 'every reference resolves, every schema is used');
    for (const [path, item] of Object.entries<Reply['body']>(body.paths))
      for (const [method, operation] of Object.entries<Reply['body']>(item)) {
        const route = `${method} ${path}`;
        assert.ok(operation.summary, route);
        const parameters: Reply['body'][] = operation.parameters ?? [];
        const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
        assert.deepEqual(
          parameters.filter((parameter) => parameter.in === 'path').map((parameter) => parameter.name),
          inPath,
          route,
        );
        assert.equal(new Set(parameters.map(({ name }) => name)).size, parameters.length, route);
        for (const parameter of parameters) {
          assert.equal(parameter.required, parameter.in === 'path', `${route} ${parameter.name}`);
          const { type, enum: words, const: word } = parameter.schema;
          assert.ok(type ?? words ?? word, `${route} ${parameter.name}`);
        }
        for (const [status, response] of Object.entries<Reply['body']>(operation.responses)) {
          assert.match(status, /^(\d{3}|default)$/, route);
          assert.ok(response.description, `${route} ${status}`);
        }
        assert.ok(operation.responses.default.content['application/problem+json'], route);
      }
    assert.deepEqual(body.components.schemas.SubmitRequest.required, ['task_id', 'task_version', 'payload']);
    assert.equal(body.components.schemas.SubmitRequest.additionalProperties, false);
    assert.deepEqual(body.components.schemas.CallbackRequest.required, ['status_code']);
    assert.notEqual(body.components.schemas.CallbackRequest.additionalProperties, false);
    assert.deepEqual(body.components.schemas.Problem.properties.code.enum, Object.keys(ERROR_CODES));
  });

  test('nothing of all this was logged as an error', () => {
    const errors = [...one.lines, ...two.lines].filter((line) => /"level":"(error|fatal)"/.test(line));
    assert.deepEqual(errors.slice(0, 3), []);
  });
});
