/** Settings of queues under concurrency: the environment's change beside new queues, and reads beside writes. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type pg from 'pg';
import { loadConfig } from '../../src/config.ts';
import type { Db } from '../../src/db.ts';
import { createQueues } from '../../src/queues.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, queueNames, type World } from '../support/world.ts';

const nextName = queueNames();
let world: World;
before(async () => {
  world = await createWorld('queues');
});
after(() => world.end());

/** Two connections, in transactions of their own. */
async function withTwo(work: (one: pg.PoolClient, two: pg.PoolClient) => Promise<void>): Promise<void> {
  const [one, two] = [await world.sql.connect(), await world.sql.connect()];
  try {
    await work(one, two);
  } finally {
    one.release(true);
    two.release(true);
  }
}
const WAITING = `SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`;
const someoneWaits = () => eventually(async () => (await world.rows(WAITING)).length > 0);
const setDefaults = (client: pg.PoolClient, maxRetries: number) =>
  client.query(
    `SELECT docsched_set_queue_defaults(d.settings || jsonb_build_object('max_retries', $1::int)) FROM queue_defaults d`,
    [maxRetries],
  );
const create = (client: pg.PoolClient, queue: string) =>
  client.query('INSERT INTO queues (queue) VALUES ($1)', [queue]);
const maxRetriesOf = async (queue: string) =>
  (await world.rows<{ n: number }>('SELECT max_retries AS n FROM queues WHERE queue = $1', [queue]))[0]!.n;

test('a queue created while the settings of the environment change gets the new ones', () =>
  withTwo(async (one, two) => {
    const queue = nextName();
    await one.query('BEGIN');
    await setDefaults(one, 11);
    const created = create(two, queue);
    await someoneWaits();
    await one.query('COMMIT');
    await created;
    assert.equal(await maxRetriesOf(queue), 11);
  }));

test('a change of the settings of the environment reaches a queue that is being created', () =>
  withTwo(async (one, two) => {
    const queue = nextName();
    await one.query('BEGIN');
    await create(one, queue);
    const changed = setDefaults(two, 12);
    await someoneWaits();
    await one.query('COMMIT');
    await changed;
    assert.equal(await maxRetriesOf(queue), 12);
  }));

test('a change of the environment and one of the API at once are both kept', () =>
  withTwo(async (one, two) => {
    const queue = await world.addQueue(nextName());
    await one.query('BEGIN');
    await one.query(`UPDATE queues SET own = '{"concurrency_limit": 77}' WHERE queue = $1`, [queue]);
    const changed = setDefaults(two, 13);
    await someoneWaits();
    await one.query('COMMIT');
    await changed;
    const [row] = await world.rows('SELECT concurrency_limit, max_retries FROM queues WHERE queue = $1', [queue]);
    assert.deepEqual(row, { concurrency_limit: 77, max_retries: 13 });
  }));

/** A database whose answers come when the test says so. */
function slowDb() {
  const asked: { name: string; answer: (rows: unknown[]) => void; fail: (error: Error) => void }[] = [];
  const query = (name: string) =>
    new Promise((answer, fail) => asked.push({ name, answer: answer as (rows: unknown[]) => void, fail }));
  return { db: { query } as unknown as Db, asked };
}
const row = (limit: number) => ({ queue: 'default', concurrency_limit: limit, targets: [], defaults: {} });

test('whoever loads after a change sees it, also while an earlier read is under way', async () => {
  const { db, asked } = slowDb();
  const queues = createQueues({ db, config: loadConfig({}), onChanged: () => {}, log: world.log });
  const [earlier, later] = [queues.load(), queues.load()];
  await eventually(() => asked.length > 0);
  assert.equal(asked.length, 1, 'one read at a time');
  asked[0]!.answer([row(1)]);
  await earlier;
  await eventually(() => asked.length === 2);
  asked[1]!.answer([row(2)]);
  await later;
  assert.equal(queues.get('default')!.concurrency_limit, 2);
});

test("a read that fails is its caller's trouble alone", async () => {
  const { db, asked } = slowDb();
  const queues = createQueues({ db, config: loadConfig({}), onChanged: () => {}, log: world.log });
  const [first, second] = [queues.load(), queues.load()];
  const failed = assert.rejects(first, /away/);
  await eventually(() => asked.length === 1);
  asked[0]!.fail(new Error('away'));
  await failed;
  await eventually(() => asked.length === 2);
  asked[1]!.answer([row(3)]);
  await second;
  assert.equal(queues.get('default')!.concurrency_limit, 3);
});
