/** How much of everything: the recorded run, and the quick one that only shows that all of it works. */
export type Sizes = {
  rounds: number;
  connections: number;
  /** S1: how long a round of submits lasts. */
  storeMs: number;
  /** S2, S4 to S9: tasks of a round. */
  lifeTasks: number;
  /** Before the first round, rounds of so many tasks until so much time has passed: every contestant is measured warm. */
  warmUpTasks: number;
  warmUpMs: number;
  /** S3: tasks drained a round. */
  engineTasks: number;
  /** S4: tasks a submit request and a push; tasks a round. */
  batch: number;
  batchTasks: number;
  /** S5: rows in the table. S8 uses `pending` too. */
  finished: number;
  pending: number;
  delayed: number;
  /** S6: tasks a round; the pinned snapshot outlives all rounds, so dead rows add up. */
  pinnedTasks: number;
  /** S7: how long a round lasts, and the part of its own peak each contestant is loaded with. */
  latencyMs: number;
  latencyShare: number;
};

export const FULL: Sizes = {
  rounds: 5,
  connections: 64,
  storeMs: 2_500,
  lifeTasks: 10_000,
  warmUpTasks: 2_000,
  warmUpMs: 8_000,
  engineTasks: 30_000,
  batch: 100,
  batchTasks: 24_000,
  finished: 10_000_000,
  pending: 1_000_000,
  delayed: 1_000_000,
  pinnedTasks: 12_000,
  latencyMs: 4_000,
  latencyShare: 0.2,
};

export const QUICK: Sizes = {
  ...FULL,
  rounds: 2,
  storeMs: 1_000,
  lifeTasks: 2_000,
  warmUpTasks: 500,
  warmUpMs: 0,
  engineTasks: 6_000,
  batchTasks: 6_000,
  finished: 200_000,
  pending: 50_000,
  delayed: 50_000,
  pinnedTasks: 3_000,
  latencyMs: 1_500,
};
