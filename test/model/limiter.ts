/** What the limiter's calls do in the model: acquire, confirm, release; and what a crash and a lost store leave. */

import type { Attempt, Scope, State } from './state.ts';
import * as m from './state.ts';

const idsOfRound = (state: State, by: number): Attempt[] =>
  state.attempts.filter((attempt) => attempt.stage[by] === m.IN_ROUND || isClaimed(attempt, by));
const isClaimed = ({ stage }: Attempt, by: number): boolean => stage[by] === m.CLAIMED || stage[by] === m.CANCELLED;
export const bit = (scope: Scope, by: number): number => 1 << m.storeOf(scope, by);

/** Whether the store does what the instance asks under this epoch. */
export function accepts(state: State, scope: Scope, by: number, epoch = state.instances[by]!.epoch): boolean {
  return epoch !== 0 && m.epochOf(state, m.storeOf(scope, by)) === epoch;
}

/** The store refused the epoch: nothing is done until the next look. */
export function closed(state: State, by: number, epoch = state.instances[by]!.epoch): void {
  if (state.instances[by]!.epoch === epoch) state.instances[by]!.epoch = 0;
}

export function drop(scope: Scope, attempt: Attempt, by: number): void {
  attempt.slots &= ~bit(scope, by);
}

/** All free slots: a claim asks for more than any limit here. */
function take(state: State, scope: Scope, by: number): Attempt[] {
  const free = Math.max(0, scope.limit - m.inUse(state, m.storeOf(scope, by)));
  const taken = Array.from(
    { length: free },
    (): Attempt => ({
      n: ++state.names,
      task: -1,
      db: m.NONE,
      slots: bit(scope, by),
      expired: 0,
      parser: m.UNSENT,
      stage: [0, 0],
      release: [0, 0],
      marks: [0, 0],
    }),
  );
  state.attempts.push(...taken);
  return taken;
}

export function acquire(state: State, scope: Scope, by: number): void {
  const one = state.instances[by]!;
  if (!accepts(state, scope, by)) {
    closed(state, by);
    return;
  }
  for (const attempt of take(state, scope, by)) attempt.stage[by] = m.IN_ROUND;
  one.round = 1;
  one.roundEpoch = one.epoch;
}

/** Slots that may have been taken are given back when the store is there again. */
export function acquireUnanswered(state: State, scope: Scope, by: number): void {
  for (const attempt of take(state, scope, by)) attempt.release[by]! |= m.DEFERRED;
  closed(state, by);
}

function endRound(state: State, by: number): void {
  const one = state.instances[by]!;
  one.round = 0;
  one.roundEpoch = 0;
}

/** A claimed id keeps its slot, or takes a free one, while there is room, its own not counted. */
export function confirm(state: State, scope: Scope, by: number): void {
  const ids = idsOfRound(state, by);
  endRound(state, by);
  if (!accepts(state, scope, by)) {
    for (const id of ids) {
      if (!isClaimed(id, by)) id.release[by]! |= m.DEFERRED;
      id.stage[by] = isClaimed(id, by) ? m.TO_GIVE_BACK : m.NOTHING;
    }
    closed(state, by);
    return;
  }
  const claimed = ids.filter((id) => isClaimed(id, by));
  for (const id of ids) {
    if (claimed.includes(id)) continue;
    drop(scope, id, by);
    id.stage[by] = m.NOTHING;
  }
  for (const id of claimed) {
    drop(scope, id, by);
    const room = m.inUse(state, m.storeOf(scope, by)) < scope.limit;
    if (room) id.slots |= bit(scope, by);
    if (room && scope.broken !== 'repair drops what was touched since') touch(id);
    id.stage[by] = room && id.stage[by] === m.CLAIMED ? m.TO_PUSH : m.TO_GIVE_BACK;
  }
}

/** A reconciliation that saw the slot old does not drop it. */
function touch(attempt: Attempt): void {
  for (const by of [0, 1])
    if ((attempt.marks[by]! & m.TO_DROP) !== 0) attempt.marks[by]! = (attempt.marks[by]! & ~m.TO_DROP) | m.YOUNG;
}

/** It was done, but nobody knows: nothing is sent, and the unused slots are given back later. */
export function confirmUnanswered(state: State, scope: Scope, by: number): void {
  const ids = idsOfRound(state, by);
  const claimed = ids.filter((id) => isClaimed(id, by));
  confirm(state, scope, by);
  for (const id of ids) {
    if (claimed.includes(id)) id.stage[by] = m.TO_GIVE_BACK;
    else id.release[by]! |= m.DEFERRED;
  }
  closed(state, by);
}

export function skipConfirm(state: State, scope: Scope, by: number): void {
  for (const id of idsOfRound(state, by)) {
    if (!isClaimed(id, by)) drop(scope, id, by);
    id.stage[by] = isClaimed(id, by) ? m.TO_PUSH : m.NOTHING;
  }
  endRound(state, by);
}

export function release(state: State, scope: Scope, attempt: Attempt, by: number): void {
  if (accepts(state, scope, by)) {
    drop(scope, attempt, by);
    attempt.release[by]! &= ~m.DUE;
  } else {
    attempt.release[by] = m.DEFERRED;
    closed(state, by);
  }
}

/** It was done, but nobody knows: it is done again later. */
export function releaseUnanswered(state: State, scope: Scope, attempt: Attempt, by: number): void {
  drop(scope, attempt, by);
  attempt.release[by] = m.DEFERRED;
  closed(state, by);
}

/** The process dies; another is started in its place. */
export function crash(state: State, by: number): void {
  const { looks: _, ...gone } = state.instances[by]!;
  for (const name of Object.keys(gone) as (keyof typeof gone)[]) state.instances[by]![name] = 0;
  state.instances[by]!.looks = 0;
  if (state.seenBy === by) state.seenBy = -1;
  for (const attempt of state.attempts) {
    attempt.stage[by] = m.NOTHING;
    attempt.release[by] = 0;
    attempt.marks[by] = 0;
  }
}

export function lose(state: State, index: number): void {
  if (m.epochOf(state, index) === state.force) state.seenBy = -1;
  state.stores[index] = 0;
  if (index === 0) state.aged = 0;
  for (const attempt of state.attempts) attempt.slots &= ~(1 << index);
}

/** Restarted with a snapshot, or replaced by a replica: whatever it holds may be older than what it answered last. */
export function age(state: State): void {
  if (m.epochOf(state, 0) === state.force) state.seenBy = -1;
  state.aged = 1;
}
