/** Ways through the model, drawn so that every pair of steps that can follow each other is among them. */
import { nextWithoutFault } from './explore.ts';
import type { Taken } from './replay.ts';
import type { Scope, State } from './state.ts';
import * as m from './state.ts';
import { type Next, type Step, show, successors } from './steps.ts';

/** A look that rebuilds in vain this often gives up for a while, which the model does not. */
const MAX_LOOKS = 2;
const MAX_STEPS = 30;
/** A way that has shown nothing new for so long is ended. */
const PATIENCE = 4;
const MAX_END = 60;

/** A small random number generator (mulberry32): the same ways each time. */
export function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const isReplayable = ({ state }: Next): boolean => state.instances.every(({ looks }) => looks <= MAX_LOOKS);

export const pairOf = (first: Taken | undefined, second: { step: Taken['step'] }): string =>
  `${first?.step.kind ?? 'begin'} ${second.step.kind}`;

/**
 * One way: as `start` says, then at each step what is `wanted`, or what leads to it. Then without further faults to the
 * end, so that what was begun is seen to end well.
 */
function walk(scope: Scope, start: readonly string[], random: () => number, wanted: ReadonlySet<string>): Taken[] {
  const way: Taken[] = [];
  const left = new Set(wanted);
  let state = m.begin(scope);
  for (let idle = 0; way.length < start.length || (way.length < MAX_STEPS && idle < PATIENCE); ) {
    const given = start[way.length];
    const next = successors(state, scope).filter((one) => isReplayable(one) && isGiven(one, given));
    if (next.length === 0) break;
    const worth = next.map((one) => worthOf(one, way.at(-1), left, scope) + random());
    const taken = next[worth.indexOf(Math.max(...worth))]!;
    idle = left.delete(pairOf(way.at(-1), taken)) ? 0 : idle + 1;
    way.push(taken);
    state = taken.state;
  }
  return [...way, ...endOf(state, scope)];
}

/** A step, or a kind of steps. */
const isGiven = ({ step }: Next, given: string | undefined): boolean =>
  given === undefined || show(step) === given || step.kind === given;

function worthOf(one: Next, last: Taken | undefined, left: ReadonlySet<string>, scope: Scope): number {
  if (left.has(pairOf(last, one))) return 2;
  return successors(one.state, scope).some((later) => left.has(pairOf(one, later))) ? 1 : 0;
}

function endOf(start: State, scope: Scope): Taken[] {
  const way: Taken[] = [];
  for (let state = start; way.length < MAX_END; ) {
    const next = nextWithoutFault(state, successors(state, scope).filter(isReplayable));
    if (!next) break;
    way.push(next);
    state = next.state;
  }
  return way;
}

/** Ways that together show every pair of steps that `pairs` has and `shown` has not; they are in `shown` afterwards. */
export function draw(scope: Scope, pairs: ReadonlyMap<string, Step[]>, shown: Set<string>, seed: number): Taken[][] {
  const random = seeded(seed);
  const wanted = new Set([...pairs.keys()].filter((pair) => !shown.has(pair)));
  const ways: Taken[][] = [];
  // Longest first: on its way there it shows others.
  const order = [...wanted].sort((a, b) => pairs.get(b)!.length - pairs.get(a)!.length);
  for (const pair of order) {
    if (!wanted.has(pair)) continue;
    const start = [...pairs.get(pair)!.map(show), pair.split(' ')[1]!];
    const way = walk(scope, start, random, wanted);
    for (const [i, taken] of way.entries()) wanted.delete(pairOf(way[i - 1], taken));
    for (const [i, taken] of way.entries()) shown.add(pairOf(way[i - 1], taken));
    ways.push(way);
  }
  return ways;
}
