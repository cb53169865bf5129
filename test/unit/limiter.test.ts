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

const slots = (entries: Record<string, Record<string, number>>) =>
  new Map(Object.entries(entries).map(([queue, ids]) => [queue, new Map(Object.entries(ids))]));
const open = (entries: Record<string, string[]>) => new Map(Object.entries(entries));

test('reconciling: nothing held, nothing open, or the same on both sides: nothing to do', () => {
  assert.deepEqual(planReconcile(slots({ q: { x: 1 } }), open({ q: ['x'] }), 100), []);
  assert.deepEqual(planReconcile(slots({}), open({}), 100), []);
});
test('reconciling: only slots without an open attempt and not younger than the cut-off are dropped', () => {
  assert.deepEqual(
    planReconcile(slots({ q: { old: 99, edge: 100, young: 101, busy: 1 } }), open({ q: ['busy'] }), 100),
    [{ queue: 'q', drop: ['old', 'edge'], add: [] }],
  );
});
test('reconciling: open attempts without a slot are added, also in queues that have no slot at all', () => {
  assert.deepEqual(planReconcile(slots({ b: { x: 1 } }), open({ b: ['x', 'y'], a: ['z'] }), 0), [
    { queue: 'a', drop: [], add: ['z'] },
    { queue: 'b', drop: [], add: ['y'] },
  ]);
});
test('reconciling: an id is looked for in its own queue only', () => {
  assert.deepEqual(planReconcile(slots({ a: { x: 1 } }), open({ b: ['x'] }), 5), [
    { queue: 'a', drop: ['x'], add: [] },
    { queue: 'b', drop: [], add: ['x'] },
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
