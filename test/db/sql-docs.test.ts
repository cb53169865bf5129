/**
 * The queries of docs/sql.md, over 200,000 tasks and as a role that may only read: each answers what its heading asks, and
 * none reads a large table from end to end but those whose block is marked `sql reads-all`.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import pg from 'pg';
import { createWorld, type World } from '../support/world.ts';

const MANY = 200_000;
const LARGE = ['task_scheduler_tasks', 'attempts', 'version_floors'];
/** A look through a table of this test would be 4,000 and more. */
const MAX_BUFFERS = 3_000;
const BLOCK = /^### (.+)\n((?:(?!^#|^```)[^\n]*\n)*)```sql( reads-all)?\n([^`]+)```/gm;
const text = readFileSync(new URL('../../docs/sql.md', import.meta.url), 'utf8');
const blocks = [...text.matchAll(BLOCK)].map(([, title = '', intro = '', readsAll, sql = '']) => ({
  title,
  intro,
  readsAll: readsAll !== undefined,
  sql,
}));

type Answer = Record<string, unknown>[];
type Plan = { 'Node Type': string; 'Relation Name'?: string; 'Shared Hit Blocks': number; Plans?: Plan[] };

let world: World;
/** Who asks, as the document says to create it. */
let looker: pg.Client;
/** A submitter that keeps task 4711 locked, and one that waits for it. */
let holder: pg.Client;
let waiter: pg.Client;
let waiting: Promise<unknown>;
const role = `looker_${randomBytes(4).toString('hex')}`;
const others: pg.Client[] = [];

