/** Which store is in force, and rebuilds, in the model (src/limiter/opening.ts). */
import { accepts, bit, drop } from './limiter.ts';
import type { Scope, State } from './state.ts';
import * as m from './state.ts';

export function look(state: State, scope: Scope, by: number): void {
  const one = state.instances[by]!;
  const index = m.storeOf(scope, by);
  const held = state.stores[index]!;
  if (m.epochOf(state, index) === state.force) {
    one.epoch = held;
    one.looks = 0;
    for (const attempt of state.attempts)
      if ((attempt.release[by]! & m.DEFERRED) !== 0) {
        drop(scope, attempt, by);
        attempt.release[by]! &= ~m.DEFERRED;
      }
    return;
  }
  one.look = 1;
  one.looks += 1;
  one.sawStore = held;
  one.sawForce = state.force;
  if (scope.broken === 'rebuild reads before the bump') markOpen(state, by);
}

function lookAgain(state: State, by: number): void {
  const one = state.instances[by]!;
  one.look = 0;
  one.next = 0;
  one.sawStore = 0;
  one.sawForce = 0;
  for (const attempt of state.attempts) attempt.marks[by]! &= ~m.LISTED;
}

export function bump(state: State, scope: Scope, by: number): void {
  const one = state.instances[by]!;
  if (state.force !== one.sawForce) {
    lookAgain(state, by);
    return;
  }
  state.force = ++state.epochs;
  state.seenBy = by;
  one.next = state.force;
  one.sawForce = 0;
  one.look = scope.broken === 'rebuild reads before the bump' ? 3 : 2;
}

function markOpen(state: State, by: number): void {
  for (const attempt of state.attempts) if (attempt.db === m.OPEN) attempt.marks[by]! |= m.LISTED;
}

export function readOpen(state: State, by: number): void {
  markOpen(state, by);
  state.instances[by]!.look = 3;
}

export function rebuild(state: State, scope: Scope, by: number): string | undefined {
  const one = state.instances[by]!;
  const index = m.storeOf(scope, by);
  const before = state.stores[index]!;
  if (before !== one.sawStore && scope.broken !== 'rebuild overwrites') {
    lookAgain(state, by);
    return undefined;
  }
  for (const attempt of state.attempts) {
    drop(scope, attempt, by);
    if ((attempt.marks[by]! & m.LISTED) !== 0) attempt.slots |= bit(scope, by);
  }
  const undone = m.epochOf(state, index) === state.force && before !== one.next;
  state.stores[index] = one.next;
  if (index === 0) state.aged = 0;
  one.look = 4;
  one.sawStore = 0;
  return undone ? 'a late rebuild undoes the store in force' : undefined;
}

/** Those that closed since they were read: their own releases named the epoch before. */
export function releaseClosed(state: State, scope: Scope, by: number): void {
  const { next } = state.instances[by]!;
  if (accepts(state, scope, by, next))
    for (const attempt of state.attempts)
      if ((attempt.marks[by]! & m.LISTED) !== 0 && attempt.db !== m.OPEN) drop(scope, attempt, by);
  lookAgain(state, by);
}
