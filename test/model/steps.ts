/**
 * Every step that may be next, and what it does. What one script or one statement does is one step; between two of
 * them anything else may happen, and an instance that is not named in a step is stopped for as long as one likes.
 *
 * Time: that an instance is stopped for longer than ACQUIRE_TTL_MS, past a deadline, or for so long that another takes
 * over its store, may happen at any moment and counts as a fault. So nothing that holds here hangs on how long anything
 * takes.
 */
import * as db from './database.ts';
import * as store from './limiter.ts';
import * as opening from './opening.ts';
import * as reconcile from './reconcile.ts';
import type { Attempt, Scope, State } from './state.ts';
import * as m from './state.ts';

export const KINDS = [
  'submit',
  'clean',
  'cancel',
  'acquire',
  'acquire-unanswered',
  'claim',
  'claim-uncommitted',
  'claim-unanswered',
  'look-up',
  'commit-late',
  'confirm',
  'confirm-unanswered',
  'push-accepted',
  'push-in-doubt',
  'push-lost',
  'push-busy',
  'push-failed',
  'push-late',
  'settle',
  'callback-success',
  'callback-failure',
  'release',
  'release-unanswered',
  'deadline',
  'progress',
  'find-late',
  'close-late',
  'look',
  'take-over',
  'bump',
  'read-open',
  'rebuild',
  'release-closed',
  'list',
  'list-stopped',
  'compare',
  'repair',
  'check-added',
  'crash',
  'lose-store',
  'age-store',
  'expire-slot',
] as const;
export type Kind = (typeof KINDS)[number];

/** by: the instance, -1 for nobody. n: the attempt's name or the task's index, -1 for none. */
export type Step = { kind: Kind; by: number; n: number };
export type Next = { step: Step; state: State; breach: string | null };

export const show = ({ kind, by, n }: Step): string =>
  [by >= 0 ? 'AB'[by] : '-', kind, ...(n >= 0 ? [n] : [])].join(' ');

/** Changes a state; answers what it broke, if anything. */
type Change = (state: State) => unknown;
/** What may be next: by itself, or as a fault, of which a run may hold only so many. */
type Moves = {
  add(kind: Kind, by: number, n: number, change: Change): void;
  fault(kind: Kind, by: number, n: number, change: Change): void;
};

/** In an order that, its first step without a fault taken each time, ends all that was begun (see explore.ts). */
export function successors(state: State, scope: Scope): Next[] {
  const found: Next[] = [];
  const take = (faults: number) => (kind: Kind, by: number, n: number, change: Change) => {
    if (faults > state.faults) return;
    const next = m.copy(state);
    next.faults -= faults;
    const breach = change(next);
    m.forget(next);
    found.push({ step: { kind, by, n }, state: next, breach: typeof breach === 'string' ? breach : null });
  };
  const moves = { add: take(0), fault: take(1) };
  for (const by of [0, 1]) rebuilds(state, scope, by, moves);
  for (const by of [0, 1]) looks(state, scope, by, moves);
  for (const by of [0, 1]) rounds(state, scope, by, moves);
  for (const by of [0, 1]) pushes(state, scope, by, moves);
  for (const by of scope.receivers) callbacks(state, scope, by, moves);
  for (const by of scope.watchers) jobs(state, scope, by, moves);
  for (const by of [0, 1]) crashes(state, by, moves);
  for (const attempt of state.attempts) times(state, scope, attempt, moves);
  for (const index of state.tasks.keys()) requests(state, scope, index, moves);
  for (const index of scope.stores === 2 ? [0, 1] : [0])
    if (state.stores[index] !== 0) moves.fault('lose-store', -1, index, (s) => store.lose(s, index));
  if (state.stores[0] !== 0 && !state.aged) moves.fault('age-store', -1, 0, store.age);
  return found;
}

/** For a change of one attempt. */
const on =
  ({ n }: Attempt, change: (attempt: Attempt, state: State) => unknown): Change =>
  (state) =>
    change(state.attempts.find((attempt) => attempt.n === n)!, state);

