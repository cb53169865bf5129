/** The log of a real service: a line for each change of a task's state, and nothing in any line that is not its business. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { accept, finish, hang, type Push, reply, reset } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { ended, type Installation, install, post, setQueue, submit } from '../support/installation.ts';
import { type Event, type RunningService, startService } from '../support/process.ts';

type Line = Event & { event: string; level: string };

const QUICK = { RETRY_BASE_MS: '100', CLEANUP_CRON: '* * * * * *' };
const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const TRACEPARENT = `00-${TRACE_ID}-b7ad6b7169203331-00`;
const ATTEMPT_FIELDS = ['attempt', 'attempt_id', 'duration_ms'];
const TASK_FIELDS = ['queue', 'task_id', 'task_version', 'trace_id'];

const linesOf = (service: RunningService): Line[] => service.lines.map((line) => JSON.parse(line) as Line);
const ofTask = (service: RunningService, taskId: string | number): Line[] =>
  linesOf(service).filter(({ task_id }) => task_id === String(taskId));
const pushOf = (place: Installation, taskId: string | number, attempt = 1): Promise<Push> =>
  eventually(
    () => place.parser.pushes.find(({ body }) => body.task_id === String(taskId) && body.attempt === attempt) ?? null,
  ) as Promise<Push>;

async function traced(service: RunningService, path: string, body: unknown, headers = {}): Promise<Response> {
  const init = { 'content-type': 'application/json', traceparent: TRACEPARENT, ...headers };
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const answer = await fetch(`${service.url}${path}`, { method: 'POST', headers: init, body: text });
  await answer.text();
  return answer;
}

/** Event and what tells it from others of its kind, in order. */
const told = (lines: Line[]): unknown[][] =>
  lines.map(({ event, level, outcome, verdict, status }) =>
    [event, level, outcome ?? verdict, status].filter((one) => one !== undefined),
  );

test('each change of a task’s state is a line at debug that names the task, its attempt and its trace', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { ...QUICK, LOG_LEVEL: 'debug' } });
  const service = await place.start();
  let turn = 0;
  place.parser.answerWith((...asked) => (++turn === 1 ? reply(500) : accept)(...asked));
  await traced(service, '/v1/tasks', { task_id: 1, task_version: 2, payload: 1, run_at: Date.now() + 60_000 });
  await traced(service, '/v1/tasks', { task_id: 1, task_version: 2, payload: 2, run_at: Date.now() });
  await place.parser.callback(await pushOf(place, 1, 2), { status_code: 4 });
  await place.parser.callback(await pushOf(place, 1, 3));
  await ended(service, 1, 2);
  const lines = await eventually(() => {
    const found = ofTask(service, 1);
    return found.at(-1)?.status === 'Success' && found;
  });
  const ATTEMPT = [['task_claimed', 'debug']];
  assert.deepEqual(told(lines as Line[]), [
    ['task_submitted', 'debug', 'created'],
    ['task_submitted', 'debug', 'refreshed'],
    ...ATTEMPT,
    ['push_answered', 'warn', 'try_failed'],
    ['attempt_settled', 'debug', 'try_failed', 'Pending'],
    ...ATTEMPT,
    ['push_answered', 'debug', 'accepted'],
    ['attempt_settled', 'debug', 'parser_failed', 'Pending'],
    ...ATTEMPT,
    ['push_answered', 'debug', 'accepted'],
    ['attempt_settled', 'debug', 'success', 'Success'],
  ]);
  for (const line of lines as Line[]) {
    const { event, trace_id, task_version } = line;
    assert.deepEqual([trace_id, task_version, line.queue], [TRACE_ID, '2', 'default'], event);
    for (const field of [...TASK_FIELDS, ...(event === 'task_submitted' ? ['duration_ms'] : ATTEMPT_FIELDS)])
      if (event !== 'task_claimed' || field !== 'duration_ms')
        assert.ok(line[field] !== undefined, `${event} ${field}`);
    if (line.attempt_id) assert.equal(String(line.attempt_id).length, 8);
  }
  const attempts = (lines as Line[]).filter(({ event }) => event === 'attempt_settled');
  assert.deepEqual(
    attempts.map(({ attempt, attempt_id }) => [attempt, attempt_id]),
    place.parser.pushes.map(({ body }) => [body.attempt, body.attempt_id.slice(0, 8)]),
  );
});

