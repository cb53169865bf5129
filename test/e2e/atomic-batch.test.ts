/** `atomic` batches over HTTP: all or nothing, and a problem that names the first bad entry. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { install, metric, post, submit } from '../support/installation.ts';

const entry = (task_id: number, more: object = {}) => ({ task_id, task_version: 1, payload: null, ...more });

test('is stored as a whole, in each of its queues, with an outcome for each entry', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { ROLES: 'api' } });
  const instance = await place.start();
  await place.sql.query(`INSERT INTO queues (queue) VALUES ('other')`);
  const tasks = [entry(1), entry(2, { queue: 'other' }), entry(2)];
  const all = await eventually(async () => {
    const answer = await post(instance, '/v1/tasks/batch', { atomic: true, tasks });
    assert.equal(answer.status, 200);
    return answer;
  });
  const results = all.body.results as { outcome: string; task: { queue: string; task_id: string } }[];
  assert.deepEqual(
    results.map(({ outcome, task }) => `${outcome} ${task.queue} ${task.task_id}`),
    ['created default 1', 'created other 2', 'created default 2'],
  );
  assert.deepEqual(await place.countTasks(), { Pending: 3 });
});

test('names the first bad entry by its own code, and stores nothing', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { ROLES: 'api' } });
  const instance = await place.start();
  await submit(instance, { task_id: 1, task_version: 5 });
  const stored = () => place.countTasks();
  const before = await stored();
  const counted = await metric(instance, 'docsched_inserts_total', { outcome: 'created' });
  const faults: [object[], number, string, string][] = [
    [[entry(10), entry(11, { speed: 1 }), entry(12, { priority: 9 })], 400, 'unknown_field', '/tasks/1/speed'],
    [[entry(10), entry(11, { priority: 9 })], 400, 'invalid_field', '/tasks/1/priority'],
    [[entry(10), { task_id: 11, task_version: 1 }], 400, 'missing_field', '/tasks/1/payload'],
    [[entry(10), entry(11, { queue: 'nowhere' })], 404, 'unknown_queue', '/tasks/1/queue'],
    [[entry(10), entry(11, { run_at: Date.now() + 400 * 86_400_000 })], 400, 'invalid_field', '/tasks/1/run_at'],
    [[entry(10), entry(1), entry(1, { task_version: 2 })], 409, 'stale_version', '/tasks/1/task_version'],
    [[], 400, 'invalid_field', '/tasks'],
    [Array.from({ length: 1001 }, (_, i) => entry(i)), 400, 'invalid_field', '/tasks'],
  ];
  for (const [tasks, status, code, pointer] of faults) {
    const answer = await post(instance, '/v1/tasks/batch', { atomic: true, tasks });
    assert.deepEqual([answer.status, answer.body.code, answer.body.pointer], [status, code, pointer]);
    assert.equal(answer.headers.get('content-type'), 'application/problem+json; charset=utf-8');
    if (code === 'stale_version')
      assert.deepEqual([answer.body.outcome, answer.body.latest], ['stale', { task_version: '5', status: 'Pending' }]);
  }
  const wrong = await post(instance, '/v1/tasks/batch', { atomic: 1, tasks: [entry(10)] });
  assert.deepEqual([wrong.body.code, wrong.body.pointer], ['invalid_field', '/atomic']);
  assert.deepEqual(await stored(), before);
  assert.equal(await metric(instance, 'docsched_inserts_total', { outcome: 'created' }), counted);
});
