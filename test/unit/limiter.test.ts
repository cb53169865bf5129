/** The limiter's two decisions, as tables. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { planOpening } from '../../src/limiter/opening.ts';
import { planReconcile } from '../../src/limiter/reconcile.ts';
import { createUndelivered } from '../../src/limiter/undelivered.ts';

const ME = 'me';
const row = (epoch: string, seenBy: string, ageMs: number) => ({
  backend: 'redis',
  epoch,
  seen_by: seenBy,
  age_ms: ageMs,
});
const OPENINGS = [
  ['there never was a store', { epoch: null, valid: false }, undefined, 'rebuild'],
  ['the store holds the epoch in force', { epoch: 'e1', valid: true }, row('e1', 'other', 0), 'open'],
  ['the same, not proven for long', { epoch: 'e1', valid: true }, row('e1', 'other', 99_000), 'open'],
  ['the data was lost; I proved it last', { epoch: 'e1', valid: false }, row('e1', ME, 0), 'rebuild'],
  ['the data was lost; another proved it just now', { epoch: 'e1', valid: false }, row('e1', 'other', 0), 'degraded'],
  ['the data was lost; nobody proves it any more', { epoch: 'e1', valid: false }, row('e1', 'other', 3_000), 'rebuild'],
  ['the store is empty; another is in force', { epoch: null, valid: false }, row('e1', 'other', 2_999), 'degraded'],
  ['an older epoch; another is in force', { epoch: 'e0', valid: true }, row('e1', 'other', 2_999), 'degraded'],
  ['an older epoch; nobody proves the other', { epoch: 'e0', valid: true }, row('e1', 'other', 3_000), 'rebuild'],
  ['an older epoch; I proved the other', { epoch: 'e0', valid: true }, row('e1', ME, 0), 'rebuild'],
] as const;

for (const [when, held, inForce, plan] of OPENINGS)
  test(`opening: ${when} -> ${plan}`, () => assert.equal(planOpening(held, inForce, ME), plan));

/** Touched at; a retry's by `[touchedAt]`. */
const slots = (entries: Record<string, Record<string, number | [number]>>) =>
  new Map(
    Object.entries(entries).map(([queue, ids]) => [
      queue,
      new Map(
        Object.entries(ids).map(([id, touched]) =>
          typeof touched === 'number'
            ? [id, { touchedAt: touched, retry: false }]
            : [id, { touchedAt: touched[0], retry: true }],
        ),
      ),
    ]),
  );
const open = (fresh: Record<string, string[]>, retries: Record<string, string[]> = {}) =>
  new Map(
    [...new Set([...Object.keys(fresh), ...Object.keys(retries)])].map((queue) => [
      queue,
      { fresh: fresh[queue] ?? [], retries: retries[queue] ?? [] },
    ]),
  );
const hold = (fresh: string[] = [], retries: string[] = []) => ({ fresh, retries });

test('reconciling: nothing held, nothing open, or the same on both sides: nothing to do', () => {
  assert.deepEqual(planReconcile(slots({ q: { x: 1, r: [1] } }), open({ q: ['x'] }, { q: ['r'] }), 100), []);
  assert.deepEqual(planReconcile(slots({}), open({}), 100), []);
});
test('reconciling: only slots without an open attempt and not younger than the cut-off are dropped', () => {
  assert.deepEqual(
    planReconcile(slots({ q: { old: 99, edge: [100], young: 101, busy: 1 } }), open({ q: ['busy'] }), 100),
    [{ queue: 'q', drop: ['old', 'edge'], hold: hold(), missing: 0 }],
  );
});
test('reconciling: open attempts without a slot are added, also in queues that have no slot at all', () => {
  assert.deepEqual(planReconcile(slots({ b: { x: 1 } }), open({ b: ['x', 'y'], a: ['z'] }, { a: ['r'] }), 0), [
    { queue: 'a', drop: [], hold: hold(['z'], ['r']), missing: 2 },
    { queue: 'b', drop: [], hold: hold(['y']), missing: 1 },
  ]);
});
test('reconciling: an id is looked for in its own queue only', () => {
  assert.deepEqual(planReconcile(slots({ a: { x: 1 } }), open({ b: ['x'] }), 5), [
    { queue: 'a', drop: ['x'], hold: hold(), missing: 0 },
    { queue: 'b', drop: [], hold: hold(['x']), missing: 1 },
  ]);
});
test('reconciling: marks are put right by the attempts, once nobody is about to confirm the slot', () => {
  const held = slots({ q: { new: [100], retry: 100, youngNew: [101], youngRetry: 101 } });
  assert.deepEqual(planReconcile(held, open({ q: ['new', 'youngNew'] }, { q: ['retry', 'youngRetry'] }), 100), [
    { queue: 'q', drop: [], hold: hold(['new'], ['retry']), missing: 0 },
  ]);
});

test('undelivered releases are kept once an id, up to a bound, and taken once', () => {
  const undelivered = createUndelivered();
  undelivered.add('a', ['1', '2']);
  undelivered.add('a', ['2']);
  undelivered.add('b', ['3']);
  assert.equal(undelivered.count(), 3);
  assert.deepEqual(undelivered.takeAll(), [
    ['a', ['1', '2']],
    ['b', ['3']],
  ]);
  assert.deepEqual(undelivered.takeAll(), []);
  undelivered.add(
    'a',
    Array.from({ length: 20_000 }, (_, i) => String(i)),
  );
  undelivered.add('b', ['one more']);
  assert.equal(undelivered.count(), 10_000);
});
