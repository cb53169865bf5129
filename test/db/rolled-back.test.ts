/** Statements that failed: whether anything of them may have been committed. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import pg from 'pg';
import { createDb, type Db, wasRolledBack } from '../../src/db.ts';
import type { AppError } from '../../src/errors.ts';
import { createLog } from '../../src/log.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/ports.ts';
import { freshDatabase } from '../support/postgres.ts';

const STATEMENTS = {
  quick: 'SELECT 1 AS one',
  wait: 'SELECT pg_sleep(60)',
  fail: 'SELECT 1 / 0',
  lock: 'SELECT pg_advisory_lock(1)',
};

function open(t: TestContext, url: string): Db {
  const db = createDb({ url, poolMax: 1, statements: STATEMENTS, log: createLog('silent') });
  t.after(() => db.close());
  return db;
}

/** What it is rejected with. */
const failureOf = (statement: Promise<unknown>): Promise<unknown> =>
  statement.then(
    () => assert.fail('it succeeded'),
    (error) => error,
  );

test('a statement is known to have changed nothing when it failed in PostgreSQL or was never sent', async (t) => {
  const { url } = await freshDatabase('rolled_back');
  const other = new pg.Client({ connectionString: url });
  await other.connect();
  t.after(() => other.end());
  await other.query('SELECT pg_advisory_lock(1)');
  const db = open(t, url);

  assert.equal(wasRolledBack(await failureOf(db.query('fail', []))), true);
  const locked = await failureOf(db.query('lock', []));
  assert.deepEqual([(locked as AppError).code, wasRolledBack(locked)], ['task_locked', true]);

  const broken = failureOf(db.query('wait', []));
  // The pool's only connection is in use for longer than anybody waits for one.
  const unsent = await failureOf(db.query('quick', []));
  assert.deepEqual([(unsent as AppError).code, wasRolledBack(unsent)], ['store_unavailable', true]);
  await eventually(async () => {
    const { rowCount } = await other.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()`,
    );
    return rowCount === 1;
  });
  const ended = await broken;
  assert.deepEqual([(ended as AppError).code, wasRolledBack(ended)], ['store_unavailable', false]);
  assert.deepEqual(await db.query('quick', []), [{ one: 1 }], 'the pool goes on');
});

test('and when nobody listens', async (t) => {
  const refused = await failureOf(
    open(t, `postgres://nobody@127.0.0.1:${await freePort()}/nothing`).query('quick', []),
  );
  assert.deepEqual([(refused as AppError).code, wasRolledBack(refused)], ['store_unavailable', true]);
});

test('whatever language PostgreSQL speaks', () => {
  const said = (severity: string, code: string) =>
    Object.assign(new pg.DatabaseError('why', 1, 'error'), { severity, code });
  assert.equal(wasRolledBack(said('FEHLER', '55P03')), true);
  assert.equal(wasRolledBack(said('FATAL', '57P01')), false);
});
