/** Server-sent events of a task: from its present state to its end, resumable, over several instances. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { hang } from '../support/answers.ts';
import { type EventStream, openStream } from '../support/event-stream.ts';
import { get, getTask, install, post, submit } from '../support/installation.ts';
import type { TestDatabase } from '../support/postgres.ts';
import type { RunningService } from '../support/process.ts';

const PATH = '/v1/tasks/1/versions/1';
const FAR_AHEAD_MS = 3_600_000;

const follow = (service: RunningService, lastEventId?: string): Promise<EventStream> =>
  openStream(`${service.url}${PATH}/events`, lastEventId === undefined ? {} : { 'last-event-id': lastEventId });

test('a task is followed from its present state to its end, each event as GET shows the task', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const service = await place.start();
  const { body } = await submit(service, { task_id: 1, payload: { file: 'a.pdf' } });
  const [push] = await place.parser.waitForPushes(1);
  const stream = await follow(service);
  assert.equal(stream.status, 200);
  assert.match(String(stream.headers['content-type']), /^text\/event-stream/);
  assert.equal(stream.headers['cache-control'], 'no-store');
  const first = await stream.next();
  assert.equal(stream.retry(), 2_000);
  assert.equal(first.event, 'task');
  assert.equal(first.task.status, 'Processing');
  assert.deepEqual(first.task, await getTask(service, 1), 'the task as GET shows it');

  await place.parser.progress(push!, { percent: 40, message: 'page 2' });
  const second = await stream.next();
  assert.deepEqual(second.task.progress, { percent: 40, message: 'page 2' });
  await place.parser.callback(push!, { result: { pages: 5 } });
  const last = await stream.next();
  assert.equal(last.task.status, 'Success');
  assert.equal(await stream.ended, undefined, 'it ends by itself');

  const { result, result_url: _, ...shown } = await getTask(service, 1);
  assert.deepEqual(result, { pages: 5 });
  assert.deepEqual(last.task, shown, 'the event carries neither result nor payload');
  for (const { id, task } of stream.events) assert.equal(id, String(task.update_at));
  const ids = [(body.task as { update_at: number }).update_at, ...stream.events.map(({ id }) => Number(id))];
  assert.deepEqual(
    ids,
    [...new Set(ids)].toSorted((a, b) => a - b),
    'ids only grow',
  );
});

test('a client that comes back gets what it missed, and 204 when there is nothing left to come', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const service = await place.start();
  await submit(service, { task_id: 1, max_retries: 0 });
  const [push] = await place.parser.waitForPushes(1);
  const stream = await follow(service);
  const { id } = await stream.next();
  stream.close();

  const same = await follow(service, id);
  const another = await follow(service, 'what is this');
  assert.equal((await another.next()).id, id, 'an id that is none of the task counts as none');
  assert.deepEqual(same.events, [], 'known already');
  await place.parser.callback(push!, { status_code: 7, status_msg: 'unreadable' });
  const failed = await same.next();
  assert.deepEqual([failed.task.status, failed.task.status_code], ['Failed', 7]);
  await same.ended;

  const missed = await follow(service, id);
  assert.deepEqual(await missed.next(), failed, 'ended while it was away');
  assert.equal(await missed.ended, undefined);
  const over = await follow(service, failed.id);
  assert.deepEqual([over.status, over.text()], [204, '']);

  await post(service, `${PATH}/retry`);
  const again = await follow(service, failed.id);
  assert.notEqual((await again.next()).task.status, 'Failed', 'it lives again');
  again.close();
});

test('a change made by another instance is told by this one', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const [here, there] = await Promise.all([place.start({ ROLES: 'api' }), place.start()]);
  await submit(here, { task_id: 1, run_at: Date.now() + FAR_AHEAD_MS });
  const stream = await follow(here);
  assert.equal((await stream.next()).task.status, 'Pending');
  await post(there, `${PATH}/cancel`);
  const { task } = await stream.next();
  assert.deepEqual([task.status, task.reason], ['Stopped', 'cancelled']);
  assert.equal(await stream.ended, undefined);
});

test('when the task is deleted the stream ends without an event, and coming back is 404', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const service = await place.start();
  await submit(service, { task_id: 1, run_at: Date.now() + FAR_AHEAD_MS });
  const stream = await follow(service);
  const { id } = await stream.next();
  await place.sql.query('DELETE FROM task_scheduler_tasks');
  assert.equal(await stream.ended, undefined);
  assert.equal(stream.events.length, 1);
  assert.deepEqual(stream.comments, [': the task was deleted']);
  assert.equal((await follow(service, id)).status, 404);
});

test('what is wrong is said as a problem before the stream, and HEAD answers its head alone', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const service = await place.start();
  await submit(service, { task_id: 1, run_at: Date.now() + FAR_AHEAD_MS });
  for (const [path, status, code] of [
    ['/v1/tasks/2/versions/1/events', 404, 'unknown_task'],
    [`${PATH}/events?queue=none`, 404, 'unknown_queue'],
    [`${PATH}/events?queue=No`, 400, 'invalid_field'],
    [`${PATH}/events?wait=1`, 400, 'unknown_field'],
    ['/v1/tasks/01/versions/1/events', 400, 'invalid_field'],
    ['/v1/tasks/1/versions/9223372036854775808/events', 400, 'invalid_field'],
  ] as const) {
    const { status: answered, body, headers } = await get(service, path);
    assert.deepEqual([answered, body.code], [status, code], path);
    assert.match(headers.get('content-type')!, /^application\/problem\+json/);
  }
  assert.equal((await post(service, `${PATH}/events`)).status, 405);
  const head = await fetch(`${service.url}${PATH}/events`, { method: 'HEAD' });
  assert.equal(head.status, 200);
  assert.match(head.headers.get('content-type')!, /^text\/event-stream/);
  assert.equal(await head.text(), '');
});

test('a graceful stop ends the streams at once, whatever else it waits for', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { SHUTDOWN_TIMEOUT_MS: '6000' } });
  place.parser.answerWith(hang);
  const service = await place.start();
  await submit(service, { task_id: 1 });
  await place.parser.waitForPushes(1);
  const streams = await Promise.all([follow(service), follow(service)]);
  await Promise.all(streams.map((stream) => stream.next()));
  const at = performance.now();
  const stopped = service.stop();
  for (const stream of streams) assert.equal(await stream.ended, undefined);
  const endedMs = performance.now() - at;
  const { code, ms } = await stopped;
  assert.equal(code, 0);
  assert.ok(ms > 1_500, 'the push that hangs was waited for');
  assert.ok(endedMs < ms - 1_000, `${endedMs} of ${ms} ms`);
});

test('a stream outlives an outage of the database, and tells what happened meanwhile', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const service = await place.start();
  await submit(service, { task_id: 1, run_at: Date.now() + FAR_AHEAD_MS });
  const stream = await follow(service);
  await stream.next();
  const allowConnections = await outsideOf(t, place.database);
  await place.countTasks(); // So that this connection exists.
  await allowConnections(false);
  await place.sql.query(
    `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name LIKE 'docsched%'`,
  );
  await service.waitForLine((line) => line.event === 'loop_failed' && line.loop === 'waiter');
  await place.sql.query('UPDATE task_scheduler_tasks SET priority = 2, update_at = update_at + 1');
  await allowConnections(true);
  const { task } = await stream.next();
  assert.equal(task.priority, 2);
  stream.close();
});

/** Lets new connections to the database in or not; those that exist live on. */
async function outsideOf(t: TestContext, { url, name }: TestDatabase) {
  const client = new pg.Client(Object.assign(new URL(url), { pathname: '/postgres' }).href);
  await client.connect();
  t.after(() => client.end());
  return (allowed: boolean) => client.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS ${allowed}`);
}