/** Acquire, claim, confirm. */
function rounds(state: State, scope: Scope, by: number, { add, fault }: Moves): void {
  const { round, epoch, roundEpoch, floatEpoch } = state.instances[by]!;
  const accepts = store.accepts(state, scope, by);
  const claimTo = (next: number) => (s: State) => {
    const breach = db.claim(s, scope, by, [m.IN_ROUND, m.CLAIMED], roundEpoch);
    s.instances[by]!.round = next;
    if (scope.broken === 'no confirm') store.skipConfirm(s, scope, by);
    return breach;
  };
  if (round === 0 && epoch !== 0 && db.claimable(state, scope).length > 0) {
    const room = m.inUse(state, m.storeOf(scope, by)) < scope.limit;
    if (!accepts || room) add('acquire', by, -1, (s) => store.acquire(s, scope, by));
    if (accepts && room) fault('acquire-unanswered', by, -1, (s) => store.acquireUnanswered(s, scope, by));
  }
  if (round === 1) {
    add('claim', by, -1, claimTo(2));
    fault('claim-unanswered', by, -1, claimTo(4));
    if (floatEpoch === 0) fault('claim-uncommitted', by, -1, (s) => Object.assign(s.instances[by]!, { round: 3 }));
  }
  if (round >= 3) add('look-up', by, -1, (s) => db.lookUp(s, by));
  if (floatEpoch !== 0) add('commit-late', by, -1, (s) => db.commitLate(s, scope, by));
  if (round === 2) {
    add('confirm', by, -1, (s) => store.confirm(s, scope, by));
    if (accepts) fault('confirm-unanswered', by, -1, (s) => store.confirmUnanswered(s, scope, by));
  }
}

/** What an instance settles by itself, by stage. */
const SETTLES: Partial<Record<number, db.Verdict>> = {
  [m.TO_GIVE_BACK]: 'uncounted',
  [m.TO_RETRY]: 'failure',
  [m.TO_COMMIT]: 'success',
};

/** Pushes and what follows from their answers. */
function pushes(state: State, scope: Scope, by: number, { add, fault }: Moves): void {
  for (const one of state.attempts) {
    const { n, expired } = one;
    const stage = one.stage[by]!;
    const answer = (parser: number, next: number) =>
      on(one, (attempt) => {
        attempt.parser = parser;
        attempt.stage[by] = next;
      });
    if (stage === m.TO_PUSH && expired) add('push-late', by, n, answer(m.UNSENT, m.TO_GIVE_BACK));
    if (stage === m.TO_PUSH && !expired) {
      const inDoubt = scope.broken === 'a push in doubt is given back' ? m.TO_GIVE_BACK : m.NOTHING;
      add('push-accepted', by, n, answer(m.WORKS, m.NOTHING));
      add('push-in-doubt', by, n, answer(m.WORKS, inDoubt));
      fault('push-lost', by, n, answer(m.UNSENT, inDoubt));
      fault('push-busy', by, n, answer(m.REFUSED, m.TO_GIVE_BACK));
      fault('push-failed', by, n, answer(m.REFUSED, m.TO_RETRY));
    }
    const verdict = SETTLES[stage];
    if (verdict)
      add(
        'settle',
        by,
        n,
        on(one, (attempt, s) => {
          attempt.stage[by] = m.NOTHING;
          if (stage === m.TO_COMMIT) attempt.parser = m.TOLD;
          return db.close(s, scope, attempt, verdict, by);
        }),
      );
    if ((one.release[by]! & m.DUE) !== 0) {
      add(
        'release',
        by,
        n,
        on(one, (attempt, s) => store.release(s, scope, attempt, by)),
      );
      if (store.accepts(state, scope, by))
        fault(
          'release-unanswered',
          by,
          n,
          on(one, (attempt, s) => store.releaseUnanswered(s, scope, attempt, by)),
        );
    }
  }
}

/** A parser may say it again: that is a fault. */
function callbacks(state: State, scope: Scope, by: number, { add, fault }: Moves): void {
  for (const one of state.attempts) {
    if (one.parser !== m.WORKS && one.parser !== m.TOLD) continue;
    const report = (verdict: db.Verdict) =>
      on(one, (attempt, s) => {
        if (scope.broken === 'release before commit' && attempt.db === m.OPEN) {
          store.drop(scope, attempt, by);
          attempt.stage[by] = m.TO_COMMIT;
          return undefined;
        }
        attempt.parser = m.TOLD;
        return db.close(s, scope, attempt, verdict, by);
      });
    const say = one.parser === m.TOLD ? fault : add;
    say('callback-success', by, one.n, report('success'));
    if (scope.maxRetries > 0) say('callback-failure', by, one.n, report('failure'));
  }
}

/** Which store is in force. Another's proof is waited for, unless who gave it is stopped or dead, or its store gone. */
function looks(state: State, scope: Scope, by: number, { add, fault }: Moves): void {
  const { look, epoch } = state.instances[by]!;
  const agree = m.epochOf(state, m.storeOf(scope, by)) === state.force;
  if (look !== 0 || (agree && epoch === state.force)) return;
  const waits = !agree && state.seenBy === 1 - by;
  if (!waits) add('look', by, -1, (s) => opening.look(s, scope, by));
  else if (epoch !== 0) add('look', by, -1, (s) => Object.assign(s.instances[by]!, { epoch: 0 }));
  if (waits) fault('take-over', by, -1, (s) => opening.look(s, scope, by));
}

