/** Settings of queues over HTTP: what is set, what is inherited, what is refused, and that every instance follows. */
import assert from 'node:assert/strict';
import { after, before, describe, type TestContext, test } from 'node:test';
import fc from 'fast-check';
import pg from 'pg';
import { eventually } from '../support/eventually.ts';
import { install, LIMITERS, submit, submitMany } from '../support/installation.ts';
import { startParser } from '../support/parser.ts';
import { freshDatabase } from '../support/postgres.ts';
import { type Event, type RunningService, startService } from '../support/process.ts';

const SECRET = `whsec_${Buffer.alloc(32, 1).toString('base64')}`;
const OLD_SECRET = `whsec_${Buffer.alloc(24, 2).toString('base64')}`;
/** Changes are in force everywhere within this. */
const SOON_MS = 2_000;
/** One of so many must be: the machine may stand still for a moment. */
const TRIES = 3;

// biome-ignore lint/suspicious/noExplicitAny: answers are looked at member by member
type Reply = { status: number; body: any; headers: Headers };
let names = 0;
const newName = () => `lane-${++names}`;

async function call(instance: RunningService, method: string, path: string, body?: unknown): Promise<Reply> {
  const answer = await fetch(`${instance.url}${path}`, {
    method,
    ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: asText(body) }),
  });
  return { status: answer.status, body: await answer.json(), headers: answer.headers };
}
const asText = (body: unknown): string => (typeof body === 'string' ? body : JSON.stringify(body));
const put = (instance: RunningService, queue: string, body: unknown) =>
  call(instance, 'PUT', `/v1/queues/${queue}`, body);
const patch = (instance: RunningService, queue: string, body: unknown) =>
  call(instance, 'PATCH', `/v1/queues/${queue}`, body);
const read = async (instance: RunningService, queue: string) =>
  (await call(instance, 'GET', `/v1/queues/${queue}`)).body;

/** `change` makes another change each time; `isInForce` asks for that one. */
async function inForceSoon(
  change: (nth: number) => Promise<unknown>,
  isInForce: (nth: number) => Promise<boolean>,
): Promise<void> {
  const times: number[] = [];
  do {
    const nth = times.length;
    await change(nth);
    const began = performance.now();
    await eventually(() => isInForce(nth));
    times.push(performance.now() - began);
  } while (Math.min(...times) >= SOON_MS && times.length < TRIES);
  assert.ok(Math.min(...times) < SOON_MS, `${times.map(Math.round)} ms`);
}

/** Every setting, none as by default. */
const EVERYTHING = {
  targets: [
    { url: 'http://parser.test:9090/parse', mode: 'async', batch: 50, push_timeout_ms: 2_500 },
    { url: 'https://other.test/parse?lane=1', mode: 'sync' },
  ],
  limit: 0,
  priority_weights: { '1': 7, '2': 0, '3': 5, '4': 0, '5': 1_000_000 },
  pending_expired_ms: 100,
  processing_expired_ms: 31_536_000_000,
  processing_max_ms: 60_000,
  success_expired_ms: 604_800_000,
  cleanup_after_ms: { failed: 2_592_000_000, stopped: 101, timed_out: 86_400_000 },
  version_floor_ms: 102,
  max_retries: 0,
  retry: { strategy: 'fixed', base_ms: 200, max_ms: 300, jitter: 0, demote: 4 },
  retry_share: 0.25,
  version_policy: 'stop',
  fence: 'lenient',
  callback_auth: 'signature',
  payload_max_bytes: 1,
  result_max_bytes: 268_435_456,
  secrets: [SECRET, OLD_SECRET],
  paused: true,
};
const { secrets: _, ...SHOWN } = EVERYTHING;

/** What a queue answers of which the API set nothing. */
const NOTHING = Object.fromEntries(
  Object.entries(SHOWN).map(([member, value]) => [
    member,
    member === 'retry' || member === 'cleanup_after_ms'
      ? Object.fromEntries(Object.keys(value as object).map((name) => [name, null]))
      : null,
  ]),
);

