/** A small run in which every promise is kept, for tests that break one at a time. */
import type { Evidence, FaultLine, FinalAttempt, FinalTask, ParserLine, Plan, SubmitLine } from './evidence.ts';

export const LIMIT = 2;
export const TASKS = 40;
/** How long each attempt takes; as many as the limit run at a time. */
const TAKES_MS = 1_000;
const RUN_MS = (TASKS / LIMIT) * TAKES_MS;

type Push = ParserLine & { e: 'push' };
export type Kept = Evidence & {
  submits: SubmitLine[];
  pushes: ParserLine[];
  faults: FaultLine[];
  tasks: FinalTask[];
  attempts: FinalAttempt[];
  slots: Record<string, number>;
};

export const PLAN: Plan = {
  queues: { q: { limit: LIMIT, policy: 'keep' } },
  busyQueues: ['q'],
  fateOf: ({ taskId }) => (taskId === 'doomed' ? 'doomed' : 'well'),
  kinds: ['SIGKILL'],
  hits: 1,
};

export const resultOf = (task: number): string => `result of ${task}`;
export const idOf = (task: number): string => `attempt-${task}`;

/** Tasks 0 .. TASKS - 1 of queue `q`, version 5: pushed, reported and Success, always LIMIT of them at a time. */
export function keptRun(): Kept {
  const numbers = Array.from({ length: TASKS }, (_, n) => n);
  return {
    submits: numbers.map((n) => submitted(n)),
    pushes: numbers.flatMap((n) => {
      const from = Math.floor(n / LIMIT) * TAKES_MS;
      return [pushed(n, from), ...reported(n, from + TAKES_MS - 10)];
    }),
    faults: [fault({})],
    tasks: numbers.map((n) => stored(n)),
    attempts: numbers.map((n) => ({
      attempt_id: idOf(n),
      queue: 'q',
      task_id: String(n),
      task_version: '5',
      claimed_at: String(Math.floor(n / LIMIT) * TAKES_MS),
      outcome: 'success',
    })),
    load: { from: 0, to: RUN_MS },
    slots: { q: 0, all: 0 },
    connections: 0,
    troubles: [],
  };
}

export const submitted = (n: number, more: Partial<SubmitLine & { e: 'submit' }> = {}): SubmitLine => ({
  e: 'submit',
  t: 2,
  q: 'q',
  i: String(n),
  v: '5',
  o: 'created',
  s: 1,
  w: 2,
  ...more,
});

export const pushed = (n: number, t: number, more: Partial<Push> = {}): ParserLine => ({
  e: 'push',
  t,
  q: 'q',
  i: String(n),
  v: '5',
  a: idOf(n),
  n: 1,
  d: t + 60_000,
  b: 'ok',
  f: 0,
  ...more,
});

export const reported = (n: number, t: number, outcome = 'applied', k = 1): ParserLine[] => [
  { e: 'call', t, a: idOf(n), k, y: 0, c: 0, r: resultOf(n) },
  { e: 'said', t: t + 5, a: idOf(n), k, y: 0, o: outcome },
];

export const stored = (n: number, more: Partial<FinalTask> = {}): FinalTask => ({
  queue: 'q',
  task_id: String(n),
  task_version: '5',
  status: 2,
  reason: null,
  result: JSON.stringify(resultOf(n)),
  ...more,
});

/** In its gap: attempt 3 was pushed at 1000 and settled at 1995. */
export const fault = (more: Partial<FaultLine>): FaultLine => ({
  e: 'fault',
  t: 1_501,
  kind: 'SIGKILL',
  since: 1_400,
  from: 1_500,
  to: 1_501,
  gap: 'pushed, not settled',
  held: 1,
  ids: [idOf(3)],
  ...more,
});
