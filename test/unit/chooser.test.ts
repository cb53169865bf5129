/** Which levels the claims serve. `claim` below takes from a line as claim_tasks.sql does; the database does it in test/db. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type Chooser, createChooser, type Line } from '../../src/pusher/chooser.ts';

const DEFAULT = [80, 60, 40, 30, 20];
const CLASSIC = [80, 0, 0, 0, 20];
const ENDLESS = Number.POSITIVE_INFINITY;

const chooserAt = (phase: number): Chooser => createChooser(() => phase);

/** What waits at each level, level 1 first. */
type Backlog = number[];

/** The `room` lowest positions among what waits, in their order; taken off the backlog. */
function take(line: Line, backlog: Backlog, room: number): number[] {
  const offered = line.levels.flatMap((level, i) =>
    Array.from({ length: Math.min(backlog[i]!, room) }, (_, j) => ({
      level,
      position: line.starts[i]! + (j + 1) * line.strides[i]!,
    })),
  );
  const taken = offered.sort((a, b) => a.position - b.position || a.level - b.level).slice(0, room);
  for (const { level } of taken) backlog[level - 1]! -= 1;
  return taken.map(({ level }) => level);
}

function claim(chooser: Chooser, weights: number[], backlog: Backlog, room: number): number[] {
  const levels = take(chooser.line(weights, false), backlog, room);
  chooser.record(levels.map((level) => ({ level, retry: false })));
  return levels;
}

function claimMany(chooser: Chooser, weights: number[], backlog: Backlog, rooms: number[]): number[] {
  return rooms.flatMap((room) => claim(chooser, weights, backlog, room));
}

const endless = (...levels: number[]): Backlog =>
  [1, 2, 3, 4, 5].map((level) => (levels.includes(level) ? ENDLESS : 0));
const count = (levels: number[], level: number): number => levels.filter((one) => one === level).length;
const ones = (length: number): number[] => Array.from({ length }, () => 1);
/** Least and most claims of `level` in any `width` consecutive ones. */
function spread(levels: number[], level: number, width: number): [least: number, most: number] {
  const counts = levels.slice(0, -width + 1).map((_, i) => count(levels.slice(i, i + width), level));
  return [Math.min(...counts), Math.max(...counts)];
}

test('with only levels 1 and 5 in use the default weights give the classic 80/20', () => {
  const levels = claimMany(chooserAt(0.3), DEFAULT, endless(1, 5), ones(1000));
  assert.equal(count(levels, 1), 800);
  assert.equal(count(levels, 5), 200);
});

test('turns are spread evenly: of any five claims at 80 and 20 exactly one is the second', () => {
  for (const phase of [0, 0.25, 0.5, 0.999])
    assert.deepEqual(spread(claimMany(chooserAt(phase), CLASSIC, endless(1, 5), ones(500)), 5, 5), [1, 1]);
});

test('all five levels get their weight of the turns', () => {
  const levels = claimMany(chooserAt(0.7), DEFAULT, endless(1, 2, 3, 4, 5), ones(2300));
  for (const [i, weight] of DEFAULT.entries())
    assert.ok(Math.abs(count(levels, i + 1) - weight * 10) <= 1, `level ${i + 1}: ${count(levels, i + 1)}`);
});

test('inside a claim of many the levels alternate as they do over claims of one', () => {
  const one = claimMany(chooserAt(0.5), DEFAULT, endless(1, 3, 5), ones(384));
  const many = claimMany(chooserAt(0.5), DEFAULT, endless(1, 3, 5), [128, 128, 128]);
  assert.deepEqual(many, one);
});

test('the ratio holds over claims of any size', () =>
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 128 }), { minLength: 20, maxLength: 40 }),
      fc.double({ min: 0, max: 0.999, noNaN: true }),
      (rooms, phase) => {
        const levels = claimMany(chooserAt(phase), CLASSIC, endless(1, 5), rooms);
        assert.ok(Math.abs(count(levels, 5) - levels.length / 5) <= 1);
      },
    ),
  ));

test('the turns of empty levels go to the others by weight', () => {
  const levels = claimMany(chooserAt(0.1), DEFAULT, endless(2, 4), ones(900));
  assert.equal(count(levels, 2), 600);
  assert.equal(count(levels, 4), 300);
});