test('what ends a task otherwise is a line too, and a failure is one at warn', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { ...QUICK, LOG_LEVEL: 'debug' } });
  const service = await place.start();
  const { url } = place.parser;
  await setQueue(service, 'once', { targets: [{ url }], max_retries: 0 });
  await setQueue(service, 'held', { targets: [{ url }], pending_expired_ms: 100, paused: true, max_retries: 0 });
  const once = { queue: 'once', task_version: 1, payload: null };
  place.parser.answerWith((...asked) =>
    ([accept, reset, reply(422), reply(429)][Number(asked[0][0]!.body.task_id)] ?? accept)(...asked),
  );
  const far = Date.now() + 60_000;
  for (const task_id of [0, 1, 2]) await traced(service, '/v1/tasks', { ...once, task_id });
  await traced(service, '/v1/tasks', { ...once, task_id: 3, queue: 'default' });
  await traced(service, '/v1/tasks', { ...once, task_id: 4, queue: 'held' });
  await traced(service, '/v1/tasks', { ...once, task_id: 5, queue: 'default', run_at: far });
  await post(service, '/v1/tasks/5/versions/1/cancel');
  await traced(service, '/v1/tasks', { ...once, task_id: 6, queue: 'default' });
  const push = await pushOf(place, 6);
  await post(service, '/v1/tasks/6/versions/1/cancel');
  await place.parser.callback(push);
  await service.waitForLine(({ event, outcome }) => event === 'push_answered' && outcome === 'in_doubt');
  const isNoted = `SELECT 1 FROM attempts WHERE queue = 'once' AND accepted_at IS NOT NULL`;
  await eventually(async () => assert.equal((await place.sql.query(isNoted)).rowCount, 1));
  await place.sql.query(`UPDATE attempts SET deadline = docsched_now() - 1 WHERE queue = 'once' AND closed_at IS NULL`);
  const expected: unknown[][][] = [
    [
      ['task_claimed', 'debug'],
      ['push_answered', 'debug', 'accepted'],
      ['attempt_settled', 'warn', 'processing_expired', 'Failed'],
    ],
    [
      ['task_claimed', 'debug'],
      ['push_answered', 'warn', 'in_doubt'],
      ['attempt_settled', 'warn', 'in_doubt_expired', 'Failed'],
    ],
    [
      ['task_claimed', 'debug'],
      ['push_answered', 'warn', 'refused'],
      ['attempt_settled', 'debug', 'refused', 'Failed'],
    ],
    [
      ['task_claimed', 'debug'],
      ['push_answered', 'debug', 'busy'],
      ['attempt_settled', 'debug', 'busy', 'Pending'],
    ],
    [['task_expired', 'debug']],
    [['task_cancelled', 'debug']],
    [
      ['task_claimed', 'debug'],
      ['push_answered', 'debug', 'accepted'],
      ['task_cancelled', 'debug'],
      ['attempt_settled', 'debug', 'success'],
    ],
  ];
  for (const [taskId, lines] of expected.entries())
    await eventually(() => {
      const found = told(ofTask(service, taskId)).slice(1, 1 + lines.length);
      assert.deepEqual(found, lines, `task ${taskId}`);
    });
  const refused = ofTask(service, 2).find(({ outcome }) => outcome === 'refused')!;
  assert.deepEqual([refused.http_status, refused.trace_id], [422, TRACE_ID]);
  assert.equal(linesOf(service).find(({ event }) => event === 'tasks_expired')!.count, 1);
  place.parser.answerWith(finish());
  await traced(service, '/v1/tasks', { ...once, task_id: 7, queue: 'default' });
  await ended(service, 7);
  await setQueue(service, 'default', {
    targets: [{ url }],
    success_expired_ms: 100,
    cleanup_after_ms: { stopped: 100 },
  });
  for (const name of ['retain', 'clean'])
    await service.waitForLine(
      ({ event, job, changed }) => event === 'watcher_job_done' && job === name && Number(changed) > 0,
    );
  await post(service, '/v1/tasks/2/versions/1/retry?queue=once');
  await service.waitForLine(
    ({ event, task_id, trace_id }) => event === 'task_retried' && task_id === '2' && trace_id === TRACE_ID,
  );
  await post(service, '/v1/queues/once/redrive', { rate_per_s: 100 });
  const redriven = await service.waitForLine(({ event }) => event === 'redriven');
  assert.ok(Number(redriven.redriven) >= 1 && redriven.duration_ms !== undefined);
});

