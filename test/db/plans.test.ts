/**
 * Over a million rows no statement reads a large table from end to end, and a claim touches what it takes and little
 * more. Plans are looked at as the service makes them (for the values of each call), and as generic ones, which a
 * pooler that drops the service's settings would get.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import pg from 'pg';
import { loadStatements } from '../../src/schema.ts';
import { createWorld, newId, TARGET, type World } from '../support/world.ts';

const PENDING = 1_000_000;
const CLAIM = 128;
const PAGE = 100;
/**
 * Measured: 17 to 22, and up to 33 behind claims that were rolled back. A task is looked up three times, is put into five
 * indexes anew, and its attempt into four; reading the table would cost hundreds a task.
 */
const BUFFERS_A_TASK = 40;
const LARGE = ['task_scheduler_tasks', 'attempts', 'version_floors'];
const LEVELS = [1, 2, 3, 4, 5];
const STARTS = LEVELS.map(() => 0);
const STRIDES = [80, 60, 40, 30, 20].map((weight) => 1 / weight);
const LINE = [LEVELS, STARTS, STARTS, STRIDES, LEVELS.map(() => true)];
const REASONS = ['refused', 'parser_failed', 'pending_expired'];
const TARGETS = [TARGET, 'http://another.test/'];

const statements = loadStatements();
let world: World;
let client: pg.Client;
let epoch: string;

type Plan = {
  'Node Type': string;
  'Relation Name'?: string;
  'Index Name'?: string;
  'Index Cond'?: string;
  'Total Cost': number;
  Plans?: Plan[];
};
type Explained = { Plan: Plan; 'Query Text'?: string };

before(async () => {
  world = await createWorld('plans');
  epoch = (await world.instance()).limiter.epoch()!;
  await world.addQueue('small');
  await fillTables();
  client = new pg.Client(world.url);
  await client.connect();
});
after(async () => {
  await client.end();
  await world.end();
});

/** Without the indexes while filling, which takes a third of the time. */
async function fillTables(): Promise<void> {
  const tables = `tablename IN ('task_scheduler_tasks', 'attempts') AND indexname NOT LIKE '%_pkey'`;
  const indexes = await world.rows<{ indexname: string; indexdef: string }>(
    `SELECT indexname, indexdef FROM pg_indexes WHERE ${tables}`,
  );
  for (const { indexname } of indexes) await world.sql.query(`DROP INDEX ${indexname}`);
  const tasks = (status: number, hold: number, from: number, count: number, retries = 0, queue = 'default') => `
    INSERT INTO task_scheduler_tasks (queue, task_id, task_version, id, place, status, hold, ready_at, finished_at,
      attempt_id, started_at, deadline, reason, retry_count, priority, level, payload, max_retries, pending_since, create_at,
      update_at)
    SELECT '${queue}', n, ${hold === 2 ? 1 : 2}, n, n, ${status}, ${hold}, ${hold === 1 ? 'docsched_now() + n' : 'NULL'},
      ${status >= 2 ? 'now - n % 1000000' : 'NULL'}, ${status === 1 ? `'open-' || n` : 'NULL'}, 1, ${status === 1 ? 'now + n' : 'NULL'},
      ${status >= 3 ? `(ARRAY${JSON.stringify(REASONS).replaceAll('"', "'")})[1 + n % 3]` : 'NULL'}, ${retries}, 1 + n % 5, 1 + n % 5, '{"file":"s3://bucket/documents/' || n || '"}', 3, now, now, now
    FROM generate_series(${from}, ${from + count - 1}) n, (SELECT docsched_now() AS now OFFSET 0) c`;
  await world.sql.query(tasks(0, 0, 1, PENDING));
  await world.sql.query(tasks(0, 2, 1, PENDING / 10));
  await world.sql.query(tasks(0, 0, 20 * PENDING, PENDING, 1));
  await world.sql.query(tasks(0, 1, 30 * PENDING, PENDING));
  await world.sql.query(tasks(0, 0, 1, 1_000, 0, 'small'));
  await world.sql.query(tasks(0, 0, 2_000, 1_000, 1, 'small'));
  await world.sql.query(tasks(1, 0, 2 * PENDING, 5_000));
  for (const status of [2, 3, 4]) await world.sql.query(tasks(status, 0, (1 + status) * PENDING, PENDING / 20));
  await world.sql.query(`
    INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, claimed_at, deadline, max_deadline,
      closed_at, outcome, number, target)
    SELECT CASE WHEN t.status = 1 THEN t.attempt_id ELSE 'closed-' || t.id END, t.id, t.queue, t.task_id, t.task_version,
      1, docsched_now() + t.id, docsched_now() + t.id, t.finished_at,
      CASE WHEN t.status > 1 THEN 'success' END, 1, 'none'
    FROM task_scheduler_tasks t WHERE t.status > 0`);
  await world.sql.query(`
    INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
    SELECT t.queue, t.task_id, t.task_version, t.create_at FROM task_scheduler_tasks t
    WHERE t.task_version = 2 AND (t.task_id % 4 = 0 OR t.status > 0)`);
  for (const { indexdef } of indexes) await world.sql.query(indexdef);
  await world.sql.query('VACUUM ANALYZE');
}

