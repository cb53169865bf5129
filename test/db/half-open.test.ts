/** A pool of connections, some of them half-open, over a real PostgreSQL and a proxy that swallows. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createDb } from '../../src/db.ts';
import type { AppError } from '../../src/errors.ts';
import { createLog } from '../../src/log.ts';
import { loadStatements } from '../../src/schema.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startProxy } from '../support/proxy.ts';

/** Twice the time after which PostgreSQL is asked about a connection. */
const SLOW_S = 6;
/** Half of the time-out of statements, which would end the wait for a half-open connection too. */
const FOUND_MS = 15_000;

test('a slow statement is waited for, one on a half-open connection is not, and the pool goes on', async (t) => {
  const { url } = await freshDatabase('half_open');
  const proxy = await startProxy(t, url);
  const statements = { ...loadStatements(), slow: 'SELECT pg_sleep($1)', quick: 'SELECT 1 AS one' };
  const log = createLog('silent');
  const direct = createDb({ url, poolMax: 1, statements, log });
  const proxied = createDb({ url: proxy.url, poolMax: 3, statements, log });
  t.after(() => Promise.all([direct.close(), proxied.close()]));

  const began = performance.now();
  const slow = direct.query('slow', [SLOW_S]).then(() => performance.now() - began);
  await Promise.all([1, 2, 3].map(() => proxied.query('quick', [])));
  assert.equal(proxied.stats().idle, 3);
  assert.equal(proxy.leaveHalfOpen(), 3);
  await assert.rejects(proxied.query('quick', []), (error) => (error as AppError).code === 'store_unavailable');
  assert.ok(performance.now() - began < FOUND_MS, 'long before the time-out of statements');
  // None of the others is tried: that would fail.
  await Promise.all([1, 2, 3, 4].map(() => proxied.query('quick', [])));
  assert.ok((await slow) >= 1_000 * SLOW_S);
});