describe('one instance', () => {
  let one: RunningService;
  let sql: pg.Pool;
  before(async () => {
    const { url } = await freshDatabase('queues');
    one = await startService({
      env: { DATABASE_URL: url, PARSER_URL: 'http://127.0.0.1:1/parse', MAX_PROCESSING: '3' },
    });
    sql = new pg.Pool({ connectionString: url, max: 2 });
  });
  after(async () => {
    await sql?.end();
    await one?.stop();
  });

  test('every setting can be put, and is answered as it was put but for the secrets', async () => {
    const queue = newName();
    const created = await put(one, queue, EVERYTHING);
    assert.deepEqual([created.status, created.headers.get('location')], [201, `/v1/queues/${queue}`]);
    const { effective, notes, ...set } = created.body;
    assert.deepEqual(set, { queue, ...SHOWN, secret_count: 2 });
    const [first, second] = SHOWN.targets;
    const targets = [first, { ...second, batch: 1, push_timeout_ms: 10_000 }];
    assert.deepEqual(effective, { ...SHOWN, targets });
    assert.deepEqual(await read(one, queue), created.body);
    assert.match(notes.join('\n'), /lenient.*paused.*limit 0/s);
    const { body } = await call(one, 'GET', '/v1/queues');
    assert.deepEqual(
      body.queues.find((each: { queue: string }) => each.queue === queue),
      created.body,
    );
    assert.doesNotMatch(JSON.stringify(body), /whsec/);
    assert.doesNotMatch(one.lines.join('\n'), /whsec/);
  });

  test('of a queue with no settings every one is null, and the environment is in force', async () => {
    const queue = newName();
    const { status, body } = await put(one, queue, {});
    assert.equal(status, 201);
    const { effective, notes, ...set } = body;
    assert.deepEqual(set, { queue, ...NOTHING, secret_count: 0 });
    assert.deepEqual(effective, {
      targets: [],
      limit: 3,
      priority_weights: { '1': 80, '2': 60, '3': 40, '4': 30, '5': 20 },
      pending_expired_ms: 86_400_000,
      processing_expired_ms: 1_800_000,
      processing_max_ms: 86_400_000,
      success_expired_ms: 86_400_000,
      cleanup_after_ms: { failed: 604_800_000, stopped: 604_800_000, timed_out: 604_800_000 },
      version_floor_ms: 7_776_000_000,
      max_retries: 3,
      retry: { strategy: 'exponential', base_ms: 1_000, max_ms: 300_000, jitter: 0.2, demote: 1 },
      retry_share: 0.5,
      version_policy: 'keep',
      fence: 'strict',
      callback_auth: 'attempt',
      payload_max_bytes: 262_144,
      result_max_bytes: 8_388_608,
      paused: false,
    });
    assert.deepEqual(notes, ['no targets: tasks are accepted and held']);
  });

  test('PARSER_URL is a target of queue default alone', async () => {
    const { targets, effective, notes } = await read(one, 'default');
    assert.equal(targets, null);
    assert.deepEqual(effective.targets, [
      { url: 'http://127.0.0.1:1/parse', mode: 'async', batch: 1, push_timeout_ms: 10_000 },
    ]);
    assert.deepEqual(notes, []);
  });

  test('PUT replaces all settings: what it does not name, or names null, is inherited again', async () => {
    const queue = newName();
    await put(one, queue, EVERYTHING);
    const all = await put(one, queue, { ...Object.fromEntries(Object.keys(EVERYTHING).map((name) => [name, null])) });
    assert.equal(all.status, 200);
    const { effective: _effective, notes: _notes, ...set } = all.body;
    assert.deepEqual(set, { queue, ...NOTHING, secret_count: 0 });
    await put(one, queue, EVERYTHING);
    const { body } = await put(one, queue, { queue, limit: 5, retry: { jitter: 1 } });
    assert.deepEqual(
      [body.limit, body.retry.jitter, body.retry.strategy, body.targets, body.paused, body.secret_count],
      [5, 1, null, null, null, 0],
    );
  });

  for (const member of Object.keys(SHOWN) as (keyof typeof SHOWN)[])
    test(`PATCH sets ${member} alone, and null makes it inherited again`, async () => {
      const queue = newName();
      const before = (await put(one, queue, { callback_auth: 'signature', secrets: [SECRET] })).body;
      const set = await patch(one, queue, { [member]: SHOWN[member] });
      assert.equal(set.status, 200);
      const expected = { ...before, [member]: SHOWN[member] };
      assert.deepEqual({ ...set.body, effective: 0, notes: 0 }, { ...expected, effective: 0, notes: 0 });
      const reset = await patch(one, queue, { [member]: null });
      assert.deepEqual(reset.body[member], NOTHING[member]);
      const inherited = (await put(one, newName(), {})).body.effective;
      assert.deepEqual(reset.body.effective[member], inherited[member]);
    });

  test('PATCH merges retry and cleanup_after_ms by member, and replaces targets and weights as a whole', async () => {
    const queue = newName();
    await put(one, queue, EVERYTHING);
    const { body } = await patch(one, queue, {
      retry: { base_ms: 999, jitter: null },
      cleanup_after_ms: { failed: null },
      priority_weights: { '2': 1 },
      targets: [{ url: 'http://new.test' }],
    });
    assert.deepEqual(body.retry, { ...SHOWN.retry, base_ms: 999, jitter: null });
    assert.equal(body.effective.retry.jitter, 0.2);
    assert.deepEqual(body.cleanup_after_ms, { ...SHOWN.cleanup_after_ms, failed: null });
    assert.deepEqual(body.priority_weights, { '1': 0, '2': 1, '3': 0, '4': 0, '5': 0 });
    assert.deepEqual(body.targets, [{ url: 'http://new.test', mode: 'async' }]);
    const nothing = await patch(one, queue, {});
    assert.deepEqual([nothing.status, nothing.body], [200, body]);
    assert.deepEqual((await patch(one, queue, { retry: null })).body.retry, NOTHING.retry);
  });

  test('secrets are replaced, counted, and never answered', async () => {
    const queue = newName();
    assert.equal((await put(one, queue, { secrets: [OLD_SECRET] })).body.secret_count, 1);
    assert.equal((await patch(one, queue, { secrets: [SECRET, OLD_SECRET] })).body.secret_count, 2);
    const { rows } = await sql.query('SELECT secrets FROM queues WHERE queue = $1', [queue]);
    assert.deepEqual(rows[0].secrets, [SECRET, OLD_SECRET]);
    assert.equal((await patch(one, queue, { secrets: null })).body.secret_count, 0);
  });

  test('patches of different settings at once are all kept', async () => {
    const queue = newName();
    await put(one, queue, {});
    const { queue: _queue, targets: _targets, fence: _fence, callback_auth: _auth, ...plain } = { queue, ...SHOWN };
    const replies = await Promise.all(
      Object.entries(plain).map(([member, value]) => patch(one, queue, { [member]: value })),
    );
    assert.ok(replies.every(({ status }) => status === 200));
    const now = await read(one, queue);
    for (const [member, value] of Object.entries(plain)) assert.deepEqual(now[member], value, member);
  });

  test('of many PUTs of one new queue exactly one creates it', async () => {
    const queue = newName();
    const replies = await Promise.all(Array.from({ length: 20 }, (_each, limit) => put(one, queue, { limit })));
    assert.deepEqual(replies.map(({ status }) => status).toSorted(), [...Array(19).fill(200), 201]);
  });

  test('a new queue takes tasks as soon as its PUT is answered', async () => {
    for (let round = 0; round < 20; round++) {
      const queue = newName();
      await put(one, queue, {});
      assert.equal((await submit(one, { queue, task_id: 1 })).status, 202);
    }
  });

  test('a queue that does not exist is 404, and PATCH does not create it', async () => {
    for (const reply of [
      await call(one, 'GET', '/v1/queues/nowhere'),
      await patch(one, 'nowhere', { limit: 1 }),
      await call(one, 'POST', '/v1/queues/nowhere/redrive', {}),
    ])
      assert.deepEqual([reply.status, reply.body.code, reply.body.pointer], [404, 'unknown_queue', 'queue']);
    assert.equal((await call(one, 'GET', '/v1/queues/nowhere')).status, 404);
  });

  const target = (more: object) => ({ targets: [{ url: 'http://a.test', ...more }] });
  const many = Array.from({ length: 65 }, (_each, n) => ({ url: `http://a.test/${n}` }));
  const BAD: [body: unknown, code: string, pointer: string][] = [
    ['{', 'malformed_json', ''],
    ['', 'malformed_json', ''],
    [[], 'invalid_field', ''],
    ['null', 'invalid_field', ''],
    [{ nonsense: 1 }, 'unknown_field', '/nonsense'],
    [{ secret_count: 1 }, 'unknown_field', '/secret_count'],
    [{ queue: 'another' }, 'invalid_field', '/queue'],
    [{ limit: -1 }, 'invalid_field', '/limit'],
    [{ limit: 100_001 }, 'invalid_field', '/limit'],
    [{ limit: 1.5 }, 'invalid_field', '/limit'],
    [{ limit: '5' }, 'invalid_field', '/limit'],
    ['{"limit": 1e400}', 'invalid_field', '/limit'],
    [{ priority_weights: {} }, 'invalid_field', '/priority_weights'],
    [{ priority_weights: { '1': 0, '5': 0 } }, 'invalid_field', '/priority_weights'],
    [{ priority_weights: { '1': -1, '2': 5 } }, 'invalid_field', '/priority_weights/1'],
    [{ priority_weights: { '1': 1_000_001 } }, 'invalid_field', '/priority_weights/1'],
    [{ priority_weights: { '6': 1 } }, 'unknown_field', '/priority_weights/6'],
    [{ priority_weights: [1, 2, 3, 4, 5] }, 'invalid_field', '/priority_weights'],
    [{ targets: {} }, 'invalid_field', '/targets'],
    [{ targets: [{}] }, 'missing_field', '/targets/0/url'],
    [{ targets: ['http://a.test'] }, 'invalid_field', '/targets/0'],
    [{ targets: [{ url: 'ftp://a.test' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: '/parse' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: 'http://' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: 'http://a.test/\u0000' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: 'http://a.test/\ud800' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: 'http://user:word@a.test' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: 'http://user@a.test' }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: `http://a.test/${'x'.repeat(2_000)}` }] }, 'invalid_field', '/targets/0/url'],
    [{ targets: [{ url: 'http://a.test' }, { url: 'HTTP://A.test:80/' }] }, 'invalid_field', '/targets/1/url'],
    [{ targets: many }, 'invalid_field', '/targets'],
    [target({ mode: 'both' }), 'invalid_field', '/targets/0/mode'],
    [target({ batch: 0 }), 'invalid_field', '/targets/0/batch'],
    [target({ batch: 1_001 }), 'invalid_field', '/targets/0/batch'],
    [target({ push_timeout_ms: 99 }), 'invalid_field', '/targets/0/push_timeout_ms'],
    [target({ push_timeout_ms: 2_147_483_648 }), 'invalid_field', '/targets/0/push_timeout_ms'],
    [target({ weight: 1 }), 'unknown_field', '/targets/0/weight'],
    [{ pending_expired_ms: 99 }, 'invalid_field', '/pending_expired_ms'],
    [{ processing_expired_ms: 31_536_000_001 }, 'invalid_field', '/processing_expired_ms'],
    [{ processing_max_ms: 0 }, 'invalid_field', '/processing_max_ms'],
    [{ success_expired_ms: 'week' }, 'invalid_field', '/success_expired_ms'],
    [{ cleanup_after_ms: 100 }, 'invalid_field', '/cleanup_after_ms'],
    [{ cleanup_after_ms: { failed: 99 } }, 'invalid_field', '/cleanup_after_ms/failed'],
    [{ cleanup_after_ms: { success: 100 } }, 'unknown_field', '/cleanup_after_ms/success'],
    [{ version_floor_ms: -1 }, 'invalid_field', '/version_floor_ms'],
    [{ max_retries: 1_001 }, 'invalid_field', '/max_retries'],
    [{ retry: { strategy: 'soon' } }, 'invalid_field', '/retry/strategy'],
    [{ retry: { base_ms: 99 } }, 'invalid_field', '/retry/base_ms'],
    [{ retry: { max_ms: 99 } }, 'invalid_field', '/retry/max_ms'],
    [{ retry: { jitter: 1.1 } }, 'invalid_field', '/retry/jitter'],
    [{ retry: { demote: 5 } }, 'invalid_field', '/retry/demote'],
    [{ retry: { share: 0.5 } }, 'unknown_field', '/retry/share'],
    [{ retry_share: -0.1 }, 'invalid_field', '/retry_share'],
    [{ retry_share: 1.1 }, 'invalid_field', '/retry_share'],
    [{ version_policy: 'drop' }, 'invalid_field', '/version_policy'],
    [{ fence: 'none' }, 'invalid_field', '/fence'],
    [{ fence: 'lenient' }, 'invalid_field', '/fence'],
    [{ callback_auth: 'password' }, 'invalid_field', '/callback_auth'],
    [{ callback_auth: 'signature' }, 'invalid_field', '/callback_auth'],
    [{ callback_auth: 'signature', secrets: [] }, 'invalid_field', '/secrets'],
    [{ payload_max_bytes: 0 }, 'invalid_field', '/payload_max_bytes'],
    [{ payload_max_bytes: 67_108_865 }, 'invalid_field', '/payload_max_bytes'],
    [{ result_max_bytes: 268_435_457 }, 'invalid_field', '/result_max_bytes'],
    [{ secrets: SECRET }, 'invalid_field', '/secrets'],
    [{ secrets: [SECRET, SECRET, SECRET] }, 'invalid_field', '/secrets'],
    [{ secrets: [SECRET.slice(6)] }, 'invalid_field', '/secrets/0'],
    [{ secrets: [`whsec_${Buffer.alloc(23).toString('base64')}`] }, 'invalid_field', '/secrets/0'],
    [{ secrets: [`whsec_${Buffer.alloc(65).toString('base64')}`] }, 'invalid_field', '/secrets/0'],
    [{ secrets: [`${SECRET}!`] }, 'invalid_field', '/secrets/0'],
    [{ paused: 1 }, 'invalid_field', '/paused'],
    [`{"targets": [${' '.repeat(262_144)}]}`, 'body_too_large', ''],
  ];
  const rowOf = async (queue: string) =>
    (await sql.query('SELECT own, paused FROM queues WHERE queue = $1', [queue])).rows[0];

  for (const [body, code, pointer] of BAD) {
    const shown = asText(body).replace(/(.{60}).+/s, '$1...');
    test(`refused, and nothing stored: ${shown}`, async () => {
      const queue = newName();
      const refused = (reply: Reply) => {
        const { status, body: problem } = reply;
        assert.deepEqual([problem.code, problem.pointer], [code, pointer], JSON.stringify(problem));
        assert.equal(status, code === 'body_too_large' ? 413 : 400);
        assert.doesNotMatch(JSON.stringify(problem), /whsec_[A-Za-z0-9]/, 'no secret in a problem');
      };
      refused(await put(one, queue, body));
      assert.equal((await call(one, 'GET', `/v1/queues/${queue}`)).status, 404);
      await put(one, queue, { paused: true });
      const before = await rowOf(queue);
      refused(await patch(one, queue, body));
      refused(await put(one, queue, body));
      assert.deepEqual(await rowOf(queue), before);
    });
  }

  test('whatever is sent as settings, the answer is the queue or a problem of the caller', async () => {
    const queue = newName();
    const anything = fc.anything({
      key: fc.constantFrom('failed', 'jitter', 'url', '1', '5', '__proto__', 'x'),
      values: [fc.double(), fc.integer(), fc.boolean(), fc.constant(null), fc.string({ unit: 'binary' })],
    });
    const settings = fc.dictionary(
      fc.constantFrom(...Object.keys(EVERYTHING)),
      fc.oneof(anything, fc.double({ min: 0, max: 1 })),
    );
    await fc.assert(
      fc.asyncProperty(settings, fc.boolean(), async (body, replace) => {
        const { status } = await (replace ? put : patch)(one, queue, JSON.stringify(body));
        assert.ok(status < 500, `${status}`);
      }),
      { numRuns: 400 },
    );
    assert.equal((await put(one, queue, EVERYTHING)).body.secret_count, 2);
  });

  test('a name that is none is refused on every route', async () => {
    for (const [method, path] of [
      ['GET', ''],
      ['PUT', ''],
      ['PATCH', ''],
      ['POST', '/redrive'],
    ] as const)
      for (const name of ['Upper', 'a%20b', 'a.b', 'x'.repeat(65), '%00', '%C3%A9']) {
        const reply = await call(one, method, `/v1/queues/${name}${path}`, method === 'GET' ? undefined : {});
        assert.deepEqual([reply.status, reply.body.code, reply.body.pointer], [400, 'invalid_field', 'queue'], name);
      }
  });

  test('settings that do not go together are refused whichever request comes second', async () => {
    const queue = newName();
    await put(one, queue, { fence: 'lenient', callback_auth: 'signature', secrets: [SECRET] });
    const refused = async (body: unknown, pointer: string) => {
      const reply = await patch(one, queue, body);
      assert.deepEqual([reply.status, reply.body.code, reply.body.pointer], [400, 'invalid_field', pointer]);
    };
    await refused({ callback_auth: 'attempt' }, '/callback_auth');
    await refused({ callback_auth: null }, '/callback_auth');
    await refused({ secrets: [] }, '/secrets');
    await refused({ secrets: null, limit: 5 }, '/secrets');
    assert.equal((await read(one, queue)).limit, null);
    assert.equal((await patch(one, queue, { fence: 'strict', callback_auth: null, secrets: null })).status, 200);
    await refused({ fence: 'lenient' }, '/fence');
  });

  test('of two requests at once that do not go together one is refused', async () => {
    for (let round = 0; round < 10; round++) {
      const queue = newName();
      await put(one, queue, { secrets: [SECRET] });
      const replies = await Promise.all([
        patch(one, queue, { callback_auth: 'signature' }),
        patch(one, queue, { secrets: null }),
      ]);
      assert.deepEqual(replies.map(({ status }) => status).toSorted(), [200, 400]);
    }
  });

  test('a queue takes payloads as large as it says, whatever the environment says', async () => {
    const [large, small] = [newName(), newName()];
    await put(one, large, { payload_max_bytes: 2_000_000 });
    await put(one, small, { payload_max_bytes: 100 });
    const payload = (bytes: number) => 'x'.repeat(bytes - 2);
    const statusOf = async (queue: string, bytes: number) =>
      (await submit(one, { queue, task_id: 1, payload: payload(bytes) })).status;
    assert.deepEqual([await statusOf(large, 2_000_000), await statusOf(large, 2_000_001)], [202, 413]);
    assert.deepEqual([await statusOf(small, 100), await statusOf(small, 101)], [202, 413]);
    assert.deepEqual([await statusOf('default', 262_144), await statusOf('default', 262_145)], [202, 413]);
  });
});