const nodes = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(nodes)];
const fullScans = (plan: Plan): string[] =>
  nodes(plan)
    .filter((node) => node['Node Type'] === 'Seq Scan' && LARGE.includes(node['Relation Name'] ?? ''))
    .map((node) => node['Relation Name']!);

/** Values such as the service passes, a full batch where there are batches. */
function paramsOf(name: string): unknown[] {
  const batch = <T>(value: (i: number) => T): T[] => Array.from({ length: 256 }, (_, i) => value(i));
  const keys = [batch(() => 'default'), batch((i) => 1 + i * 37), batch(() => 2)];
  const attempts = batch((i) => `open-${2 * PENDING + i}`);
  const one = ['default', 4_000, 2];
  const submits = [
    batch(() => 'default'),
    batch((i) => (i % 4 ? 4 + i * 400 : 10 * PENDING + i)),
    batch((i) => 2 + (i % 2)),
    batch(() => 5),
    batch(() => '{}'),
    batch(() => null),
    batch(() => null),
    batch(() => null),
  ];
  const params: Record<string, unknown[]> = {
    accept_attempts: [attempts],
    announce_work: ['test', ''],
    cancel_task: one,
    break_target: [TARGET, 1, 'refused'],
    claim_tasks: [
      'default',
      Array.from({ length: CLAIM }, newId),
      CLAIM / 2,
      ...LINE,
      null,
      epoch,
      TARGETS,
      [0, 5],
      STARTS,
    ],
    clear_target: [TARGET, 1],
    complete_job: ['clean'],
    count_failed: ['default', 'refused', null, -1],
    count_superseded: ['default', 'refused', null, -1],
    delete_attempts: [0, ''],
    delete_floors: ['', -1],
    delete_tasks: ['default', 3],
    expire_pending: ['default'],
    explain_attempts: [attempts],
    find_claimable: [['default', 'other'], STARTS],
    find_attempts: [attempts],
    find_time_left: [attempts],
    find_working: [[1, 2]],
    find_completed_job: ['clean', 4_700],
    find_current_attempts: keys,
    find_changed: [...keys, batch(() => true), batch(() => 5)],
    find_targets: ['default', TARGETS],
    get_floor: ['default', 4_000],
    get_task: [...one, false],
    give_lease_back: ['clean', 'a'],
    limiter_acquire: [epoch, 'default', ['a'], 10, 5, 20, 5, 10_000],
    limiter_bump_epoch: [epoch, 'b', 'postgres', 'a', 3_000],
    limiter_confirm: [epoch, 'default', ['a'], [], [], 10, 5, 20],
    limiter_count_usage: [epoch, ['default']],
    limiter_find_closed: [attempts],
    limiter_list_slots: [epoch],
    limiter_rebuild: [epoch, 'b', ['default'], ['a'], [false]],
    limiter_release: [epoch, 'default', ['a']],
    limiter_repair: [epoch, 'default', 1, ['a'], ['b'], ['c']],
    limiter_see_store: [epoch, 'a'],
    list_attempts: one,
    list_finished: ['default', 3, null, null, null, null, -1, -1, -1, PAGE],
    list_reasons: ['default'],
    list_tasks: ['default', 0, null, null, null, null, '', -1, -1, 100],
    list_versions: ['default', 4_000],
    order_versions: keys,
    patch_queue: ['small', '{}', []],
    put_queue: ['new', '{}'],
    read_queues: [null],
    redrive_tasks: ['default', 'refused', null, -1, -1, -1, 10],
    report_progress: [attempts[0], 5, 'page 5'],
    retain_results: ['default'],
    retry_task: one,
    set_queue_defaults: ['{}'],
    settle_attempts: [
      attempts,
      batch((i) => (i % 3 ? 'success' : 'parser_failed')),
      batch(() => 0),
      batch(() => null),
      batch(() => '{}'),
      batch(() => 0),
    ],
    slow_target: [TARGET, 1, 1],
    submit_atomic: submits,
    submit_tasks: [...submits, 8],
    take_lease: ['clean', 'a', 4_500],
  };
  const wanted = Math.max(0, ...[...statements[name]!.matchAll(/\$(\d+)/g)].map(([, n]) => Number(n)));
  const given = params[name] ?? [];
  assert.equal(given.length, wanted, `parameters of ${name}: add the statement to this table`);
  return given;
}