before(async () => {
  world = await createWorld('sql_docs');
  await fill();
  looker = await connect();
  const created = /CREATE ROLE looker [^`]+/.exec(text)![0].replaceAll('looker', role);
  await looker.query(created);
  await looker.query(`SET ROLE ${role}`);
  holder = await connect();
  await holder.query('BEGIN');
  await holder.query(`SELECT 1 FROM version_floors WHERE queue = 'default' AND task_id = 4711 FOR UPDATE`);
  waiter = await connect();
  waiting = waiter.query(
    `UPDATE version_floors SET accepted_at = accepted_at WHERE queue = 'default' AND task_id = 4711`,
  );
});
after(async () => {
  await holder.query('ROLLBACK');
  await waiting;
  await looker.query(`RESET ROLE; DROP ROLE ${role}`);
  for (const client of others) await client.end();
  await world.end();
});

async function connect(): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: world.url, application_name: 'sql-docs' });
  await client.connect();
  others.push(client);
  return client;
}

/** Something of everything that operators may meet. */
async function fill(): Promise<void> {
  const targets = ['http://good.test/', 'http://broken.test/'].map((url) => ({ url }));
  await world.setQueue('default', { targets, concurrency_limit: 300 });
  await world.addQueue('paused', { targets, paused: true });
  await world.addQueue('mail', {});
  await world.sql.query(`SELECT setval('task_ids', ${MANY})`);
  await world.sql.query(`
    INSERT INTO task_scheduler_tasks (queue, task_id, task_version, id, place, status, hold, ready_at, reason, status_msg,
      finished_at, started_at, attempt_id, deadline, priority, level, payload, max_retries, retry_count, pending_since,
      create_at, update_at)
    SELECT CASE n % 4 WHEN 0 THEN 'mail' ELSE 'default' END, n + 10000, 1, n, n, s, h, CASE WHEN h = 1 THEN now + n END,
      CASE WHEN s >= 3 THEN (ARRAY['parser_failed', 'refused', 'pending_expired'])[1 + n % 3] END,
      CASE WHEN s = 3 THEN 'page ' || n % 7 || ' is torn' END, CASE WHEN s > 1 THEN now - n * 1000 END,
      CASE WHEN s > 0 THEN now - n * 1000 - 500 END, CASE WHEN s = 1 THEN 'open-' || n END,
      CASE WHEN s = 1 THEN now + n END, 1 + n / 5 % 5, 1 + n / 5 % 5,
      '{"file": "scan-' || n || CASE WHEN n % 2 = 0 THEN '.pdf"}' ELSE '\\u0000.tif"}' END, 3, n % 2,
      now - n * 10, now - n * 1000, now
    FROM (SELECT n, now, CASE WHEN n % 1000 = 1 THEN 1 WHEN n % 5 = 1 THEN 0 ELSE n % 5 END AS s,
            CASE WHEN n % 5 = 0 AND n % 3 = 0 THEN 1 ELSE 0 END AS h
          FROM generate_series(1, ${MANY}) n, (SELECT docsched_now() AS now OFFSET 0) c) g`);
  await world.sql.query(`
    INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
      closed_at, outcome, error, number, target, retry)
    SELECT coalesce(attempt_id, 'done-' || id), id, queue, task_id, task_version, started_at, deadline_or_end,
      deadline_or_end, finished_at, CASE WHEN status = 2 THEN 'success' WHEN status > 2 THEN reason END, status_msg, 1,
      CASE id % 3 WHEN 0 THEN 'http://broken.test/' ELSE 'http://good.test/' END, id % 2 = 1
    FROM (SELECT *, coalesce(deadline, finished_at) AS deadline_or_end FROM task_scheduler_tasks WHERE status > 0) t`);
  await world.sql.query(`
    INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
    SELECT queue, task_id, task_version, create_at FROM task_scheduler_tasks`);
  await world.sql.query(`
    INSERT INTO targets (url, failures, not_before, failed_at, error)
    VALUES ('http://broken.test/', 4, docsched_now() + 8000, docsched_now(), 'connection refused')`);
  await world.submit(
    { taskId: 4711, taskVersion: 1 },
    { taskId: 4711, taskVersion: 2 },
    { taskId: 4711, taskVersion: 3, runAt: (await world.now()) + 3_600_000 },
  );
  await world.sql.query(`
    INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
      closed_at, outcome, error, number, target)
    SELECT 'mine', id, queue, task_id, task_version, create_at, create_at, create_at, create_at, 'try_failed', 'busy', 1,
      'http://good.test/' FROM task_scheduler_tasks WHERE task_id = 4711 AND task_version = 2`);
  await world.instance(); // Opens the limiter.
  await world.db.query('complete_job', ['clean']);
  await world.sql.query('VACUUM ANALYZE');
}

const by = (answer: Answer, member: string, value: unknown) => answer.find((row) => row[member] === value) ?? {};

/** What each must answer here, beside being no empty answer. */
const PLAUSIBLE: Record<string, (answer: Answer) => void> = {
  'How much is there, and how old?': (answer) => {
    assert.equal(answer.length, 3 * 5);
    const total = answer.reduce((sum, row) => sum + Number(row.tasks), 0);
    assert.equal(total, MANY + 3);
  },
  'What is Pending, and what holds it back?': (answer) => {
    const row = by(answer, 'queue', 'default');
    assert.deepEqual([row.slots, row.slots_used, row.targets, row.targets_held_back], [300, '200', 2, '1']);
    assert.deepEqual([row.retry_slots, row.retry_slots_used, row.blocked], [150, '200', '1']);
    assert.ok(Number(row.claimable) > 10_000 && Number(row.delayed) > 1_000);
    assert.equal(by(answer, 'queue', 'paused').paused, true);
  },
  'How did attempts end lately?': (answer) => {
    const total = answer.reduce((sum, row) => sum + Number(row.attempts), 0);
    assert.ok(total > 2_000 && total < 2_200, `${total} in an hour`);
    assert.ok(answer.some((row) => row.outcome === 'parser_failed' && /torn/.test(String(row.an_error))));
  },
  'Failures by reason in the last hour': (answer) => {
    assert.ok(answer.some((row) => row.queue === 'default' && row.reason === 'refused' && Number(row.tasks) > 100));
  },
  'Do the jobs run?': (answer) => assert.ok(Number(by(answer, 'job', 'clean').seconds_ago) < 600),
  'Where is my task?': (answer) => {
    assert.deepEqual(
      answer.map((row) => [row.task_version, row.status]),
      [
        ['3', 'Pending'],
        ['2', 'Pending'],
        ['1', 'Pending'],
      ],
    );
  },
  'Why is it still Pending?': (answer) => {
    assert.match(String(answer[0]!.why), /^not due before 20/);
    assert.match(String(answer[1]!.why), /^in line$/);
    assert.equal(answer[1]!.before_it, '500');
    assert.equal(answer[2]!.why, 'behind version 2');
  },
  'What became of its attempts?': (answer) => assert.equal(answer[0]!.outcome, 'try_failed'),
  'Why is a version refused as stale?': (answer) => {
    const { highest_accepted, highest_kept, accepted, lower_refused_until } = answer[0]!;
    assert.deepEqual([highest_accepted, highest_kept], ['3', '3']);
    assert.ok((lower_refused_until as Date) > (accepted as Date));
  },
  'Locks held on a task': (answer) => {
    assert.equal(answer.length, 1);
    assert.deepEqual([answer[0]!.what, answer[0]!.state], ['its submits', 'idle in transaction']);
    assert.match(String(answer[0]!.query), /FOR UPDATE/);
  },
  'What is Processing the longest, and where?': (answer) => {
    assert.equal(answer.length, 20);
    const seconds = answer.map((row) => Number(row.seconds));
    assert.deepEqual(
      seconds,
      seconds.toSorted((a, b) => b - a),
    );
    assert.ok(seconds[0]! > 100_000);
  },
  'Which task of each queue waits longest?': (answer) => {
    assert.deepEqual(answer.map((row) => row.queue).toSorted(), ['default', 'mail']);
    assert.ok(Number(answer[0]!.seconds) > 1_000);
  },
  'What falls due next?': (answer) => assert.equal(answer.length, 20),
  'Which versions wait behind a higher one?': (answer) =>
    assert.deepEqual([answer[0]!.task_id, answer[0]!.waits, answer[0]!.for_version], ['4711', '1', '3']),
  'Which tasks failed for one reason?': (answer) => {
    assert.equal(answer.length, 100);
    assert.match(String(answer[0]!.status_msg), /torn/);
  },
  'Which payloads say so and so?': (answer) => {
    assert.ok(answer.length > 100 && answer.length < 1_000, `${answer.length}: half of them cannot be looked into`);
    for (const { file } of answer) assert.match(String(file), /^scan-\d+\.pdf$/);
  },
  'Targets and their breakers': (answer) => {
    const broken = by(answer, 'url', 'http://broken.test/');
    assert.deepEqual([broken.state, broken.failures_in_a_row, broken.error], ['left alone', 4, 'connection refused']);
    assert.equal(by(answer, 'url', 'http://good.test/').state, 'in use');
  },
  'Slots versus open attempts': (answer) => {
    const { open_attempts, of_cancelled_tasks, limit } = by(answer, 'queue', 'default');
    assert.deepEqual([open_attempts, of_cancelled_tasks, limit], ['200', '0', 300]);
  },
  'Which limiter is in force?': (answer) => assert.equal(answer[0]!.backend, 'postgres'),
  'What takes the space?': (answer) => {
    assert.deepEqual(answer.map((row) => row.table).slice(0, 3), LARGE);
    assert.ok(Number(answer[0]!.live) > MANY / 2);
  },
  'Is what is over deleted?': (answer) => {
    assert.equal(answer.length, 6);
    assert.ok(answer.every((row) => Number(row.oldest_s) > 0 && Number(row.kept_s) > 0));
  },
  'What holds vacuum back?': (answer) => assert.ok(answer.some((row) => /version_floors/.test(String(row.query)))),
  'Who waits for whom?': (answer) => {
    const row = answer.find(({ query }) => /UPDATE version_floors/.test(String(query)));
    assert.match(String(row?.its_query), /^SELECT 1 FROM version_floors/);
  },
};
/** Good news is an empty answer; each is seen not empty in a test of its own. */
const EMPTY = ['Do the counts agree with the tasks?'];

test('every query of the document is known here, and says when to use it', () => {
  assert.deepEqual(blocks.map(({ title }) => title).toSorted(), [...Object.keys(PLAUSIBLE), ...EMPTY].toSorted());
  assert.equal(blocks.length, (text.match(/^```sql/gm) ?? []).length);
  for (const { title, intro } of blocks) assert.match(intro, /\w+ \w+ \w+[^.]*\./, title);
});