describe('several instances', () => {
  const changedIn = (instance: RunningService, name: string) =>
    instance.waitForLine(
      (event: Event) => event.event === 'queue_defaults_changed' && name in (event.changed as object),
    );

  test('of the environments the last started wins, what the API set stays, and each instance says what changed', async (t) => {
    const world = await install(t, { limiter: 'postgres', env: { ROLES: 'api', PUBLIC_URL: 'http://127.0.0.1:1' } });
    const one = await world.start({ MAX_PROCESSING: '3', RETRY_BASE_MS: '700' });
    await patch(one, 'default', { limit: 7 });
    await put(one, 'other', { max_retries: 9 });
    const two = await world.start({ MAX_PROCESSING: '5', MAX_RETRIES: '4', PARSER_URL: 'http://elsewhere.test' });
    for (const instance of [one, two]) {
      const { changed } = await changedIn(instance, 'concurrency_limit');
      assert.deepEqual(Object.keys(changed as object).toSorted(), [
        'concurrency_limit',
        'max_retries',
        'retry_base_ms',
        'targets',
      ]);
      assert.deepEqual((changed as Record<string, unknown>).retry_base_ms, [700, 1_000]);
    }
    const [first, other] = [await read(one, 'default'), await read(one, 'other')];
    assert.deepEqual([first.limit, first.effective.limit, first.effective.max_retries], [7, 7, 4]);
    assert.equal(first.effective.targets[0].url, 'http://elsewhere.test');
    assert.deepEqual([other.effective.limit, other.effective.max_retries, other.effective.targets], [5, 9, []]);
    assert.equal((await patch(two, 'default', { limit: null })).body.effective.limit, 5);
  });

  test('a setting changed on one instance is in force on another within 2 s', async (t) => {
    const world = await install(t, { limiter: 'postgres', env: { ROLES: 'api', PUBLIC_URL: 'http://127.0.0.1:1' } });
    const [one, two] = [await world.start(), await world.start()];
    await put(one, 'lane', { payload_max_bytes: 50 });
    await eventually(async () => (await submit(two, { queue: 'lane', task_id: 1 })).status === 202);
    const statusOf = async (nth: number) =>
      (await submit(two, { queue: 'lane', task_id: 2 + nth, payload: 'x'.repeat(50 + 10 * nth) })).status;
    assert.equal(await statusOf(0), 413);
    await inForceSoon(
      (nth) => patch(one, 'lane', { payload_max_bytes: 60 + 10 * nth }),
      async (nth) => (await statusOf(nth)) === 202,
    );
    await two.waitForLine((event) => event.event === 'queue_changed' && event.queue === 'lane');
  });
});