for (const name of Object.keys(statements))
  for (const kind of ['custom', 'generic'] as const)
    test(`${name} reads no large table from end to end (${kind} plan)`, async () => {
      const params = paramsOf(name);
      const { rows } = await (kind === 'custom'
        ? client.query(`EXPLAIN (FORMAT JSON) ${statements[name]}`, params)
        : client.query(`EXPLAIN (GENERIC_PLAN, FORMAT JSON) ${statements[name]}`));
      const { Plan: plan } = (rows[0]['QUERY PLAN'] as Explained[])[0]!;
      assert.deepEqual(fullScans(plan), []);
      const [{ jit_above_cost: jit }] = await world
        .rows<{ jit_above_cost: number }>(`SELECT current_setting('jit_above_cost')::float8 AS jit_above_cost`)
        .then((found) => found as [{ jit_above_cost: number }]);
      assert.ok(plan['Total Cost'] < jit, `a cost of ${plan['Total Cost']} would be compiled`);
    });

type Touched = Plan & { 'Shared Hit Blocks': number; 'Shared Read Blocks': number; 'Actual Rows': number };

/** Buffers that a statement touches, and the rows it answers; what it did is rolled back. */
async function touch(name: string, params = paramsOf(name)): Promise<{ buffers: number; rows: number }> {
  await client.query('BEGIN');
  const { rows } = await client.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${statements[name]}`, params);
  await client.query('ROLLBACK');
  const plan = (rows[0]['QUERY PLAN'] as Explained[])[0]!.Plan as Touched;
  return { buffers: plan['Shared Hit Blocks'] + plan['Shared Read Blocks'], rows: plan['Actual Rows'] };
}

/** The least of three: a vacuum or a checkpoint beside it, or a catalog that is read for the first time, costs one of them more. */
async function touchLeast(name: string): Promise<{ buffers: number; rows: number }> {
  const times = [await touch(name), await touch(name), await touch(name)];
  return times.reduce((least, one) => (one.buffers < least.buffers ? one : least));
}

for (const name of ['expire_pending', 'promote_tasks', 'find_expired_attempts', 'retain_results', 'delete_tasks'])
  test(`${name} touches next to nothing while nothing is due`, async () => {
    const { buffers, rows } = await touchLeast(name);
    assert.equal(rows, 0);
    assert.ok(buffers <= 30, `${buffers} buffers`);
  });

test('a page of dead letters touches what it shows and little more, be it the first or one in the middle', async () => {
  const first = await touch('list_finished');
  const [middle] = await world.rows<{ at: number }>('SELECT avg(finished_at)::bigint AS at FROM task_scheduler_tasks');
  const params = paramsOf('list_finished').with(6, middle!.at);
  const later = await touch('list_finished', params);
  const one = await touch('list_finished', params.with(3, 'refused'));
  assert.deepEqual([first.rows, later.rows, one.rows], [PAGE, PAGE, PAGE]);
  for (const { buffers } of [first, later, one]) assert.ok(buffers <= PAGE * 12, `${buffers} buffers`);
});

test('a claim beside a million delayed tasks, as many new ones and as many retries touches no more than any other', async () => {
  const large = await touch('claim_tasks');
  const small = await touch('claim_tasks', paramsOf('claim_tasks').with(0, 'small'));
  assert.deepEqual([large.rows, small.rows], [CLAIM, CLAIM]);
  // One level more of each index; nothing that grows with the number of rows.
  assert.ok(large.buffers <= small.buffers * 1.3, `${large.buffers} buffers instead of ${small.buffers}`);
});

test(`a claim of ${CLAIM} from two million Pending touches few buffers, also behind many that were claimed before`, async () => {
  const fresh = await touchLeast('claim_tasks');
  await world.setQueue('default', { concurrency_limit: 1_000_000 });
  const one = await world.instance();
  for (let i = 0; i < 50; i++) assert.equal((await one.claim(await world.queue(), CLAIM)).tasks.length, CLAIM);
  const behind = await touchLeast('claim_tasks');
  for (const { buffers, rows } of [fresh, behind]) {
    assert.equal(rows, CLAIM);
    assert.ok(buffers <= CLAIM * BUFFERS_A_TASK, `${buffers} buffers`);
  }
});

test('behind claims that a long transaction keeps from being vacuumed, one that begins at their places touches no more', async (t) => {
  const holder = new pg.Client(world.url);
  await holder.connect();
  t.after(() => holder.end());
  await holder.query('BEGIN ISOLATION LEVEL REPEATABLE READ');
  await holder.query('SELECT count(*) FROM queues');
  const one = await world.instance();
  const from = [0, 0, 0, 0, 0];
  for (let i = 0; i < 50; i++)
    for (const { level, place, retry } of (await one.claim(await world.queue(), CLAIM)).tasks)
      if (!retry) from[level - 1] = Math.max(from[level - 1]!, Number(place));
  const params = paramsOf('claim_tasks').with(2, 0);
  const walk = await touch('claim_tasks', params);
  const marked = await touch('claim_tasks', params.with(12, from));
  assert.equal(marked.rows, CLAIM);
  assert.ok(marked.buffers <= CLAIM * BUFFERS_A_TASK, `${marked.buffers} buffers`);
  assert.ok(walk.buffers >= marked.buffers + 1_000, `${walk.buffers} instead of ${marked.buffers} buffers`);
  const look = await touch('find_claimable', [['default'], from]);
  assert.ok(look.buffers <= 20, `${look.buffers} buffers of a look`);
});

/** Plans of all that ran inside of a statement, as PostgreSQL itself logs them; what it did is rolled back. */
async function nestedPlans(on: pg.Client, name: string, mode: string): Promise<Explained[]> {
  const plans: Explained[] = [];
  const note = ({ message }: { message?: string | undefined }) => {
    if (message?.startsWith('duration:')) plans.push(JSON.parse(message.slice(message.indexOf('{'))) as Explained);
  };
  on.on('notice', note);
  await on.query(`
    LOAD 'auto_explain';
    BEGIN;
    SET LOCAL auto_explain.log_min_duration = 0;
    SET LOCAL auto_explain.log_nested_statements = on;
    SET LOCAL auto_explain.log_format = json;
    SET LOCAL client_min_messages = log;
    SET LOCAL plan_cache_mode = ${mode}`);
  await on.query(statements[name]!, paramsOf(name));
  await on.query('ROLLBACK');
  on.off('notice', note);
  return plans;
}

// Last in this file: what was rolled back is in the indexes still.
const NESTED = { submit_tasks: 10, claim_tasks: 2, settle_attempts: 2, order_versions: 2, list_reasons: 2 };
for (const [name, least] of Object.entries(NESTED))
  for (const mode of ['force_custom_plan', 'force_generic_plan'])
    test(`nothing inside ${name} reads a large table from end to end (${mode})`, async () => {
      const plans = await nestedPlans(client, name, mode);
      assert.ok(plans.length >= least, `${plans.length} plans were seen`);
      for (const { Plan: plan, 'Query Text': text } of plans) assert.deepEqual(fullScans(plan), [], text ?? name);
    });

/** What reaches a table that grows by less than a task's or an attempt's key, or a place in line. */
function wideScans(plan: Plan): string[] {
  const { 'Node Type': type, 'Relation Name': table, 'Index Name': index, 'Index Cond': condition = '' } = plan;
  const wide = LARGE.includes(table!) && type.includes('Scan') && !/task_id|attempt_id|level/.test(condition);
  return [...(wide ? [`${type} of ${table}: ${index} ${condition}`] : []), ...(plan.Plans ?? []).flatMap(wideScans)];
}

for (const name of ['submit_tasks', 'claim_tasks', 'settle_attempts'] as const)
  test(`the plans of ${name} that a connection keeps are right, though they were made over empty tables`, async () => {
    const empty = await createWorld('plans_empty');
    const one = new pg.Client(empty.url);
    try {
      await empty.instance();
      await one.connect();
      const plans = await nestedPlans(one, name, 'force_custom_plan');
      // Again with tasks that are known, so that no part is left out.
      await one.query(statements.submit_tasks!, paramsOf('submit_tasks'));
      plans.push(...(await nestedPlans(one, name, 'force_custom_plan')));
      assert.ok(plans.length > NESTED[name], `${plans.length} plans were seen`);
      assert.deepEqual(
        plans.flatMap(({ Plan: plan }) => wideScans(plan)),
        [],
      );
    } finally {
      await one.end();
      await empty.end();
    }
  });
