/**
 * The push protocol (docs/design.md) as a model: what PostgreSQL, the limiter's stores, two instances and the parsers
 * know. Small enough that every interleaving of its steps can be looked at (explore.ts), and true to the code: its
 * traces are replayed against the real components (replay.test.ts).
 */

export type Scope = {
  name: string;
  limit: number;
  /** 1: both instances use one store. 2: each has its own, as with two REDIS_URLs or a change of backend. */
  stores: 1 | 2;
  /** Two tasks, submitted at the start; or two versions of one, submitted as steps. */
  tasks: 'two' | 'versions';
  maxRetries: number;
  /** How many faults (crashes, lost answers, lost stores, somebody stopped for too long, ..) a run may hold. */
  faults: number;
  /** Instances that take callbacks, and those that run the watcher's jobs. Both always push. */
  receivers: readonly number[];
  watchers: readonly number[];
  /** Submits, in scope `versions`. */
  submits: number;
  /** Breaks the protocol on purpose, to see that the invariants notice. */
  broken?: Broken;
};

/** The protocol's rules, each left out in one of the model's mutants. */
export type Broken =
  | 'release before commit'
  | 'no attempt guard'
  | 'no confirm'
  | 'rebuild overwrites'
  | 'rebuild reads before the bump'
  | 'no version floor'
  | 'claim without the higher-version check'
  | 'slots expire'
  | 'claim without the epoch'
  | 'repair drops what was touched since'
  | 'attempts read before slots'
  | 'time-out without a second look'
  | 'a push in doubt is given back'
  | 'cancel frees the slot'
  | 'no time-outs'
  | 'no reconciliation';

export const PENDING = 0;
export const PROCESSING = 1;
export const SUCCESS = 2;
export const FAILED = 3;
export const STOPPED = 4;
/** Not submitted yet, or cleaned up. */
export const NO_ROW = 5;

export type Task = { status: number; retries: number; attempt: number };

/** What PostgreSQL knows of an attempt. APPLIED: closed by its parser's report, which moved the task. */
export const NONE = 0;
export const OPEN = 1;
export const APPLIED = 2;
export const CLOSED = 3;

/** What its parser does: nothing yet; works on it; refused it; was told that the attempt has ended. */
export const UNSENT = 0;
export const WORKS = 1;
export const REFUSED = 2;
export const TOLD = 3;

/** What an instance still has to do with an attempt. */
export const NOTHING = 0;
export const IN_ROUND = 1;
export const TO_PUSH = 2;
/** The parser was busy, or the slot went to others: back to Pending, uncounted. */
export const TO_GIVE_BACK = 3;
/** A refused try, which counts. */
export const TO_RETRY = 4;
/** A claim that was never answered, may still be committed, and was given up. */
export const FLOATING = 5;
/** Only in the mutant that releases before the commit. */
export const TO_COMMIT = 6;
/** In a round: it is known to have a task. */
export const CLAIMED = 7;
/** The same, and the look-up after a claim without an answer found the task cancelled. */
export const CANCELLED = 8;

/** What else an instance holds in memory about an attempt, as bits. */
export const LISTED = 1;
export const TO_DROP = 2;
export const TO_HOLD = 4;
export const ADDED = 8;
export const LATE = 16;
/** Listed by a reconciliation, too young to be dropped. */
export const YOUNG = 32;

/** A release that an instance still has to call, and one that it could not deliver: it waits for the store. */
export const DUE = 1;
export const DEFERRED = 2;

export type Pair = [number, number];

export type Attempt = {
  /** Its name in a trace; no part of the state. */
  n: number;
  /** Index of the task, -1 for none. */
  task: number;
  db: number;
  /** Bit k: it holds a slot in store k. */
  slots: number;
  /** Its deadline has passed. */
  expired: number;
  parser: number;
  /** By instance. */
  stage: Pair;
  /** By instance: DUE and DEFERRED, as bits. */
  release: Pair;
  /** By instance. */
  marks: Pair;
};

/** Epochs are numbers; 0 is none. */
export type Instance = {
  epoch: number;
  /** 0 idle, 1 slots acquired, 2 claimed, 3 the claim was not answered and is not committed, 4 is committed. */
  round: number;
  /** The epoch the round began under. */
  roundEpoch: number;
  /** 0 none; a rebuild is due: 1 the bump, 2 reading open attempts, 3 the store, 4 the release of closed ones. */
  look: number;
  next: number;
  sawStore: number;
  sawForce: number;
  /** Looks in a row that ended in no opening; no part of the state. */
  looks: number;
  /** 0 none; a reconciliation: 1 slots listed, 2 compared, 3 repaired. */
  repair: number;
  repairEpoch: number;
  floatEpoch: number;
};

export type State = {
  tasks: Task[];
  attempts: Attempt[];
  instances: [Instance, Instance];
  /** The epoch in force, in PostgreSQL. */
  force: number;
  /** Who put it in force and is not known to be dead; -1 nobody. */
  seenBy: number;
  /** Of each store. */
  stores: Pair;
  /** Store 0 came back with data of before: it holds an epoch, and its slots count as lost. */
  aged: number;
  /** Highest version accepted, as an index of tasks; -1 none. */
  floor: number;
  /** What the version floor should say. */
  accepted: number;
  faults: number;
  submits: number;
  /** Counters for names; no part of the state. */
  names: number;
  epochs: number;
};