function rebuilds(state: State, scope: Scope, by: number, { add }: Moves): void {
  const { look } = state.instances[by]!;
  if (look === 1) add('bump', by, -1, (s) => opening.bump(s, scope, by));
  if (look === 2) add('read-open', by, -1, (s) => opening.readOpen(s, by));
  if (look === 3) add('rebuild', by, -1, (s) => opening.rebuild(s, scope, by));
  if (look === 4) add('release-closed', by, -1, (s) => opening.releaseClosed(s, scope, by));
}

/** The watcher's: time-outs and reconciliation. */
function jobs(state: State, scope: Scope, by: number, { add, fault }: Moves): void {
  const isLate = ({ db: known, expired }: Attempt) => known === m.OPEN && expired === 1;
  const isFound = ({ marks }: Attempt) => (marks[by]! & m.LATE) !== 0;
  if (state.attempts.some(isFound))
    add('close-late', by, -1, (s) => {
      const found = s.attempts.filter(isFound);
      for (const attempt of found) attempt.marks[by]! &= ~m.LATE;
      return found.map((attempt) => db.close(s, scope, attempt, 'late', by)).find((breach) => breach !== undefined);
    });
  else if (state.attempts.some(isLate) && scope.broken !== 'no time-outs')
    add('find-late', by, -1, (s) => {
      for (const attempt of s.attempts.filter(isLate)) attempt.marks[by]! |= m.LATE;
    });
  const { repair, epoch } = state.instances[by]!;
  const index = m.storeOf(scope, by);
  const drifted = state.attempts.filter((attempt) => m.holds(attempt, index) !== (attempt.db === m.OPEN));
  if (repair === 0 && epoch !== 0 && scope.broken !== 'no reconciliation') {
    if (drifted.some((attempt) => !m.isInHand(attempt)))
      add('list', by, -1, (s) => reconcile.list(s, scope, by, false));
    if (drifted.some(m.isInHand)) fault('list-stopped', by, -1, (s) => reconcile.list(s, scope, by, true));
  }
  if (repair === 1) add('compare', by, -1, (s) => reconcile.compare(s, scope, by));
  if (repair === 2) add('repair', by, -1, (s) => reconcile.repair(s, scope, by));
  if (repair === 3) add('check-added', by, -1, (s) => reconcile.checkAdded(s, scope, by));
}

function crashes(state: State, by: number, { fault }: Moves): void {
  const { round, look, repair, epoch, floatEpoch } = state.instances[by]!;
  const mine = ({ stage, release, marks }: Attempt) => stage[by]! + release[by]! + marks[by]! > 0;
  if (round + look + repair + epoch + floatEpoch > 0 || state.attempts.some(mine))
    fault('crash', by, -1, (s) => store.crash(s, by));
}

/** Deadlines pass: without anybody being late where nobody is waited for. */
function times(state: State, scope: Scope, one: Attempt, { add, fault }: Moves): void {
  const { n, db: known, parser, expired, marks, slots } = one;
  const pass = on(one, (attempt) => Object.assign(attempt, { expired: 1 }));
  if (known === m.OPEN && !expired) (parser === m.WORKS || m.isInHand(one) ? fault : add)('deadline', -1, n, pass);
  const isFound = ((marks[0] | marks[1]) & m.LATE) !== 0;
  if (known === m.OPEN && expired && isFound && parser === m.WORKS && m.isCurrent(state, one))
    add(
      'progress',
      -1,
      n,
      on(one, (attempt) => Object.assign(attempt, { expired: 0 })),
    );
  if (scope.broken === 'slots expire' && slots !== 0)
    fault(
      'expire-slot',
      -1,
      n,
      on(one, (attempt) => Object.assign(attempt, { slots: 0 })),
    );
}

/** Of clients; and the clean-up. */
function requests(state: State, scope: Scope, index: number, { add, fault }: Moves): void {
  const { status } = state.tasks[index]!;
  if (status <= m.PROCESSING) fault('cancel', -1, index, (s) => db.cancel(s, scope, index));
  if (scope.tasks === 'two') return;
  if (state.submits > 0) add('submit', -1, index, (s) => db.submit(s, scope, index));
  if (m.isDone(state.tasks[index]!) && status !== m.NO_ROW) fault('clean', -1, index, (s) => db.clean(s, index));
}
