/**
 * Looks at every state that the protocol can reach, breadth first, so that the first breach found is one of the
 * shortest. Checks in each: the promises of docs/reliability.md; and that what was begun ends well without any further
 * fault: each state's first faultless step leads to another, and following them leads to a state where all is done.
 */
import type { Scope, State } from './state.ts';
import * as m from './state.ts';
import { type Kind, type Next, type Step, show, successors } from './steps.ts';

export type Explored = {
  states: number;
  edges: number;
  /** Null: every invariant holds, and what was begun ends. */
  breach: { what: string; trace: Step[] } | null;
  /** Most steps without a fault until all was done, from any state. */
  longestEnd: number;
};

/** What was found, in the order in which it was. Arrays run in step: a state's index is its name. */
type Found = {
  /** Null once it was looked at. */
  states: (State | null)[];
  /** The step that led to it first, and from where. */
  steps: Step[];
  parents: number[];
  /** Where its first step without a fault leads; itself, when all is over; -1 when there is none. */
  ends: number[];
};

/** What is wrong with a state; null when nothing is. */
export function breachOf(state: State, scope: Scope): string | null {
  const { attempts } = state;
  const outstanding = attempts.filter(m.isOutstanding).length;
  if (outstanding > scope.limit) return `2: ${outstanding} attempts are outstanding, the limit is ${scope.limit}`;
  const inForce = m.storeInForce(state);
  for (const attempt of attempts) {
    const { n, db, stage } = attempt;
    if (db >= m.APPLIED && m.isOutstanding(attempt)) return `5: attempt ${n} is closed while its parser works on it`;
    const confirmed = db === m.OPEN && (attempt.parser === m.WORKS || stage.includes(m.TO_PUSH));
    if (confirmed && inForce >= 0 && !m.holds(attempt, inForce)) return `5: attempt ${n} is open without a slot`;
  }
  const undisturbed = state.faults === scope.faults && scope.stores === 1;
  if (undisturbed && isQuiet(state) && m.inUse(state, 0) !== attempts.filter(({ db }) => db === m.OPEN).length)
    return '5: traffic has stopped and slots differ from open attempts';
  return null;
}

const isQuiet = ({ attempts, instances }: State): boolean =>
  instances.every(({ round, look, repair }) => round + look + repair === 0) &&
  attempts.every(({ stage, release }) => stage[0] + stage[1] + release[0] + release[1] === 0);

/** Every task has ended, a store is in force, and nothing is held there. */
const isOver = (state: State): boolean => {
  const inForce = m.storeInForce(state);
  const isLeft = (attempt: m.Attempt) => attempt.db === m.OPEN || m.holds(attempt, inForce);
  return inForce >= 0 && state.submits === 0 && state.tasks.every(m.isDone) && !state.attempts.some(isLeft);
};

/** The step that comes next when no fault does. */
export const nextWithoutFault = (state: State, next: readonly Next[]): Next | undefined =>
  next.find(({ state: after }) => after.faults === state.faults);

export function explore(scope: Scope, onEdge?: (from: number, step: Step, to: number) => void): Explored {
  const found: Found = { states: [], steps: [], parents: [], ends: [] };
  const known = new Map<string, number>();
  let edges = 0;
  const reach = (state: State, from: number, step: Step): number => {
    const key = m.keyOf(state);
    const index = known.get(key) ?? found.states.push(state) - 1;
    if (index < known.size) return index;
    known.set(key, index);
    found.parents[index] = from;
    found.steps[index] = step;
    return index;
  };
  const explored = (breach: Explored['breach'], longestEnd = 0): Explored => ({
    states: found.states.length,
    edges,
    breach,
    longestEnd,
  });

  reach(m.begin(scope), 0, { kind: 'submit', by: -1, n: -1 });
  for (let index = 0; index < found.states.length; index++) {
    const state = found.states[index]!;
    found.states[index] = null;
    found.ends[index] = isOver(state) ? index : -1;
    const next = successors(state, scope);
    const first = nextWithoutFault(state, next);
    for (const one of next) {
      edges += 1;
      const what = one.breach ?? breachOf(one.state, scope);
      if (what) return explored({ what, trace: [...pathTo(found, index), one.step] });
      const to = reach(one.state, index, one.step);
      onEdge?.(index, one.step, to);
      if (one === first && found.ends[index] === -1) found.ends[index] = to;
    }
  }
  const { endless, longest } = followEnds(found);
  if (endless === null) return explored(null, longest);
  return explored({ what: '1: what was begun does not end', trace: pathTo(found, endless) });
}

function pathTo({ parents, steps }: Pick<Found, 'parents' | 'steps'>, index: number): Step[] {
  const path: Step[] = [];
  for (let at = index; at > 0; at = parents[at]!) path.push(steps[at]!);
  return path.reverse();
}

/** The first state from which the steps without a fault lead nowhere or in a circle, and how long the others take. */
function followEnds({ ends }: Found): { endless: number | null; longest: number } {
  const distance: number[] = [];
  let longest = 0;
  for (const start of ends.keys()) {
    const way = new Set<number>();
    let at = start;
    for (; distance[at] === undefined && ends[at] !== at; at = ends[at]!) {
      if (ends[at] === -1 || way.has(at)) return { endless: start, longest };
      way.add(at);
    }
    let steps = distance[at] ?? 0;
    distance[at] = steps;
    for (const passed of [...way].reverse()) distance[passed] = ++steps;
    longest = Math.max(longest, steps);
  }
  return { endless: null, longest };
}

/** `a b`: a step of kind b can follow one of kind a; with the shortest way to where it can. */
export function findPairs(scope: Scope): Map<string, Step[]> {
  const first = new Map<number, Step>();
  const parents = [0];
  const origins: Map<Kind, { from: number; step: Step }>[] = [];
  const after: Set<Kind>[] = [];
  explore(scope, (from, step, to) => {
    if (parents[to] === undefined) {
      parents[to] = from;
      first.set(to, step);
    }
    origins[to] ??= new Map();
    if (!origins[to].has(step.kind)) origins[to].set(step.kind, { from, step });
    after[from] ??= new Set();
    after[from].add(step.kind);
  });
  const steps = parents.map((_, index) => first.get(index)!);
  const pairs = new Map<string, Step[]>();
  for (const [index, kinds] of origins.entries())
    for (const [before, { from, step }] of kinds ?? [])
      for (const kind of after[index] ?? [])
        if (!pairs.has(`${before} ${kind}`))
          pairs.set(`${before} ${kind}`, [...pathTo({ parents, steps }, from), step]);
  return pairs;
}

/** The states after each of these steps. Throws where one is not possible. */
export function follow(scope: Scope, trace: readonly string[]): { step: Step; state: State }[] {
  let state = m.begin(scope);
  return trace.map((wanted) => {
    const next = successors(state, scope);
    const found = next.find(({ step }) => show(step) === wanted);
    if (!found)
      throw new Error(`'${wanted}' is not possible here; only ${next.map(({ step }) => show(step)).join(', ')}`);
    state = found.state;
    return found;
  });
}
