/** The part of the pool that submits and reads have. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { apiShare, createDbShare } from '../../src/db-share.ts';
import { AppError } from '../../src/errors.ts';

/** A database whose statements end when they are told to. */
function heldDb() {
  const running: ((rows: never[]) => void)[] = [];
  const query = () => new Promise<never[]>((resolve) => running.push(resolve));
  return { running, db: { query } as unknown as Db };
}
const turn = () => new Promise((resolve) => setImmediate(resolve));

test('three connections are left to others, of a small pool half', async () => {
  for (const [poolMax, most] of [
    [10, 7],
    [4, 2],
    [2, 1],
  ] as const) {
    const { db, running } = heldDb();
    const share = createDbShare({ db, max: apiShare(poolMax) });
    const all = Array.from({ length: 12 }, () => share.query('any', []));
    await turn();
    assert.equal(running.length, most);
    for (let i = 0; i < all.length; i++) {
      running[i]!([]);
      await turn();
      assert.equal(running.length, Math.min(12, most + i + 1));
    }
    await Promise.all(all);
  }
});

test('who waits for a connection for five seconds, or behind two thousand others, is refused', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { db, running } = heldDb();
  const share = createDbShare({ db, max: 1 });
  const refused = (error: unknown) => error instanceof AppError && error.code === 'overloaded';
  const first = share.query('any', []);
  const waiting = Array.from({ length: 2_000 }, () => assert.rejects(share.query('any', []), refused));
  await assert.rejects(share.query('any', []), refused);
  t.mock.timers.tick(5_000);
  await Promise.all(waiting);
  running[0]!([]);
  await first;
  const next = share.query('any', []);
  running[1]!([]);
  await next;
});
