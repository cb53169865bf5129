/** A settle that begins while something else about its attempts is being written: it waits for that, and then settles. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { createWorld, type Instance, type World } from '../support/world.ts';

const COUNT = 40;
/** Closed attempts beside them: in a small table the planner joins in ways in which nothing goes wrong. */
const CLOSED = 20_000;

let world: World;
let one: Instance;

before(async () => {
  world = await createWorld('settle_race');
  await world.setQueue('default', { concurrency_limit: 1_000 });
  await world.sql.query(
    `INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, claimed_at, deadline,
       max_deadline, closed_at, outcome)
     SELECT md5(n::text), 0, 'default', n, 0, 1, 'none', 1, 1, 1, 1, 'success' FROM generate_series(1, $1::int) n`,
    [CLOSED],
  );
  await world.sql.query('ANALYZE');
  one = await world.instance();
});
after(() => world.end());

for (const [what, change] of [
  ['its acceptance is noted', 'accepted_at = docsched_now()'],
  ['its progress is stored', 'progress_at = docsched_now(), deadline = deadline + 1000'],
] as const)
  for (const isCancelled of [false, true])
    test(`an attempt${isCancelled ? ' of a cancelled task' : ''} is closed by a report that came while ${what}`, async () => {
      const taskId = Math.floor(Math.random() * 1e9);
      await world.submit(...Array.from({ length: COUNT }, (_, n) => ({ taskId: taskId + n, taskVersion: 1 })));
      const { tasks } = await one.claim(await world.queue(), COUNT);
      const ids = tasks.map((task) => task.attempt_id);
      if (isCancelled) for (const task of tasks) await world.cancel({ taskId: task.task_id, taskVersion: 1 });
      const writer = await world.sql.connect();
      await writer.query('BEGIN');
      await writer.query(`UPDATE attempts SET ${change} WHERE attempt_id = ANY ($1)`, [ids]);
      const settling = Promise.all(
        ids.map((attemptId) => one.settler.settle({ attemptId, verdict: 'success', statusCode: '0' })),
      );
      await eventually(async () => {
        const [row] = await world.rows<{ n: number }>(
          `SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
        );
        assert.ok(row!.n > 0, 'the settle does not wait');
      });
      await writer.query('COMMIT');
      writer.release();
      const outcome = isCancelled ? 'stale' : 'applied';
      assert.deepEqual(
        (await settling).map((settled) => settled.outcome),
        ids.map(() => outcome),
      );
      for (const id of ids) assert.equal((await world.attempt(id)).outcome, isCancelled ? 'cancelled' : 'success');
      assert.deepEqual(await world.openAttempts(), []);
    });
