/** One trace a task, whatever happens to the service, its sampler or its collector. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { reply } from '../support/answers.ts';
import { ended, setQueue } from '../support/installation.ts';
import { inTurn, type Scene, startScene, traceIdOf } from '../support/otlp-scene.ts';

/** The service is killed sooner than that. */
const RETRY_MS = 3_000;
const INSERT = 'insert';
const PUSH = 'push';
const SETTLE = 'settle';
const UNSAMPLED = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-00$/;

let scene: Scene;

before(async () => {
  scene = await startScene();
});
after(() => scene.end());

/** As the parser got them. */
const traceparentsOf = (taskId: string): string[] =>
  scene.pushesOf(taskId).map(({ headers }) => String(headers.traceparent));

test('a restart breaks no trace, be it before a retry or before the callback', async () => {
  const targets = [{ url: scene.place.parser.url }];
  await setQueue(scene.service, 'patient', { targets, retry: { strategy: 'fixed', base_ms: RETRY_MS } });
  const retried = await scene.submitted({ queue: 'patient' }, inTurn(reply(500), scene.callBack()));
  const accepted = await scene.submitted({});
  await scene.collector.trace(retried.traceId, [INSERT, PUSH, SETTLE]);
  await scene.collector.trace(accepted.traceId, [INSERT, PUSH]);
  await scene.restart();
  const [push] = scene.pushesOf(accepted.taskId);
  const callback_url = scene.service.url + new URL(push!.body.callback_url).pathname;
  const told = await scene.place.parser.callback({ ...push!, body: { ...push!.body, callback_url } });
  assert.equal(told.status, 200);
  const spans = await scene.collector.trace(retried.traceId, [INSERT, PUSH, SETTLE, PUSH, SETTLE]);
  assert.deepEqual(
    spans.slice(1).map(({ attributes }) => attributes['docsched.attempt.number']),
    [1, 1, 2, 2],
  );
  const [, , settle] = await scene.collector.trace(accepted.traceId, [INSERT, PUSH, SETTLE]);
  assert.equal(settle!.attributes['docsched.task.status'], 'Success');
});

test('the sampler of the environment decides for traces that begin here, their caller for the others', async () => {
  await scene.restart({ OTEL_TRACES_SAMPLER: 'parentbased_traceidratio', OTEL_TRACES_SAMPLER_ARG: '0' });
  const before = scene.collector.spans.length;
  const { traceId } = await scene.submitted({}, scene.callBack());
  await scene.collector.trace(traceId, [INSERT, PUSH, SETTLE]);
  const [posted, enqueued] = [scene.newTask(scene.callBack()), scene.newTask(scene.callBack())];
  await scene.send({ task_id: posted }, 'nonsense');
  await scene.enqueue(enqueued);
  for (const taskId of [posted, enqueued]) {
    assert.equal((await ended(scene.service, taskId)).status, 'Success');
    const [traceparent] = traceparentsOf(taskId);
    assert.match(traceparent!, UNSAMPLED);
    assert.equal(traceIdOf(traceparent), traceIdOf(await scene.storedOf(taskId)));
  }
  await scene.service.stop();
  assert.deepEqual(
    scene.collector.spans.slice(before).map(({ traceId: id }) => id),
    [traceId, traceId, traceId],
  );
});

test('without a collector the ids travel all the same', async () => {
  await scene.restart({ OTEL_EXPORTER_OTLP_ENDPOINT: '' });
  const before = scene.collector.spans.length;
  const { taskId, traceId } = await scene.submitted({}, inTurn(reply(500), scene.callBack()));
  const alone = scene.newTask(scene.callBack());
  await scene.send({ task_id: alone }, `00-${'0'.repeat(32)}-${'0'.repeat(16)}-01`);
  for (const id of [taskId, alone]) assert.equal((await ended(scene.service, id)).status, 'Success');
  assert.deepEqual(traceparentsOf(taskId).map(traceIdOf), [traceId, traceId]);
  assert.match(traceparentsOf(alone)[0]!, UNSAMPLED);
  await scene.service.stop();
  assert.equal(scene.collector.spans.length, before);
});