const nodes = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(nodes)];

describe('a query of the document', () => {
  for (const { title, sql, readsAll } of blocks)
    test(title, async () => {
      const { rows } = await looker.query(sql);
      if (EMPTY.includes(title)) assert.deepEqual(rows, []);
      else {
        assert.ok(rows.length > 0, 'an answer');
        PLAUSIBLE[title]!(rows);
      }
      const explained = await looker.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${sql}`);
      const plan = explained.rows[0]['QUERY PLAN'][0].Plan as Plan;
      const full = nodes(plan)
        .filter((node) => node['Node Type'] === 'Seq Scan')
        .map((node) => node['Relation Name'] ?? '')
        .filter((name) => LARGE.includes(name));
      if (readsAll) assert.ok(full.length > 0 || plan['Shared Hit Blocks'] > MAX_BUFFERS, 'it need not be marked');
      else {
        assert.deepEqual(full, []);
        assert.ok(plan['Shared Hit Blocks'] < MAX_BUFFERS, `${plan['Shared Hit Blocks']} buffers`);
      }
    });
});

test('counts that do not agree with the tasks are shown, and mended as the document says', async () => {
  const { sql } = blocks.find(({ title }) => title === 'Do the counts agree with the tasks?')!;
  const surgeon = await connect();
  await surgeon.query('SET session_replication_role = replica');
  await surgeon.query(`DELETE FROM task_scheduler_tasks WHERE queue = 'mail' AND status = 2`);
  const { rows } = await looker.query(sql);
  assert.equal(rows.length, 1);
  assert.deepEqual([rows[0].queue, rows[0].status, rows[0].stored], ['mail', 2, null]);
  await surgeon.query(/SELECT docsched_recount_tasks\(\)/.exec(text)![0]);
  assert.deepEqual((await looker.query(sql)).rows, []);
});
