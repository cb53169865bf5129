/** The service keeps the notes of the counts few, and shows the counts as gauges. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { finish } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { ended, install, metric, submit } from '../support/installation.ts';

test('a running service adds up what was noted, and its gauges are the counts', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  place.parser.answerWith(finish());
  const service = await place.start();
  await submit(service, { task_id: 1 });
  await ended(service, 1);
  await eventually(async () => {
    const { rows } = await place.sql.query(`SELECT (SELECT count(*)::int FROM task_count_deltas) AS notes,
      (SELECT sum(tasks)::int FROM task_counts WHERE status = 2) AS successes`);
    assert.deepEqual(rows[0], { notes: 0, successes: 1 });
  });
  await eventually(async () => (await metric(service, 'docsched_tasks', { status: 'Success' })) === 1);
  assert.equal(await metric(service, 'docsched_tasks', { queue: 'default' }), 1);
  await eventually(async () => (await metric(service, 'docsched_watcher_runs_total', { action: 'fold_counts' })) > 0);
});