test('a lone level takes every turn, whichever it is', () => {
  for (const level of [1, 2, 3, 4, 5])
    assert.equal(count(claimMany(chooserAt(0.5), DEFAULT, endless(level), ones(50)), level), 50);
});

test('a level whose tasks run out inside a claim leaves the rest of it to the others', () => {
  const levels = claim(chooserAt(0), CLASSIC, [3, 0, 0, 0, ENDLESS], 100);
  assert.equal(count(levels, 1), 3);
  assert.equal(count(levels, 5), 97);
});

test('weight 0 is served only when all other levels are empty', () => {
  const weights = [80, 0, 40, 0, 20];
  const chooser = chooserAt(0.5);
  const backlog: Backlog = [30, ENDLESS, 0, 5, 20];
  const levels = claimMany(chooser, weights, backlog, [10, 20, 10, 10, 20]);
  assert.ok(levels.slice(0, 50).every((level) => level === 1 || level === 5));
  assert.ok(levels.slice(50).every((level) => level === 2 || level === 4));
  backlog[4] = 1;
  assert.deepEqual(claim(chooser, weights, backlog, 2), [5, 2]);
});

test('turns taken at weight 0 cost the other levels nothing', () => {
  const chooser = chooserAt(0.5);
  claimMany(chooser, CLASSIC, endless(2), ones(100));
  assert.deepEqual(spread(claimMany(chooser, CLASSIC, endless(1, 2, 5), ones(100)), 5, 5), [1, 1]);
});

test('with every weight 0 whatever waits is served', () => {
  const levels = claimMany(chooserAt(0.5), [0, 0, 0, 0, 0], [1, 0, 2, 0, 1], [2, 5]);
  assert.deepEqual(levels.toSorted(), [1, 3, 3, 5]);
});

test('a level that was empty for long has saved up no turns', () => {
  const chooser = chooserAt(0.5);
  claimMany(chooser, CLASSIC, endless(1), ones(10_000));
  const levels = claimMany(chooser, CLASSIC, endless(1, 5), ones(200));
  assert.ok(count(levels.slice(0, 5), 5) <= 2, `${levels.slice(0, 5)}`);
  assert.deepEqual(spread(levels.slice(5), 5, 5), [1, 1]);
});

test('a level that was alone for long owes nothing when another returns', () => {
  const chooser = chooserAt(0.5);
  claimMany(chooser, CLASSIC, endless(5), ones(10_000));
  const levels = claimMany(chooser, CLASSIC, endless(1, 5), ones(200));
  assert.ok(spread(levels, 5, 5)[0] >= 1, `${levels}`);
  assert.ok(spread(levels, 5, 10)[1] <= 3, `${levels}`);
});

test('changed weights count from the next claim on', () => {
  const chooser = chooserAt(0.5);
  claimMany(chooser, CLASSIC, endless(1, 5), ones(100));
  assert.equal(count(claimMany(chooser, [50, 0, 0, 0, 50], endless(1, 5), ones(100)), 5), 50);
  assert.equal(count(claimMany(chooser, [20, 0, 0, 0, 80], endless(1, 5), ones(100)), 5), 80);
});

test('a claim that got nothing moves nothing on', () => {
  const [idle, busy] = [chooserAt(0.5), chooserAt(0.5)];
  for (let i = 0; i < 50; i++) claim(idle, CLASSIC, endless(), 10);
  assert.deepEqual(
    claimMany(idle, CLASSIC, endless(1, 5), ones(20)),
    claimMany(busy, CLASSIC, endless(1, 5), ones(20)),
  );
});

test('the phase decides where the second level falls, so that instances do not move in step', () => {
  const first = [0, 0.2, 0.4, 0.6, 0.8].map((phase) =>
    claimMany(createChooser(stepping(0, phase)), CLASSIC, endless(1, 5), ones(5)).indexOf(5),
  );
  assert.ok(new Set(first).size >= 3, `${first}`);
});

