/**
 * What the parsers do with each attempt, and the queues they do it for. A pure function of the seed, so that the
 * parsers, the submitters and the checker agree without a word.
 */
import { draw, weighed } from './chance.ts';

/**
 * ok       202, parses, reports                       late      reports after the deadline
 * twice    reports twice, with different results      die       202, then never heard of again
 * hang     no answer for long, reports all the same   drip      answers byte by byte, too slowly; reports
 * reset    takes it, resets the connection, reports   gateway   502 from something in between; reports
 * long     parses beyond its deadline with progress   done      answers with the result in the same call
 * busy     429                                        try_failed 500, does not work on it
 * fail     reports a failure                          refuse    422
 * traitor  500, but works on it and reports: breaks the contract, so it is counted and not judged
 */
export type Behaviour =
  | 'ok'
  | 'twice'
  | 'late'
  | 'die'
  | 'hang'
  | 'drip'
  | 'reset'
  | 'gateway'
  | 'long'
  | 'done'
  | 'busy'
  | 'try_failed'
  | 'fail'
  | 'refuse'
  | 'traitor';
export type Key = { queue: string; taskId: string; version: string };
/** doomed: no attempt can succeed, and the task has one retry. */
export type Fate = 'well' | 'doomed';

export type QueuePlan = {
  limit: number;
  /** Which parsers it is pushed to, by number. */
  parsers: readonly number[];
  mode: 'async' | 'sync';
  batch?: number;
  policy: 'keep' | 'stop';
  /** Pending tasks that submitters keep it at. */
  backlog: number;
  /** Parse time, ms. */
  parseMs: readonly [number, number];
  mix: Partial<Record<Behaviour, number>>;
};

/** Times that let one minute hold many lives of an attempt; the code is the one of production. */
export const PROCESSING_EXPIRED_MS = 4_000;
export const PUSH_TIMEOUT_MS = 1_500;

const ODD = { twice: 15, late: 2, die: 2, hang: 2, drip: 2, reset: 4, fail: 10 };
/** 429 and 5xx slow a target down as a whole, so they have a queue and a parser's path of their own. */
export const QUEUES: Record<string, QueuePlan> = {
  narrow: {
    limit: 4,
    parsers: [0],
    mode: 'async',
    policy: 'keep',
    backlog: 14,
    parseMs: [800, 1_600],
    // Many that end by their deadline: the slot must be held until then, and not longer.
    mix: { ...ODD, ok: 900, die: 25, late: 25, hang: 10, long: 10 },
  },
  wide: {
    limit: 64,
    parsers: [0, 1],
    mode: 'async',
    policy: 'keep',
    backlog: 600,
    parseMs: [60, 180],
    mix: { ...ODD, ok: 1_960, gateway: 2, long: 1 },
  },
  batch: {
    limit: 16,
    parsers: [1],
    mode: 'async',
    batch: 8,
    policy: 'stop',
    backlog: 200,
    parseMs: [100, 300],
    mix: { ...ODD, ok: 900, done: 900 },
  },
  sync: {
    limit: 6,
    parsers: [2],
    mode: 'sync',
    policy: 'keep',
    backlog: 40,
    parseMs: [300, 700],
    mix: { done: 950, ok: 20, reset: 4, fail: 10, die: 2 },
  },
  moody: {
    limit: 8,
    parsers: [2],
    mode: 'async',
    policy: 'keep',
    backlog: 40,
    parseMs: [300, 700],
    mix: { ...ODD, ok: 900, busy: 6, try_failed: 30, traitor: 5, gateway: 5 },
  },
};
export const QUEUE_NAMES = Object.keys(QUEUES);

/** From this attempt on a task that is well meets no more oddities. */
const CALM_FROM = 4;
const DOOMED_SHARE = 0.005;
const DOOM = { fail: 4, refuse: 4, try_failed: 1, die: 1 };
/** Enough for every fault of a run to hit the same task. */
const MANY_RETRIES = 200;

export const fateOf = (seed: number, { queue, taskId, version }: Key): Fate =>
  draw(seed, 'fate', queue, taskId, version) < DOOMED_SHARE ? 'doomed' : 'well';

export const retriesOf = (fate: Fate): number => (fate === 'doomed' ? 1 : MANY_RETRIES);

export function behaviourOf(seed: number, key: Key, attempt: number): Behaviour {
  const { queue, taskId, version } = key;
  const at = draw(seed, 'behaviour', queue, taskId, version, attempt);
  if (fateOf(seed, key) === 'doomed') return weighed(DOOM, at);
  const { mix, mode } = QUEUES[queue]!;
  if (attempt >= CALM_FROM) return mode === 'sync' ? 'done' : 'ok';
  return weighed(mix, at);
}

export function parseMsOf(seed: number, { queue, taskId, version }: Key, attempt: number): number {
  const [min, max] = QUEUES[queue]!.parseMs;
  return min + draw(seed, 'parse', queue, taskId, version, attempt) * (max - min);
}