for (const limiter of LIMITERS)
  describe(`a pusher, the limiter in ${limiter}`, () => {
    /** An instance that only answers HTTP, and one that pushes. */
    async function apart(t: TestContext, env: Record<string, string> = {}) {
      const world = await install(t, { limiter, env });
      const api = await world.start({ ROLES: 'api' });
      const pusher = await world.start({ ROLES: 'pusher,watcher', PUBLIC_URL: api.url });
      const hears = (member: string, value: unknown) =>
        pusher.waitForLine((event) => event.event === 'queue_changed' && event[member] === value);
      return { world, api, parser: world.parser, hears };
    }
    const tasks = (count: number, more: object = {}, from = 1) =>
      Array.from({ length: count }, (_each, n) => ({ task_id: from + n, ...more }));

    test('follows a limit changed elsewhere within 2 s: up, to 0, and up again', async (t) => {
      const { world, api, parser, hears } = await apart(t, { MAX_PROCESSING: '2' });
      await submitMany(api, tasks(20));
      await eventually(async () => (await world.countTasks()).Processing === 2);
      let limit = 4;
      await inForceSoon(
        () => patch(api, 'default', { limit: ++limit }),
        async () => (await world.countTasks()).Processing === limit,
      );
      await patch(api, 'default', { limit: 0 });
      await hears('concurrency_limit', 0);
      const pushed = await parser.waitForPushes(limit);
      await Promise.all(pushed.map((push) => parser.callback(push)));
      await eventually(async () => (await world.countTasks()).Success === limit);
      await patch(api, 'default', { limit: 1 });
      await parser.waitForPushes(limit + 1);
      assert.equal((await world.countTasks()).Processing, 1);
    });

    test('pushes nothing of a queue paused elsewhere, and goes on when it is no longer paused', async (t) => {
      const { api, parser, hears } = await apart(t);
      await put(api, 'free', { targets: [{ url: parser.url }] });
      await patch(api, 'default', { paused: true });
      await hears('paused', true);
      await submitMany(api, tasks(5));
      await submit(api, { queue: 'free', task_id: 1 });
      const pushed = await parser.waitForPushes(1);
      assert.deepEqual(
        pushed.map(({ body }) => body.queue),
        ['free'],
      );
      await patch(api, 'default', { paused: false });
      await parser.waitForPushes(6);
    });

    test('follows weights changed elsewhere: a level of weight 0 comes when all others are empty', async (t) => {
      const { api, parser, hears } = await apart(t, { MAX_PROCESSING: '1' });
      await patch(api, 'default', { paused: true });
      await hears('paused', true);
      await submitMany(api, [...tasks(10, { priority: 1 }), ...tasks(10, { priority: 5 }, 101)]);
      parser.autoCallback();
      await patch(api, 'default', { paused: null, priority_weights: { '5': 1 } });
      const pushed = await parser.waitForPushes(20);
      assert.deepEqual(
        pushed.map(({ body }) => body.priority),
        [...Array(10).fill(5), ...Array(10).fill(1)],
      );
    });

    test('pushes to a target named elsewhere within 2 s', async (t) => {
      const { api, parser } = await apart(t, { MAX_PROCESSING: '1000' });
      const others = await Promise.all(Array.from({ length: TRIES }, () => startParser()));
      for (const other of others) t.after(() => other.stop());
      await submit(api, { task_id: 1 });
      await parser.waitForPushes(1);
      let taskId = 1;
      await inForceSoon(
        (nth) => patch(api, 'default', { targets: [{ url: others[nth]!.url }] }),
        async (nth) => {
          await submit(api, { task_id: ++taskId });
          return others[nth]!.pushes.length > 0;
        },
      );
    });
  });