test('at info nothing is said of a task that is well', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const service = await place.start();
  place.parser.autoCallback();
  await submit(service, { task_id: 1 });
  await ended(service, 1);
  await service.stop();
  assert.deepEqual(ofTask(service, 1), []);
});

/** Words that stand where they must not be logged from. */
const PLANTED = {
  payload: 'planted-in-payload',
  result: 'planted-in-result',
  words: 'planted-in-status-msg',
  answer: 'planted-in-an-answer',
  progress: 'planted-in-progress',
  bearer: 'planted-in-authorization',
  malformed: 'planted-in-malformed-json',
  redisPassword: 'planted-as-redis-password',
  databasePassword: 'planted-as-database-password',
  query: 'planted-in-a-targets-query',
  secret: 'cGxhbnRlZC1hcy1hLXNlY3JldC1vZi1hLXF1ZXVl',
};

test('no line holds payloads, results, words of parsers, secrets, or a whole attempt id', async (t) => {
  const place = await install(t, { limiter: 'redis', env: { ...QUICK, LOG_LEVEL: 'trace', PG_POOL_MAX: '3' } });
  const redisUrl = place.redis.url.replace('//', `//:${PLANTED.redisPassword}@`);
  const service = await place.start({ REDIS_URL: redisUrl });
  const started = [service];
  await driveEverything(place, service);
  await storesAway(t, place, service);
  started.push(...(await failToStart(place)));
  await service.stop();

  const attempts = place.parser.pushes.map(({ body }) => body.attempt_id);
  assert.ok(new Set(attempts).size > 8);
  const password = new URL(place.database.url).password;
  assert.ok(password.length > 10);
  const output = started.flatMap(({ lines }) => lines);
  assert.ok(output.length > 60, `${output.length} lines`);
  const secrets = [...Object.values(PLANTED), password, 'a'.repeat(24), ...attempts.map((id) => id.slice(0, 9))];
  for (const secret of secrets)
    assert.deepEqual(
      output.filter((line) => line.includes(secret)),
      [],
      secret,
    );
  for (const line of linesOf(service)) assert.ok(line.event && line.level && line.time, JSON.stringify(line));
  const events = new Set(linesOf(service).map(({ event }) => event));
  for (const event of [
    'request_failed',
    'target_broken',
    'push_answer_unclear',
    'redis_connection_error',
    'limiter_closed',
  ])
    assert.ok(events.has(event), `${event} was not provoked`);
});

