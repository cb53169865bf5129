/**
 * Puts dead letters, the Failed tasks of a queue, back to Pending: at a bounded rate, leaving out what has a newer
 * version. In batches with a commit each: a crash leaves what was done, and whoever calls again goes on with the rest.
 */
import type { Db } from './db.ts';
import type { Log } from './log.ts';

export type RedriveRequest = {
  queue: string;
  /** Null: whatever the reason. */
  reason: string | null;
  /** ms since the epoch; null: however recent. */
  finishedBefore: number | null;
  ratePerS: number;
  /** Counts, and changes nothing. */
  dryRun: boolean;
};

export type Redriven = {
  /** Failed tasks that the filter let pass when the call began. */
  matched: number;
  redriven: number;
  /** Left Failed because a newer version was accepted. */
  skipped: number;
  /** ms since the epoch: when the last one redriven falls due; null when there is none. */
  due_by: number | null;
};

export type Redrive = {
  /** `wanted`: asked between batches; false ends the call early. */
  run(request: RedriveRequest, wanted: () => boolean): Promise<Redriven>;
};

export type RedriveDeps = {
  db: Db;
  /** The first of a call's tasks are due. */
  onRedriven: () => void;
  log: Log;
};

/** Tasks a batch; the same number stands as LIMIT in redrive_tasks.sql. */
const BATCH = 500;
/** A caller and the proxies between wait this long without complaint. */
const BUDGET_MS = 20_000;

type Step = { found: number; last: string | null };
type Batch = {
  looked: number;
  redriven: number;
  skipped: number;
  due_by: string | null;
  finished_at: string | null;
  task_id: string;
  task_version: string;
};

export function createRedrive({ db, onRedriven, log }: RedriveDeps): Redrive {
  return { run };

  async function run(asked: RedriveRequest, wanted: () => boolean): Promise<Redriven> {
    const startedAt = performance.now();
    const until = startedAt + BUDGET_MS;
    const more = () => performance.now() < until && wanted();
    // What fails again while this call runs is left to the next one.
    const [{ now } = { now: '0' }] = await db.query<{ now: string }>('read_clock', []);
    const finishedBefore = Math.min(asked.finishedBefore ?? Number.POSITIVE_INFINITY, Number(now));
    const request = { ...asked, finishedBefore };
    const reasons = request.reason === null ? await listReasons(request.queue) : [request.reason];
    const done: Redriven = { matched: 0, redriven: 0, skipped: 0, due_by: null };
    for (const reason of reasons) done.matched += await count('count_failed', request, reason, () => true);
    for (const reason of reasons)
      if (request.dryRun) done.skipped += await count('count_superseded', request, reason, more);
      else await redrive(request, reason, more, done);
    const { queue, reason, ratePerS: rate_per_s } = asked;
    const duration_ms = Math.round(performance.now() - startedAt);
    if (!request.dryRun) log.info({ event: 'redriven', queue, reason, rate_per_s, ...done, duration_ms });
    return done;
  }

  async function listReasons(queue: string): Promise<string[]> {
    return (await db.query<{ reason: string }>('list_reasons', [queue])).map(({ reason }) => reason);
  }

  async function count(
    statement: 'count_failed' | 'count_superseded',
    { queue, finishedBefore }: RedriveRequest,
    reason: string,
    more: () => boolean,
  ): Promise<number> {
    let total = 0;
    let after: string | null = '-1';
    while (after !== null && more()) {
      const [step]: Step[] = await db.query<Step>(statement, [queue, reason, finishedBefore, after]);
      total += step!.found;
      after = step!.last;
    }
    return total;
  }

  /** Adds to `done` after each commit. */
  async function redrive(
    { queue, finishedBefore, ratePerS }: RedriveRequest,
    reason: string,
    more: () => boolean,
    done: Redriven,
  ): Promise<void> {
    let cursor = ['-1', '-1', '-1'];
    while (more()) {
      const params = [queue, reason, finishedBefore, ...cursor, 1_000 / ratePerS];
      const batch: Batch = (await db.query<Batch>('redrive_tasks', params))[0]!;
      if (done.redriven === 0 && batch.redriven > 0) onRedriven();
      done.redriven += batch.redriven;
      done.skipped += batch.skipped;
      if (batch.due_by !== null) done.due_by = Math.max(done.due_by ?? 0, Number(batch.due_by));
      if (batch.looked < BATCH) return;
      cursor = [batch.finished_at!, batch.task_id, batch.task_version];
    }
  }
}
