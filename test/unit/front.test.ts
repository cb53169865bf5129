import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BEGINNING, createFront } from '../../src/pusher/front.ts';

const WALK_MS = 10;
const task = (place: number, level = 1, retry = false) => ({ level, place: String(place), retry });

/** A front on a clock that the test moves. */
function scripted() {
  let now = 0;
  const front = createFront(() => now);
  const step = (ms: number, places: number[], { level = 1, tookMs = WALK_MS } = {}) => {
    now += ms;
    const begin = front.begin();
    front.found(
      begin,
      places.map((place) => task(place, level)),
      tookMs,
    );
    return begin;
  };
  return { front, step, pass: (ms: number) => (now += ms) };
}

test('claims begin at the highest place of their level that was claimed a quarter of a second ago', () => {
  const { step } = scripted();
  assert.deepEqual(step(0, [1, 2, 3], { tookMs: 10_000 }).places, BEGINNING);
  assert.deepEqual(step(249, [4]).places, BEGINNING);
  assert.deepEqual(step(1, [5]).places, BEGINNING);
  assert.deepEqual(step(249, [6], { level: 2 }).places, BEGINNING);
  assert.deepEqual(step(1, [7]).places, [4, 0, 0, 0, 0]);
  assert.deepEqual(step(250, [8]).places, [5, 6, 0, 0, 0]);
});

test('a walk that is asked for is the next claim, or the one after that under way', () => {
  const { front, step } = scripted();
  step(0, [1], { tookMs: 500 });
  assert.equal(step(1, []).full, false);
  front.walk();
  assert.equal(step(0, []).full, true);
  front.walk();
  const under = front.begin();
  front.walk();
  front.found(under, [], 500);
  assert.equal(step(0, []).full, true);
  assert.equal(step(0, []).full, false);
});

test('walks take a twentieth of the time, and there is one every 30 s', () => {
  const { front, step } = scripted();
  assert.equal(step(0, [1]).full, true);
  assert.equal(front.walkInMs(), 20 * WALK_MS);
  assert.equal(step(199, [2]).full, false);
  assert.equal(step(1, [3], { tookMs: 5_000 }).full, true);
  assert.equal(step(29_999, []).full, false);
  assert.equal(step(1, []).full, true);
});

test('while a walk finds what stands before its mark there is nothing but walks', () => {
  const { front, step } = scripted();
  step(0, [100]);
  step(1_000, [101]);
  step(1_000, [102]);
  assert.deepEqual(step(200, [99, 103]).full, true);
  assert.equal(front.walkInMs(), 0);
  assert.equal(step(0, [90]).full, true);
  assert.equal(step(0, [102]).full, true);
  assert.equal(step(0, [104]).full, false);
});

test('retries move no mark, wherever they stand', () => {
  const { front, pass } = scripted();
  front.found(front.begin(), [task(50), task(900, 1, true)], WALK_MS);
  pass(1_000);
  front.begin();
  pass(1_000);
  const begin = front.begin();
  front.found(begin, [task(3, 1, true)], WALK_MS);
  assert.equal(front.walkInMs(), 20 * WALK_MS);
  assert.deepEqual(front.begin().places, [50, 0, 0, 0, 0]);
});
