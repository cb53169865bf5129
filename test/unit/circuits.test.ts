/** What an instance makes of its pushes and of the records it sees. The records themselves: test/db/targets.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Circuits, createCircuits } from '../../src/pusher/circuits.ts';

const A = 'http://a.test/';
const B = 'http://b.test/';
const target = (url: string) => ({ url, mode: 'async' as const, batch: 1, push_timeout_ms: 1_000 });
/** A push to A claimed at that time of PostgreSQL. */
const push = (claimedAt: number, url = A) => ({ target: target(url), started_at: String(claimedAt) });
const broken = (failures: number, failedAt: number, waitMs = 60_000) => ({
  url: A,
  failures,
  wait_ms: waitMs,
  failed_at: failedAt,
  error: 'connect ECONNREFUSED',
});
const learn = (circuits: Circuits, ...records: ReturnType<typeof broken>[]) =>
  circuits.learn(performance.now(), [A, B], records);
const state = (circuits: Circuits, url = A) => circuits.stateOf(url).state;
/** The first push after which the target is to be left alone, counted from 1; 0: none. `true` fails. */
const opensAt = (pushes: readonly boolean[], circuits = createCircuits()): number =>
  1 + pushes.findIndex((fails) => (fails ? circuits.failed(push(1)) : circuits.passed(push(1))));
const repeat = (count: number, ...fails: boolean[]): boolean[] => Array.from({ length: count }, () => fails).flat();

test('more than half of the pushes must fail, of ten at least', () => {
  assert.equal(opensAt(repeat(9, true)), 0);
  assert.equal(opensAt(repeat(10, true)), 10);
  assert.equal(opensAt([...repeat(9, false), ...repeat(9, true)]), 0);
  assert.equal(opensAt([...repeat(9, false), ...repeat(10, true)]), 19);
  assert.equal(opensAt(repeat(100, true, false)), 11, 'one more failure than answers');
  assert.equal(opensAt(repeat(100, false, true)), 0);
});

test('only the last fifty count', () => {
  assert.equal(opensAt([...repeat(1_000, false), ...repeat(25, true)]), 0);
  assert.equal(opensAt([...repeat(1_000, false), ...repeat(26, true)]), 1_026);
});

test('each target is judged by its own pushes', () => {
  const circuits = createCircuits();
  for (let i = 0; i < 9; i++) circuits.failed(push(1, B));
  assert.equal(circuits.failed(push(1)), false);
  assert.equal(circuits.failed(push(1, B)), true);
});

test('while it is broken one failure is enough, and one answer shows that it is back', () => {
  const circuits = createCircuits();
  learn(circuits, broken(1, 100, 0));
  assert.equal(state(circuits), 'half_open');
  assert.equal(circuits.failed(push(101)), true);
  assert.equal(circuits.passed(push(101)), true);
  assert.equal(circuits.passed(push(101)), false, 'told once');
  assert.deepEqual([state(circuits), circuits.errorOf(A)], ['ramping', null]);
  assert.equal(opensAt(repeat(9, true), circuits), 0);
});

test('failures from before it was broken are forgotten once it is back', () => {
  const circuits = createCircuits();
  for (let i = 0; i < 9; i++) circuits.failed(push(1));
  learn(circuits, broken(1, 100));
  learn(circuits);
  for (let i = 0; i < 9; i++) assert.equal(circuits.failed(push(200)), false);
});

test('a push that was claimed before the failure on record tells nothing', () => {
  const circuits = createCircuits();
  learn(circuits, broken(2, 100, 0));
  assert.ok(circuits.isOld(push(99)) && !circuits.isOld(push(100)) && !circuits.isOld(push(99, B)));
  assert.equal(circuits.failed(push(99)), false);
  assert.equal(circuits.passed(push(99)), false);
  assert.equal(state(circuits), 'half_open');
});

test('what a statement saw is not taken for news by the time something newer is known', () => {
  const circuits = createCircuits();
  const sent = performance.now();
  learn(circuits, broken(1, 100));
  assert.deepEqual(circuits.learn(sent - 1, [A], []), []);
  assert.equal(state(circuits), 'open');
  assert.deepEqual(learn(circuits), [A], 'no longer broken');
  assert.ok(circuits.allClosed());
});

test('a target that is no longer one of the queue is forgotten', () => {
  const circuits = createCircuits();
  learn(circuits, broken(1, 100));
  circuits.keep([B]);
  assert.ok(circuits.allClosed());
  assert.equal(state(circuits), 'closed');
});

test('how long it is left alone', () => {
  const circuits = createCircuits();
  assert.equal(circuits.waitMs(A), null);
  learn(circuits, broken(0, 100, 5_000));
  const waitMs = circuits.waitMs(A)!;
  assert.ok(waitMs > 4_000 && waitMs <= 5_000, `${waitMs}`);
  learn(circuits, broken(0, 100, 0));
  assert.deepEqual([circuits.waitMs(A), state(circuits)], [0, 'ramping']);
});