/** Every way a task can go, and every way a request can be refused. */
async function driveEverything(place: Installation, service: RunningService): Promise<void> {
  const { parser } = place;
  const payload = { text: PLANTED.payload };
  const echo = (push: Push) => `${PLANTED.answer} ${push.body.attempt_id} ${PLANTED.payload}`;
  const answers = [
    accept,
    finish(() => ({ result: PLANTED.result, status_msg: PLANTED.words })),
    finish((push) => ({ status_code: 3, status_msg: echo(push), result: PLANTED.result })),
    ...[400, 422, 500, 429, 401].map(
      (status): typeof accept =>
        (pushes, req, res) =>
          reply(status, {}, { detail: echo(pushes[0]!) })(pushes, req, res),
    ),
    reset,
    hang,
    reply(200, {}, { hello: PLANTED.answer }),
  ];
  parser.answerWith((...asked) => (answers[Number(asked[0][0]!.body.task_id) - 100] ?? accept)(...asked));
  await Promise.all(
    answers.map(async (answer, index) => {
      const queue = `plain-${index}`;
      const url = `${parser.url}/${index}?token=${PLANTED.query}`;
      const target = answer === hang ? { url, push_timeout_ms: 200 } : { url };
      await setQueue(service, queue, { targets: [target], max_retries: 0 });
      await traced(service, '/v1/tasks', { task_id: 100 + index, task_version: 1, payload, queue });
      const push = await pushOf(place, 100 + index);
      await parser.progress(push, { percent: 1, message: `${PLANTED.progress} ${push.body.attempt_id}` });
      const report = { status_code: index % 2, status_msg: echo(push), result: PLANTED.result };
      for (let i = 0; i < 2; i++) await parser.callback(push, report);
      await parser.post(push.body.callback_url, `{"status_code":"${PLANTED.malformed}`);
    }),
  );
  await service.waitForLine(({ event }) => event === 'target_broken');
  parser.answerWith(accept);
  await setQueue(service, 'signed', {
    targets: [{ url: parser.url }],
    secrets: [`whsec_${PLANTED.secret}`],
    callback_auth: 'signature',
    payload_max_bytes: 100,
  });
  await traced(service, '/v1/tasks', { task_id: 200, task_version: 1, payload, queue: 'signed' });
  const push = await pushOf(place, 200);
  const wrong = { 'webhook-id': 'x', 'webhook-timestamp': '1', 'webhook-signature': `v1,${PLANTED.secret}` };
  assert.equal((await parser.callback(push, { result: PLANTED.result }, wrong)).status, 401);
  const authorization = { authorization: `Bearer ${PLANTED.bearer}` };
  const large = { task_id: 201, task_version: 1, payload: PLANTED.payload.repeat(10), queue: 'signed' };
  assert.equal((await traced(service, '/v1/tasks', large, authorization)).status, 413);
  assert.equal((await traced(service, '/v1/tasks', `{"x": ${PLANTED.malformed}`, authorization)).status, 400);
  assert.equal((await traced(service, '/v1/tasks', { task_id: PLANTED.malformed }, authorization)).status, 400);
  assert.equal((await traced(service, `/v1/callbacks/${'a'.repeat(32)}`, { status_code: 0 })).status, 404);
  await traced(service, '/v1/tasks/batch', { tasks: [large, { ...large, payload }, { nonsense: PLANTED.payload }] });
}

/** Requests while a store is away. */
async function storesAway(t: TestContext, place: Installation, service: RunningService): Promise<void> {
  const push = await pushOf(place, 100);
  await place.redis.kill();
  for (const away of ['limiter_closed', 'redis_connection_error'])
    await service.waitForLine(({ event }) => event === away);
  await place.redis.restart({ empty: true });
  await service.waitForLine(({ event }) => event === 'redis_connected');
  const admin = new pg.Client({ connectionString: place.database.url.replace(/[^/]*$/, 'postgres') });
  await admin.connect();
  t.after(() => admin.end());
  const name = place.database.name;
  await admin.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS false`);
  await admin.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name]);
  const task = { task_id: 300, task_version: 1, payload: { text: PLANTED.payload } };
  assert.ok((await traced(service, '/v1/tasks', task)).status >= 500);
  assert.ok((await place.parser.callback(push, { result: PLANTED.result })).status >= 500);
  await admin.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS true`);
  const failed = await service.waitForLine(
    ({ event, attempt_id }) => event === 'request_failed' && attempt_id !== undefined,
  );
  assert.equal(failed.attempt_id, push.body.attempt_id.slice(0, 8));
  await eventually(async () => assert.equal((await traced(service, '/v1/tasks', task)).status, 202));
}

/** With passwords that are wrong, and URLs that are none. */
async function failToStart(place: Installation): Promise<RunningService[]> {
  const url = new URL(place.database.url);
  url.password = PLANTED.databasePassword;
  const environments = [
    { DATABASE_URL: url.href },
    { DATABASE_URL: `postgres://docsched:${PLANTED.databasePassword}@`, MAX_PROCESSING: 'ten' },
    { DATABASE_URL: place.database.url, REDIS_URL: `http://:${PLANTED.redisPassword}@localhost:1` },
  ];
  const services = await Promise.all(environments.map((env) => startService({ env, ready: false })));
  for (const { exited } of services) assert.notEqual((await exited).code, 0);
  return services;
}