const newInstance = (): Instance => ({
  epoch: 0,
  round: 0,
  roundEpoch: 0,
  look: 0,
  next: 0,
  sawStore: 0,
  sawForce: 0,
  looks: 0,
  repair: 0,
  repairEpoch: 0,
  floatEpoch: 0,
});

/** All instances are up; the first one's store is in force and open to all that use it. */
export function begin(scope: Scope): State {
  const status = scope.tasks === 'two' ? PENDING : NO_ROW;
  const instances: [Instance, Instance] = [newInstance(), newInstance()];
  instances[0].epoch = 1;
  if (scope.stores === 1) instances[1].epoch = 1;
  return {
    tasks: [0, 1].map(() => ({ status, retries: 0, attempt: 0 })),
    attempts: [],
    instances,
    force: 1,
    seenBy: 0,
    stores: [1, 0],
    aged: 0,
    floor: -1,
    accepted: -1,
    faults: scope.faults,
    submits: scope.submits,
    names: 0,
    epochs: 1,
  };
}

export function copy(state: State): State {
  return {
    ...state,
    tasks: state.tasks.map(({ status, retries, attempt }) => ({ status, retries, attempt })),
    attempts: state.attempts.map(copyAttempt),
    instances: [{ ...state.instances[0] }, { ...state.instances[1] }],
    stores: [state.stores[0], state.stores[1]],
  };
}

const copyAttempt = ({ n, task, db, slots, expired, parser, stage, release, marks }: Attempt): Attempt => ({
  n,
  task,
  db,
  slots,
  expired,
  parser,
  stage: [stage[0], stage[1]],
  release: [release[0], release[1]],
  marks: [marks[0], marks[1]],
});

export const storeOf = (scope: Scope, by: number): number => (scope.stores === 2 ? by : 0);
export const holds = (attempt: Attempt, store: number): boolean => (attempt.slots & (1 << store)) !== 0;
export const inUse = (state: State, store: number): number =>
  state.attempts.reduce((sum, attempt) => sum + (holds(attempt, store) ? 1 : 0), 0);
/** The epoch that a store holds and that counts; 0 is none. */
export const epochOf = ({ stores, aged }: State, store: number): number =>
  store === 0 && aged === 1 ? 0 : stores[store]!;
/** -1 where no store holds the epoch in force. */
export const storeInForce = (state: State): number =>
  [0, 1].findIndex((store) => epochOf(state, store) === state.force);
export const isCurrent = (state: State, { task, n }: Attempt): boolean =>
  task >= 0 && state.tasks[task]!.attempt === n && state.tasks[task]!.status === PROCESSING;
export const isDone = ({ status }: Task): boolean => status >= SUCCESS;
/** As its parser sees it. */
export const isOutstanding = ({ parser, expired }: Attempt): boolean => parser === WORKS && !expired;
/** An instance will soon do something about it by itself. */
export const isInHand = ({ stage, release }: Attempt): boolean =>
  stage[0] + stage[1] > 0 || ((release[0] | release[1]) & DUE) !== 0;
/** Nobody will ever ask for it again, but its parser, in vain. */
const isForgotten = (state: State, { task, db, slots, parser, stage, release, marks }: Attempt): boolean =>
  db !== OPEN &&
  slots === 0 &&
  stage[0] + stage[1] + release[0] + release[1] + marks[0] + marks[1] === 0 &&
  parser !== WORKS &&
  (parser !== TOLD || isDone(state.tasks[task]!));

export function forget(state: State): void {
  if (state.attempts.some((attempt) => isForgotten(state, attempt)))
    state.attempts = state.attempts.filter((attempt) => !isForgotten(state, attempt));
}

/** Equal for states that differ in names only: of attempts, and of epochs. */
export function keyOf(state: State): string {
  const { instances, force, stores } = state;
  const epochs: number[] = [0];
  const named = (epoch: number): number => {
    const known = epochs.indexOf(epoch);
    return known >= 0 ? known : epochs.push(epoch) - 1;
  };
  const attempts = state.attempts.map((attempt) => packed(attempt, isCurrent(state, attempt))).sort();
  let key = String.fromCharCode(
    (state.aged << 15) | (state.faults << 3) | state.submits,
    (state.floor + 1) * 4 + state.accepted + 1,
    ((state.seenBy + 1) << 12) | (named(force) << 8) | (named(stores[0]) << 4) | named(stores[1]),
  );
  for (const { status, retries } of state.tasks) key += String.fromCharCode(status * 8 + retries);
  for (const one of instances)
    key += String.fromCharCode(
      (named(one.epoch) << 12) | (named(one.roundEpoch) << 8) | (one.round << 4) | one.look,
      (named(one.next) << 12) | (named(one.sawStore) << 8) | (named(one.sawForce) << 4) | one.repair,
      (named(one.repairEpoch) << 8) | named(one.floatEpoch),
    );
  return key + attempts.join('');
}

/** All of an attempt but its name. */
function packed({ task, db, slots, expired, parser, stage, release, marks }: Attempt, current: boolean): string {
  const shared = (task + 1) | (db << 2) | (slots << 4) | (parser << 6) | (expired << 8) | (current ? 512 : 0);
  const own = (by: number) => stage[by]! | (release[by]! << 4) | (marks[by]! << 6);
  return String.fromCharCode(shared, own(0), own(1));
}
