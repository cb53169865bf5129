/**
 * Takes submits into PostgreSQL. The decision table lives in docsched_submit (schema/functions), which also
 * serialises the submits of one task; this file groups single calls into one commit, keeps those apart whose task another
 * transaction holds (lane.ts), and reads the outcomes. Crash before the commit: nothing happened and nothing was answered;
 * after it: the task is durable, and the periodic trigger finds it should the wake-up be lost.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Db } from '../db.ts';
import { createGroupCommit } from '../group-commit.ts';
import { STATUS, type Status, showTask, type TaskKey, type TaskRow } from '../task.ts';
import { createLane, GIVE_UP_AFTER_MS } from './lane.ts';

/** One checked submit. payload is raw JSON text; runAt and maxRetries null when not named. */
export type Submit = TaskKey & {
  priority: number;
  payload: string;
  runAt: number | null;
  maxRetries: number | null;
  traceparent: string;
};

/** The task as it now is. */
export type Accepted = {
  outcome: 'created' | 'refreshed' | 'recreated' | 'existing';
  task: Record<string, unknown>;
};

/**
 * Nothing is stored. stale: a higher version was accepted; status null when its row is cleaned up. unknown_queue: the
 * queue is gone since the request was checked. locked: another transaction held the task for 2 s.
 */
export type Refused =
  | { outcome: 'stale'; latest: { task_version: string; status: Status | null } }
  | { outcome: 'unknown_queue' }
  | { outcome: 'locked' };

/** failed: the database did while the submit waited apart from the others, which may be stored. */
export type SubmitOutcome = Accepted | Refused | { outcome: 'failed'; error: unknown };

/** All are stored, or none, because of the entry at `index`. */
export type AtomicOutcome = { accepted: Accepted[] } | { refused: Refused; index: number };

export type Inserter = {
  /** Resolves after the commit. Under load shares it with other calls. */
  submit(submit: Submit): Promise<SubmitOutcome>;
  /** In one commit (those whose task is held elsewhere later), decided as if they came one after another. */
  submitBatch(submits: Submit[]): Promise<SubmitOutcome[]>;
  /** All in one commit or none at all. */
  submitAtomic(submits: Submit[]): Promise<AtomicOutcome>;
  idle(): Promise<void>;
};

export type InserterDeps = {
  db: Db;
  /** After a commit that left something to push in these queues. */
  onStored: (queues: ReadonlySet<string>) => void;
  count: (queue: string, outcome: string) => void;
};

type SubmitRow = TaskRow & { outcome: string; latest_version: string | null; latest_status: number | null };

/** Outcomes that left something to push. */
const STORED = new Set(['created', 'refreshed', 'recreated']);
const FIRST_PAUSE_MS = 25;
/**
 * Tasks submitted nowhere before of which a statement finds out that somebody else is submitting them, a millisecond
 * each. In a group others wait meanwhile: beyond this the rest is left to the lane. There all are found out about.
 */
const PROBES_A_GROUP = 8;
const PROBES_APART = 1_000;
const LOCKED: Refused = { outcome: 'locked' };

export function createInserter({ db, onStored, count }: InserterDeps): Inserter {
  const keyOf = (submit: Submit) => `${submit.queue}/${submit.taskId}`;
  const lane = createLane({ run: (submits) => store(submits, PROBES_APART), keyOf });
  const group = createGroupCommit<Submit, SubmitOutcome>({
    run: (submits) => storeUnlessHeld(submits, PROBES_A_GROUP),
    keyOf,
    sizeOf: (submit) => 500 + submit.payload.length,
  });
  return { submit, submitBatch, submitAtomic, idle };

  async function submit(submit: Submit): Promise<SubmitOutcome> {
    const arrivedAtMs = performance.now();
    const outcome = await group.add(submit);
    return outcome.outcome === 'locked' ? waitApart(submit, arrivedAtMs) : outcome;
  }

  async function submitBatch(submits: Submit[]): Promise<SubmitOutcome[]> {
    const arrivedAtMs = performance.now();
    const outcomes = await storeUnlessHeld(submits, PROBES_APART);
    return Promise.all(
      outcomes.map((outcome, i) => (outcome.outcome === 'locked' ? waitApart(submits[i]!, arrivedAtMs) : outcome)),
    );
  }

  /** Tried again as a whole while a task of it is held; no connection is held meanwhile. */
  async function submitAtomic(submits: Submit[]): Promise<AtomicOutcome> {
    const giveUpAt = performance.now() + GIVE_UP_AFTER_MS;
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs *= 2) {
      const rows = await db.query<SubmitRow>('submit_atomic', columnsOf(submits));
      const outcomes = rows.map((row, index) => readOutcome(submits[index]!, row));
      const refused = outcomes.at(-1)!;
      if ('task' in refused) return { accepted: note(submits, outcomes as Accepted[]) };
      if (refused.outcome !== 'locked' || performance.now() + pauseMs > giveUpAt) {
        const index = outcomes.length - 1;
        if (refused.outcome !== 'unknown_queue') count(submits[index]!.queue, refused.outcome);
        return { refused, index };
      }
      await sleep(pauseMs);
    }
  }

  async function idle(): Promise<void> {
    await group.idle();
    await lane.idle();
  }

  async function waitApart(submit: Submit, arrivedAtMs: number): Promise<SubmitOutcome> {
    const outcome = await lane.wait(submit, arrivedAtMs);
    if (outcome.outcome === 'locked') count(submit.queue, 'locked');
    return outcome;
  }

  /** Submits whose task is known to be held are not tried: they join those that wait, in the order they came. */
  async function storeUnlessHeld(submits: Submit[], probes: number): Promise<SubmitOutcome[]> {
    const free = submits.filter((submit) => !lane.holds(submit));
    if (free.length === submits.length) return store(submits, probes);
    const outcomes = free.length === 0 ? [] : await store(free, probes);
    const decided = new Map(free.map((submit, index) => [submit, outcomes[index]!]));
    return submits.map((submit) => decided.get(submit) ?? LOCKED);
  }

  async function store(submits: Submit[], probes: number): Promise<(Accepted | Refused)[]> {
    const rows = await db.query<SubmitRow>('submit_tasks', [...columnsOf(submits), probes]);
    return note(
      submits,
      rows.map((row, index) => readOutcome(submits[index]!, row)),
    );
  }

  /** After the commit. */
  function note<Outcome extends Accepted | Refused>(submits: Submit[], outcomes: Outcome[]): Outcome[] {
    const queues = new Set<string>();
    for (const [index, { outcome }] of outcomes.entries()) {
      const { queue } = submits[index]!;
      if (outcome !== 'unknown_queue' && outcome !== 'locked') count(queue, outcome);
      if (STORED.has(outcome)) queues.add(queue);
    }
    if (queues.size > 0) onStored(queues);
    return outcomes;
  }
}

const columnsOf = (submits: Submit[]): unknown[] => [
  submits.map((s) => s.queue),
  submits.map((s) => s.taskId),
  submits.map((s) => s.taskVersion),
  submits.map((s) => s.priority),
  submits.map((s) => s.payload),
  submits.map((s) => s.runAt),
  submits.map((s) => s.maxRetries),
  submits.map((s) => s.traceparent),
];

function readOutcome(submit: Submit, row: SubmitRow): Accepted | Refused {
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
    case 'locked':
      return LOCKED;
    default:
      return { outcome: 'unknown_queue' };
  }
}
