/** What PostgreSQL's statements do in the model: claim_tasks, find_attempts, settle_attempts, cancel_task, submit. */

import type { Attempt, Scope, State } from './state.ts';
import * as m from './state.ts';

export type Verdict = 'success' | 'failure' | 'late' | 'uncounted';

/** Tasks in the order in which they are claimed: of versions, the highest that waits. */
export function claimable({ tasks }: State, { tasks: kind, broken }: Scope): number[] {
  const waiting = [...tasks.keys()].filter((index) => tasks[index]!.status === m.PENDING);
  if (kind === 'two') return waiting;
  return broken === 'claim without the higher-version check' ? waiting.slice(0, 1) : waiting.slice(-1);
}

/**
 * The rows that the instance's ids of the first stage get, which brings them to the second, in one commit; none under
 * another epoch than the one in force.
 */
export function claim(
  state: State,
  scope: Scope,
  by: number,
  [from, to]: readonly [number, number],
  epoch: number,
): string | undefined {
  if (epoch !== state.force && scope.broken !== 'claim without the epoch') return undefined;
  const chosen = claimable(state, scope);
  const ids = state.attempts.filter(({ stage }) => stage[by] === from);
  let breach: string | undefined;
  for (const [i, index] of chosen.slice(0, ids.length).entries()) {
    const id = ids[i]!;
    id.task = index;
    id.db = m.OPEN;
    id.stage[by] = to;
    const task = state.tasks[index]!;
    task.status = m.PROCESSING;
    task.attempt = id.n;
    if (scope.tasks === 'versions' && state.tasks.some(({ status }, other) => other > index && status === m.PENDING))
      breach = `4: version ${index} is claimed before a waiting newer one`;
  }
  return breach;
}

/** After a claim that was not answered. What is not found may still be committed, so it is not given back. */
export function lookUp(state: State, by: number): void {
  const one = state.instances[by]!;
  const ids = state.attempts.filter(({ stage }) => stage[by] === m.IN_ROUND || stage[by] === m.CLAIMED);
  if (ids.some((attempt) => attempt.db === m.OPEN)) {
    one.round = 2;
    for (const id of ids)
      if (id.db === m.OPEN) id.stage[by] = m.isCurrent(state, id) ? m.CLAIMED : m.CANCELLED;
      else id.stage[by] = m.IN_ROUND;
    return;
  }
  const floats = one.round === 3;
  for (const id of ids) id.stage[by] = floats ? m.FLOATING : m.NOTHING;
  one.floatEpoch = floats ? one.roundEpoch : 0;
  one.round = 0;
  one.roundEpoch = 0;
}

/** The commit of a claim that nobody waits for any more. */
export function commitLate(state: State, scope: Scope, by: number): string | undefined {
  const one = state.instances[by]!;
  const breach = claim(state, scope, by, [m.FLOATING, m.NOTHING], one.floatEpoch);
  for (const { stage } of state.attempts) if (stage[by] === m.FLOATING) stage[by] = m.NOTHING;
  one.floatEpoch = 0;
  return breach;
}

/** Closes an attempt and moves its task; the release follows. Who comes second changes nothing and releases again. */
export function close(state: State, scope: Scope, attempt: Attempt, verdict: Verdict, by: number): string | undefined {
  const task = state.tasks[attempt.task]!;
  if (attempt.db !== m.OPEN) {
    attempt.release[by]! |= m.DUE;
    if (scope.broken !== 'no attempt guard' || task.status !== m.PROCESSING || verdict === 'late') return undefined;
    move(task, verdict, scope);
    return `3: the report of attempt ${attempt.n}, which was closed, moved its task`;
  }
  if (verdict === 'late' && !attempt.expired && scope.broken !== 'time-out without a second look') return undefined;
  const applies = m.isCurrent(state, attempt);
  attempt.db = applies && verdict !== 'late' && verdict !== 'uncounted' ? m.APPLIED : m.CLOSED;
  attempt.release[by]! |= m.DUE;
  if (applies) move(task, verdict, scope);
  return undefined;
}

function move(task: m.Task, verdict: Verdict, { maxRetries }: Scope): void {
  task.attempt = 0;
  if (verdict === 'success') task.status = m.SUCCESS;
  else if (verdict === 'uncounted') task.status = m.PENDING;
  else if (task.retries < maxRetries) {
    task.status = m.PENDING;
    task.retries += 1;
  } else task.status = m.FAILED;
}

/** An attempt that is open stays open, and keeps its slot. */
export function cancel(state: State, scope: Scope, index: number): void {
  const task = state.tasks[index]!;
  const attempt = state.attempts.find(({ n }) => n === task.attempt);
  if (scope.broken === 'cancel frees the slot' && attempt) attempt.slots = 0;
  task.status = m.STOPPED;
  task.attempt = 0;
}

/** The decision table of docs/design.md, policy `keep`. */
export function submit(state: State, scope: Scope, index: number): string | undefined {
  state.submits -= 1;
  const task = state.tasks[index]!;
  const known = state.tasks.findLastIndex(({ status }) => status !== m.NO_ROW);
  const floor = scope.broken === 'no version floor' ? known : Math.max(known, state.floor);
  if (index < floor) return undefined;
  const breach = index < state.accepted ? `4: version ${index} is accepted after version ${state.accepted}` : undefined;
  state.floor = index;
  state.accepted = Math.max(state.accepted, index);
  if (task.status >= m.FAILED) state.tasks[index] = { status: m.PENDING, retries: 0, attempt: 0 };
  return breach;
}

export function clean(state: State, index: number): void {
  state.tasks[index] = { status: m.NO_ROW, retries: 0, attempt: 0 };
}
