/** What the checker is given: the lines of the logs, and what the stores hold at the end. Times `t`: journal.ts. */
import type { Behaviour, Fate, Key } from './script.ts';

type At = { t: number };
/** q, i, v: queue, task id, version. */
type OfTask = At & { q: string; i: string; v: string };
/** a: attempt id. */
type OfAttempt = At & { a: string };

/** o: outcome, or the code of the refusal; s: when the request was sent; w: the wall clock when it was answered. */
export type SubmitLine =
  | (OfTask & { e: 'submit'; o: string; s: number; w: number })
  /** Sent from now on, perhaps with effect. */
  | (OfTask & { e: 'cancel' });

export type ParserLine =
  /** n: number of the attempt; d: its deadline on the clock of `t`; b: what its script says; f: who pushed. */
  | (OfTask & OfAttempt & { e: 'push'; n: number; d: number; b: Behaviour; f: number })
  | (OfAttempt & { e: 'refuse'; s: number })
  | (OfAttempt & { e: 'told'; d: number })
  /** The result went out as the answer to the push. c: status_code; r: result. */
  | (OfAttempt & { e: 'done'; c: number; r: string })
  /** k: which report; y: which try of it. */
  | (OfAttempt & { e: 'call'; k: number; y: number; c: number; r: string })
  /** o: applied, duplicate, the code of a refusal, or lost when nobody knows. */
  | (OfAttempt & { e: 'said'; k: number; y: number; o: string })
  | (At & { e: 'trouble'; error: string });

/**
 * A fault that struck. since: when it began to make its moment; from, to: when it began and ended; gap, held, ids:
 * faults.ts; trouble: what went wrong with an end that was asked for.
 */
export type FaultLine = At & {
  e: 'fault';
  kind: string;
  since: number;
  from: number;
  to: number;
  gap: string;
  held: number;
  ids?: string[];
  trouble?: string;
};

export type FinalTask = {
  queue: string;
  task_id: string;
  task_version: string;
  status: number;
  reason: string | null;
  result: string | null;
};
export type FinalAttempt = {
  attempt_id: string;
  queue: string;
  task_id: string;
  task_version: string;
  /** ms since the epoch */
  claimed_at: string;
  outcome: string | null;
};

export type Lines<Line> = Iterable<Line> | AsyncIterable<Line>;

export type Evidence = {
  submits: Lines<SubmitLine>;
  pushes: Lines<ParserLine>;
  faults: readonly FaultLine[];
  tasks: Lines<FinalTask>;
  attempts: Lines<FinalAttempt>;
  /** When submitters kept the queues full. */
  load: { from: number; to: number };
  /** Slots in use at the end, by queue, as the limiter's store has them. */
  slots: Readonly<Record<string, number>>;
  /** Connections of the service at PostgreSQL after its end. */
  connections: number;
  /** Ends of instances that nobody asked for or that were not clean, and instances that stood still. */
  troubles: readonly string[];
};

/** What the run was to do. */
export type Plan = {
  queues: Readonly<Record<string, { limit: number; policy: 'keep' | 'stop' }>>;
  /** Those that must have stood at their limit. */
  busyQueues: readonly string[];
  fateOf: (key: Key) => Fate;
  /** Kinds of faults, each of which had to hit at least `hits` times. */
  kinds: readonly string[];
  hits: number;
};

export type Breach = { rule: string; what: string };

export const keyText = (queue: string, taskId: string, version: string): string => `${queue}/${taskId}/${version}`;
