/**
 * Takes submits into PostgreSQL. The decision table lives in docsched_submit (schema/migrations), which also
 * serialises the submits of one task; this file groups single calls into one commit, cuts batches, and reads the
 * outcomes. Crash before the commit: nothing happened and nothing was answered; after it: the task is durable, and the
 * periodic trigger finds it should the wake-up be lost.
 */
import type { Db } from '../db.ts';
import { createGroupCommit } from '../group-commit.ts';
import { STATUS, type Status, showTask, type TaskKey, type TaskRow } from '../task.ts';

/** One checked submit. payload is raw JSON text; runAt and maxRetries null when not named. */
export type Submit = TaskKey & {
  priority: number;
  payload: string;
  runAt: number | null;
  maxRetries: number | null;
  traceparent: string;
};

/**
 * stale: a higher version was accepted; nothing stored; status null when its row is cleaned up.
 * unknown_queue: the queue is gone since the request was checked; nothing stored.
 * The others carry the task as it now is.
 */
export type SubmitOutcome =
  | { outcome: 'created' | 'refreshed' | 'recreated' | 'existing'; task: Record<string, unknown> }
  | { outcome: 'stale'; latest: { task_version: string; status: Status | null } }
  | { outcome: 'unknown_queue' };

export type Inserter = {
  /** Resolves after the commit. Under load shares it with other calls. */
  submit(submit: Submit): Promise<SubmitOutcome>;
  /** All in one commit, decided as if they came one after another; outcomes in order. */
  submitBatch(submits: Submit[]): Promise<SubmitOutcome[]>;
  idle(): Promise<void>;
};

export type InserterDeps = {
  db: Db;
  /** After a commit that left something to push. */
  onStored: () => void;
  count: (queue: string, outcome: string) => void;
};

type SubmitRow = TaskRow & { outcome: string; latest_version: string | null; latest_status: number | null };

/** Outcomes that left something to push. */
const STORED = new Set(['created', 'refreshed', 'recreated']);

export function createInserter({ db, onStored, count }: InserterDeps): Inserter {
  const group = createGroupCommit<Submit, SubmitOutcome>({
    run: submitBatch,
    keyOf: (submit) => `${submit.queue}/${submit.taskId}`,
    sizeOf: (submit) => 500 + submit.payload.length,
  });
  return { submit: group.add, submitBatch, idle: group.idle };

  async function submitBatch(submits: Submit[]): Promise<SubmitOutcome[]> {
    const rows = await db.query<SubmitRow>('submit_tasks', [
      submits.map((s) => s.queue),
      submits.map((s) => s.taskId),
      submits.map((s) => s.taskVersion),
      submits.map((s) => s.priority),
      submits.map((s) => s.payload),
      submits.map((s) => s.runAt),
      submits.map((s) => s.maxRetries),
      submits.map((s) => s.traceparent),
    ]);
    const outcomes = rows.map((row, index) => readOutcome(submits[index]!, row));
    for (const [index, { outcome }] of outcomes.entries())
      if (outcome !== 'unknown_queue') count(submits[index]!.queue, outcome);
    if (outcomes.some(({ outcome }) => STORED.has(outcome))) onStored();
    return outcomes;
  }
}

function readOutcome(submit: Submit, row: SubmitRow): SubmitOutcome {
  switch (row.outcome) {
    case 'stale':
      return {
        outcome: 'stale',
        latest: {
          task_version: row.latest_version!,
          status: row.latest_status === null ? null : STATUS[row.latest_status]!,
        },
      };
    case 'created':
    case 'refreshed':
    case 'recreated':
    case 'existing':
      return { outcome: row.outcome, task: showTask(submit, row) };
    default:
      return { outcome: 'unknown_queue' };
  }
}
