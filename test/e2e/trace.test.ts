/**
 * Invariant 7, as a collector sees it: one trace a task, from its last accepted submit over every push to every settle,
 * also when the parser sends no header back.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { finish, type Push, reply, reset } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { ended, post, setQueue } from '../support/installation.ts';
import type { Span } from '../support/otlp.ts';
import { inTurn, newTrace, type Scene, startScene, traceIdOf } from '../support/otlp-scene.ts';

const INSERT = 'insert';
const PUSH = 'push';
const SETTLE = 'settle';

let scene: Scene;

before(async () => {
  scene = await startScene();
  const targets = [{ url: scene.place.parser.url }];
  await setQueue(scene.service, 'sync', { targets: [{ ...targets[0], mode: 'sync' }] });
  await setQueue(scene.service, 'once', { targets, max_retries: 0 });
  await setQueue(scene.service, 'held', { targets, pending_expired_ms: 100, paused: true });
});
after(() => scene.end());

const attributesOf = ({ attributes }: Span, ...names: string[]) => names.map((name) => attributes[name]);

test('a task that succeeds is an insert, a push and a settle, with the attributes of the conventions', async () => {
  const { taskId, traceId, parentId } = await scene.submitted({ task_version: 7, priority: 2 }, scene.callBack());
  const [insert, push, settle] = await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE]);
  assert.deepEqual(
    [insert!, push!, settle!].map(({ name, kind, parentSpanId, error }) => [name, kind, parentSpanId, error]),
    [
      ['insert default', 'PRODUCER', parentId, undefined],
      ['push default', 'PRODUCER', insert!.spanId, undefined],
      ['settle default', 'CONSUMER', insert!.spanId, undefined],
    ],
  );
  const common = {
    'messaging.system': 'docsched',
    'messaging.destination.name': 'default',
    'messaging.message.id': `${taskId}/7`,
    'docsched.task.id': taskId,
    'docsched.task.version': '7',
  };
  assert.deepEqual(insert!.attributes, {
    ...common,
    'messaging.operation.name': 'insert',
    'messaging.operation.type': 'send',
    'docsched.task.priority': 2,
    'docsched.insert.outcome': 'created',
  });
  const { 'docsched.task.waited_ms': waitedMs, 'docsched.task.age_ms': ageMs, ...pushed } = push!.attributes;
  assert.deepEqual(pushed, {
    ...common,
    'messaging.operation.name': 'push',
    'messaging.operation.type': 'send',
    'http.request.method': 'POST',
    'http.response.status_code': 202,
    'server.address': '127.0.0.1',
    'server.port': scene.place.parser.port,
    'docsched.task.priority': 2,
    'docsched.attempt.number': 1,
    'docsched.push.outcome': 'accepted',
  });
  assert.ok(Number(waitedMs) >= 0 && Number(waitedMs) < 5_000, `waited ${waitedMs}`);
  assert.equal(ageMs, waitedMs);
  const { 'docsched.attempt.open_ms': openMs, 'docsched.task.age_ms': endMs, ...settled } = settle!.attributes;
  assert.deepEqual(settled, {
    ...common,
    'messaging.operation.name': 'settle',
    'messaging.operation.type': 'process',
    'docsched.attempt.number': 1,
    'docsched.settle.verdict': 'success',
    'docsched.settle.applied': true,
    'docsched.task.status': 'Success',
    'docsched.task.retry_count': 0,
  });
  assert.deepEqual(
    [insert!, push!, settle!].map(({ events }) => events),
    [[], ['docsched.task.due', 'docsched.task.claimed'], ['docsched.task.claimed']],
  );
  assert.ok(Number(openMs) >= 20, `open for ${openMs} ms`);
  assert.ok(Number(endMs) >= Number(openMs));
  assert.ok(push!.endMs - push!.startMs < Number(openMs) + 1_000, 'no span is open while the parser works');
});

test('a settle hangs under the span the parser reports with, if that is of the task’s trace', async () => {
  const parserSpan = randomBytes(8).toString('hex');
  const own = (push: Push) => ({ traceparent: `00-${traceIdOf(push.headers.traceparent)}-${parserSpan}-00` });
  const { traceId } = await scene.submitted({}, scene.callBack({}, own));
  assert.equal((await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE]))[2]!.parentSpanId, parserSpan);
  const foreign = await scene.submitted(
    {},
    scene.callBack({}, () => ({ traceparent: newTrace().traceparent })),
  );
  const [insert, , settle] = await scene.collector.trace(foreign.traceId, [INSERT, PUSH, SETTLE]);
  assert.equal(settle!.parentSpanId, insert!.spanId);
});

test('a retry is told by its attempt number; what failed is an error once', async () => {
  const answer = inTurn(reply(500), scene.callBack({ status_code: 7 }), scene.callBack());
  const { taskId, traceId } = await scene.submitted({}, answer);
  const spans = await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE, PUSH, SETTLE, PUSH, SETTLE]);
  const names = ['docsched.attempt.number', 'docsched.settle.verdict', 'docsched.task.status', 'error.type'];
  assert.deepEqual(
    spans.slice(1).map((span) => [span.name, ...attributesOf(span, ...names), span.error]),
    [
      ['push default', 1, undefined, undefined, 'try_failed', 'the parser answered 500'],
      ['settle default', 1, 'try_failed', 'Pending', undefined, undefined],
      ['push default', 2, undefined, undefined, undefined, undefined],
      ['settle default', 2, 'parser_failed', 'Pending', 'parser_failed', 'the parser reported a failure'],
      ['push default', 3, undefined, undefined, undefined, undefined],
      ['settle default', 3, 'success', 'Success', undefined, undefined],
    ],
  );
  const told = scene.pushesOf(taskId).map(({ headers }) => traceIdOf(headers.traceparent));
  assert.deepEqual(told, [traceId, traceId, traceId]);
});

test('a refusal is an error of the push, without the words of the parser', async () => {
  const { traceId } = await scene.submitted({}, reply(422, {}, { detail: 'the word is swordfish' }));
  const [, push, settle] = await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE]);
  assert.deepEqual([push!.error, push!.attributes['error.type']], ['the parser answered 422', 'refused']);
  assert.deepEqual([settle!.error, settle!.attributes['docsched.task.status']], [undefined, 'Failed']);
  assert.doesNotMatch(JSON.stringify(scene.collector.spans), /swordfish/);
});

test('what is in doubt and closed by the watcher ends in the task’s trace', async () => {
  const [doubtful, accepted] = [
    await scene.submitted({ queue: 'once' }, reset),
    await scene.submitted({ queue: 'once' }),
  ];
  for (const { traceId } of [doubtful, accepted]) await scene.collector.trace(traceId, [INSERT, PUSH]);
  const { sql } = scene.place;
  const isNoted = `SELECT 1 FROM attempts WHERE queue = 'once' AND accepted_at IS NOT NULL`;
  await eventually(async () => assert.equal((await sql.query(isNoted)).rowCount, 1));
  await sql.query(`UPDATE attempts SET deadline = docsched_now() - 1 WHERE queue = 'once'`);
  const [, push, settle] = await scene.collector.trace(doubtful.traceId, [INSERT, PUSH, SETTLE]);
  assert.equal(push!.attributes['error.type'], 'in_doubt');
  const names = ['docsched.settle.verdict', 'docsched.task.status', 'error.type'];
  assert.deepEqual(attributesOf(settle!, ...names), ['in_doubt_expired', 'Failed', 'in_doubt_expired']);
  const [, ok, late] = await scene.collector.trace(accepted.traceId, [INSERT, PUSH, SETTLE]);
  assert.equal(ok!.error, undefined);
  assert.deepEqual(attributesOf(late!, ...names), ['processing_expired', 'Failed', 'processing_expired']);
});

test('a cancel ends the trace; a callback that comes later is shown to have changed nothing', async () => {
  const { taskId, traceId } = await scene.submitted({});
  const push = await eventually(() => scene.place.parser.pushes.find(({ body }) => body.task_id === taskId) ?? null);
  await post(scene.service, `/v1/tasks/${taskId}/versions/1/cancel`);
  assert.equal((await scene.place.parser.callback(push!)).status, 409);
  const spans = await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE, SETTLE]);
  const names = ['docsched.settle.verdict', 'docsched.settle.applied', 'docsched.task.status'];
  assert.deepEqual(
    spans.slice(2).map((span) => attributesOf(span, ...names)),
    [
      ['cancelled', undefined, 'Stopped'],
      ['success', false, undefined],
    ],
  );
});

test('a task that is never pushed ends its trace too: by a cancel, by its time-out', async () => {
  const later = await scene.submitted({ run_at: Date.now() + 3_600_000 });
  await post(scene.service, `/v1/tasks/${later.taskId}/versions/1/cancel`);
  const [, cancelled] = await scene.collector.trace(later.traceId, [INSERT, SETTLE]);
  assert.deepEqual([cancelled!.error, cancelled!.attributes['docsched.settle.verdict']], [undefined, 'cancelled']);
  const held = await scene.submitted({ queue: 'held' });
  const [, expired] = await scene.collector.trace(held.traceId, [INSERT, SETTLE]);
  assert.deepEqual(attributesOf(expired!, 'error.type', 'docsched.task.status'), ['pending_expired', 'Failed']);
  assert.ok(Number(expired!.attributes['docsched.task.waited_ms']) >= 100);
});

test('a batch push is a span a task, each in its own trace, linked to the one that the header names', async () => {
  await setQueue(scene.service, 'batched', { targets: [{ url: scene.place.parser.url, batch: 3 }], paused: true });
  const tasks = [
    await scene.submitted({ queue: 'batched' }),
    await scene.submitted({ queue: 'batched' }),
    await scene.submitted({ queue: 'batched' }),
  ];
  for (const { taskId } of tasks) scene.answers.set(taskId, scene.callBack());
  await setQueue(scene.service, 'batched', { targets: [{ url: scene.place.parser.url, batch: 3 }] });
  const traces = await Promise.all(tasks.map(({ traceId }) => scene.collector.trace(traceId, [INSERT, PUSH, SETTLE])));
  const pushes = traces.map(([, push]) => push!);
  assert.deepEqual(
    pushes.map(({ attributes }) => attributes['messaging.batch.message_count']),
    [3, 3, 3],
  );
  const received = tasks.map(({ taskId }) => scene.place.parser.pushes.find(({ body }) => body.task_id === taskId)!);
  assert.deepEqual(
    received.map(({ body }) => body.traceparent),
    pushes.map(({ traceId, spanId }) => `00-${traceId}-${spanId}-01`),
  );
  const named = String(received[0]!.headers.traceparent).slice(36, 52);
  assert.deepEqual(
    pushes.map(({ links }) => links),
    pushes.map(({ spanId }) => (spanId === named ? [] : [named])),
  );
});

test('a synchronous parser’s task is the same three spans', async () => {
  const { traceId } = await scene.submitted({ queue: 'sync' }, finish());
  const [, push, settle] = await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE]);
  assert.deepEqual(attributesOf(push!, 'docsched.push.outcome', 'http.response.status_code'), ['done', 200]);
  assert.equal(settle!.attributes['docsched.task.status'], 'Success');
});

test('the trace is that of the last accepted submit; one that is refused or changes nothing is a span of its own', async () => {
  const { taskId, traceId } = await scene.submitted(
    { run_at: Date.now() + 3_600_000, task_version: 2 },
    scene.callBack(),
  );
  const [stale, refresh, repeat] = [newTrace(), newTrace(), newTrace()];
  assert.equal(await scene.send({ task_id: taskId, task_version: 1 }, stale.traceparent), 'stale');
  assert.equal(
    await scene.send({ task_id: taskId, task_version: 2, run_at: Date.now() }, refresh.traceparent),
    'refreshed',
  );
  await ended(scene.service, taskId, 2);
  assert.equal(await scene.send({ task_id: taskId, task_version: 2 }, repeat.traceparent), 'existing');
  await scene.collector.trace(refresh.traceId, [INSERT, PUSH, SETTLE]);
  await scene.collector.trace(traceId, [INSERT]);
  const alone = await Promise.all([stale, repeat].map(({ traceId }) => scene.collector.trace(traceId, [INSERT])));
  const outcomes = alone.flat().map((span) => [span.attributes['docsched.insert.outcome'], span.error]);
  assert.deepEqual(outcomes, [
    ['stale', undefined],
    ['existing', undefined],
  ]);
});

test('a task submitted in SQL is in the trace it names, and in one of its own when it names none', async () => {
  const { traceId, spanId, traceparent } = newTrace();
  const unnamed = scene.newTask(inTurn(reply(500), scene.callBack()));
  await scene.enqueue(scene.newTask(inTurn(reply(500), scene.callBack())), traceparent);
  await scene.enqueue(unnamed);
  const spans = await scene.collector.trace(traceId, [PUSH, SETTLE, PUSH, SETTLE]);
  for (const { parentSpanId } of spans) assert.equal(parentSpanId, spanId);
  const ownId = traceIdOf(await scene.storedOf(unnamed));
  for (const { parentSpanId } of await scene.collector.trace(ownId, [PUSH, SETTLE, PUSH, SETTLE]))
    assert.equal(parentSpanId, undefined);
});

test('a service that has nothing to do makes no spans', async () => {
  const busy = Object.keys(await scene.place.countTasks()).filter((status) =>
    ['Pending', 'Processing'].includes(status),
  );
  assert.deepEqual(busy, [], 'the tests above left nothing to do');
  // Whatever the tests above made has been sent by then.
  await sleep(200);
  const made = scene.collector.spans.length;
  await sleep(2_000);
  assert.deepEqual(scene.collector.spans.slice(made), []);
});
