/** Slots versus open attempts, in the model (src/limiter/reconcile.ts). */
import { accepts, bit, closed, drop } from './limiter.ts';
import type { Scope, State } from './state.ts';
import * as m from './state.ts';

/** stopped: what somebody still has in hand is old enough to be dropped, too. */
export function list(state: State, scope: Scope, by: number, stopped: boolean): void {
  const one = state.instances[by]!;
  if (!accepts(state, scope, by)) {
    closed(state, by);
    return;
  }
  for (const attempt of state.attempts) {
    const held = m.holds(attempt, m.storeOf(scope, by));
    if (held) attempt.marks[by]! |= stopped || !m.isInHand(attempt) ? m.TO_DROP : m.YOUNG;
    if (scope.broken === 'attempts read before slots' && attempt.db === m.OPEN) attempt.marks[by]! |= m.TO_HOLD;
  }
  one.repair = 1;
  one.repairEpoch = one.epoch;
}

/** Slots listed and attempts read: what is held without an open attempt goes, what is open without a slot comes. */
export function compare(state: State, scope: Scope, by: number): void {
  const early = scope.broken === 'attempts read before slots';
  let needed = false;
  for (const attempt of state.attempts) {
    const marks = attempt.marks[by]!;
    const old = early ? m.holds(attempt, m.storeOf(scope, by)) : (marks & m.TO_DROP) !== 0;
    const held = old || (marks & m.YOUNG) !== 0;
    const open = early ? (marks & m.TO_HOLD) !== 0 : attempt.db === m.OPEN;
    attempt.marks[by]! &= ~(m.TO_DROP | m.TO_HOLD | m.YOUNG);
    if (old && !open) attempt.marks[by]! |= m.TO_DROP;
    if (open && !held) attempt.marks[by]! |= m.TO_HOLD;
    needed ||= (attempt.marks[by]! & (m.TO_DROP | m.TO_HOLD)) !== 0;
  }
  endRepair(state, by, needed ? 2 : 0, m.LATE | m.LISTED | m.TO_DROP | m.TO_HOLD);
}

function endRepair(state: State, by: number, phase: number, keep: number): void {
  const one = state.instances[by]!;
  one.repair = phase;
  if (phase === 0) one.repairEpoch = 0;
  for (const attempt of state.attempts) attempt.marks[by]! &= keep;
}

export function repair(state: State, scope: Scope, by: number): void {
  const { repairEpoch } = state.instances[by]!;
  if (!accepts(state, scope, by, repairEpoch)) {
    endRepair(state, by, 0, m.LATE | m.LISTED);
    closed(state, by, repairEpoch);
    return;
  }
  let added = false;
  for (const attempt of state.attempts) {
    if ((attempt.marks[by]! & m.TO_DROP) !== 0) drop(scope, attempt, by);
    if ((attempt.marks[by]! & m.TO_HOLD) !== 0 && !m.holds(attempt, m.storeOf(scope, by))) {
      attempt.slots |= bit(scope, by);
      attempt.marks[by]! |= m.ADDED;
      added = true;
    }
  }
  endRepair(state, by, added ? 3 : 0, m.LATE | m.LISTED | m.ADDED);
}

/** What was added may have closed since it was read. */
export function checkAdded(state: State, scope: Scope, by: number): void {
  const { repairEpoch } = state.instances[by]!;
  const gone = state.attempts.filter((attempt) => (attempt.marks[by]! & m.ADDED) !== 0 && attempt.db !== m.OPEN);
  const refused = gone.length > 0 && !accepts(state, scope, by, repairEpoch);
  if (!refused) for (const attempt of gone) drop(scope, attempt, by);
  endRepair(state, by, 0, m.LATE | m.LISTED);
  if (refused) closed(state, by, repairEpoch);
}