test('positions stay exact after millions of turns', () => {
  const chooser = chooserAt(0.5);
  const line = chooser.line(DEFAULT, false);
  for (let i = 0; i < 20_000; i++) claimMany(chooser, DEFAULT, endless(1, 2, 5), [128]);
  const after = chooser.line(DEFAULT, false);
  for (const [i, start] of after.starts.entries()) assert.ok(Math.abs(start) <= line.strides[i]! * 1.0001);
});

test('up to eight instances together give level 5 at least 15% of any 200 consecutive claims', () =>
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 8 }),
      fc.array(fc.tuple(fc.nat(7), fc.integer({ min: 1, max: 128 })), { minLength: 30, maxLength: 60 }),
      fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 40, maxLength: 40 }),
      (instances, turns, phases) => {
        const choosers = Array.from({ length: instances }, (_, i) => createChooser(stepping(...phases.slice(i * 5))));
        const levels = turns.flatMap(([who, room]) => claim(choosers[who % instances]!, DEFAULT, endless(1, 5), room));
        if (levels.length >= 200) assert.ok(spread(levels, 5, 200)[0] >= 30);
      },
    ),
    { numRuns: 50 },
  ));

test('the lane that had the last turn of a level leaves the next one to the other', () => {
  const chooser = chooserAt(0.5);
  const firsts = () => chooser.line(DEFAULT, false).retryFirst;
  assert.deepEqual(firsts(), [false, false, false, false, false]);
  chooser.record([
    { level: 1, retry: false },
    { level: 1, retry: true },
    { level: 2, retry: false },
  ]);
  assert.deepEqual(firsts(), [false, true, false, false, false]);
  chooser.record([{ level: 1, retry: false }]);
  assert.deepEqual(firsts(), [true, true, false, false, false]);
  chooser.record([]);
  assert.deepEqual(firsts(), [true, true, false, false, false]);
});

test('over all levels the lane that had the last turn leaves the next one to the other', () => {
  const chooser = chooserAt(0.5);
  const turns = [false, true, true, false].map((retry, i) => {
    chooser.record([{ level: 1 + i, retry }]);
    return chooser.line(DEFAULT, true).retryTurn;
  });
  assert.deepEqual(turns, [true, false, false, true]);
});

/** Claims of one, where the lanes take turns over all levels and each has endless backlogs at some of them. */
function claimAcross(
  chooser: Chooser,
  weights: number[],
  fresh: readonly number[],
  retries: readonly number[],
): string {
  const line = chooser.line(weights, true);
  const lane = line.retryTurn ? retries : fresh;
  const starts = line.retryTurn ? line.retryStarts : line.starts;
  const next = (level: number) => starts[level - 1]! + line.strides[level - 1]!;
  const level = lane.toSorted((a, b) => next(a) - next(b) || a - b)[0]!;
  chooser.record([{ level, retry: line.retryTurn! }]);
  return `${line.retryTurn ? 'r' : 'n'}${level}`;
}

test('where lanes take turns over all levels, up to eight instances still give level 5 its 15% of any 200 claims', () =>
  fc.assert(
    fc.property(
      fc.constantFrom([1], [5], [1, 5]),
      fc.array(fc.nat(7), { minLength: 300, maxLength: 300 }),
      fc.integer({ min: 1, max: 8 }),
      fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 40, maxLength: 40 }),
      (retries, turns, instances, phases) => {
        const choosers = Array.from({ length: instances }, (_, i) => createChooser(stepping(...phases.slice(i * 5))));
        const claimed = turns.map((who) => claimAcross(choosers[who % instances]!, DEFAULT, [1, 5], retries));
        const levels = claimed.map((one) => Number(one[1]));
        assert.ok(spread(levels, 5, 200)[0] >= 30, `${claimed}`);
        const lanes = claimed.map((one) => (one[0] === 'r' ? 1 : 0));
        const [least, most] = spread(lanes, 1, 200);
        assert.ok(least >= 100 - instances && most <= 100 + instances, `${least} to ${most} retries`);
        const fresh5 = claimed.filter((one) => one === 'n5').length;
        assert.ok(fresh5 >= 8, `${fresh5} new ones of level 5`);
      },
    ),
    { numRuns: 300 },
  ));

/** The values in turn, then again from the first. */
function stepping(...values: number[]): () => number {
  let i = 0;
  return () => values[i++ % values.length]!;
}
