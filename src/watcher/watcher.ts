/**
 * Runs the jobs on their cron schedules, each under a lease, never twice at once in a process. A run that fails is
 * logged once and comes again with the next tick.
 */
import cron, { type Logger, type ScheduledTask } from 'node-cron';
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';
import { LEASE_MS, type Lease } from './lease.ts';

/** A lease taken just before this instance asked is over by then. */
const LOOK_AFTER_MS = 200;

export type Job = {
  name: string;
  /** Six fields, seconds first. */
  schedule: string;
  /** One bounded run; returns how many rows it changed. */
  runOnce: () => Promise<number>;
};

export type WatcherDeps = {
  jobs: Job[];
  lease: Lease;
  db: Db;
  /** skipped: another instance holds the job. */
  observe: (job: string, outcome: 'ran' | 'skipped' | 'failed', changed: number) => void;
  log: Log;
};

export function createWatcher({ jobs, lease, db, observe, log }: WatcherDeps) {
  const ticks = new Map<string, ScheduledTask>();
  const looks = new Map<string, NodeJS.Timeout>();
  const running = new Set<Promise<void>>();
  /** When each job last succeeded here, or was seen in another's hands (performance.now()). */
  const lastOk = new Map<string, number>();
  const failing = new Set<string>();
  let stopped = false;

  return {
    start() {
      for (const job of jobs)
        ticks.set(
          job.name,
          cron.schedule(job.schedule, () => track(run(job)), {
            name: job.name,
            noOverlap: true,
            timezone: 'Etc/UTC',
            logger: quietly(job),
          }),
        );
    },
    /** No further run; resolves when those under way have ended. */
    async stop() {
      stopped = true;
      for (const timer of looks.values()) clearTimeout(timer);
      await Promise.all([...ticks.values()].map((tick) => tick.destroy()));
      await Promise.all(running);
    },
    /** Of the job that has been failing longest; when none fails, of the latest run. */
    lastOkAgeMs() {
      const worst = [...failing].map((name) => lastOk.get(name) ?? Number.NEGATIVE_INFINITY);
      const at = worst.length > 0 ? Math.min(...worst) : Math.max(...lastOk.values());
      return Number.isFinite(at) ? Math.round(performance.now() - at) : null;
    },
  };

  /** node-cron would write its own lines to stdout when a tick comes late or finds the run before still going. */
  function quietly(job: Job): Logger {
    const note = (message: string | Error) =>
      log.debug({ event: 'watcher_tick_skipped', job: job.name, reason: String(message) });
    return { info: note, warn: note, error: note, debug: note };
  }

  function track(work: Promise<void>): Promise<void> {
    running.add(work);
    return work.finally(() => running.delete(work));
  }

  async function run(job: Job): Promise<void> {
    try {
      const changed = await lease.run(job.name, () => complete(job));
      lastOk.set(job.name, performance.now());
      failing.delete(job.name);
      observe(job.name, changed === undefined ? 'skipped' : 'ran', changed ?? 0);
      if (changed === undefined) lookAgain(job);
      else if (changed > 0) log.debug({ event: 'watcher_job_done', job: job.name, changed });
    } catch (error) {
      observe(job.name, 'failed', 0);
      if (!failing.has(job.name))
        log.warn({ event: 'watcher_job_failed', job: job.name, error: (error as Error).message });
      failing.add(job.name);
    }
  }

  async function complete(job: Job): Promise<number> {
    const changed = await job.runOnce();
    await db.query('complete_job', [job.name]);
    return changed;
  }

  /** Another instance holds the job. If it dies over it, this one runs the job when the lease is over, not at its next tick. */
  function lookAgain(job: Job): void {
    if (stopped) return;
    clearTimeout(looks.get(job.name));
    const refusedAt = performance.now();
    const look = async () => {
      const sinceMs = Math.ceil(performance.now() - refusedAt) + LOOK_AFTER_MS;
      const done = await db.query('find_completed_job', [job.name, sinceMs]).catch(() => [{}]);
      if (done.length === 0) await run(job);
    };
    looks.set(
      job.name,
      setTimeout(() => track(look()), LEASE_MS + LOOK_AFTER_MS),
    );
  }
}
