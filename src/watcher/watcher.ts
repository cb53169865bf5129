/**
 * Runs the jobs on their cron schedules, each under a lease, never twice at once in a process. A run that fails is
 * logged once and comes again with the next tick. node-cron reads the schedules; it does not run them: when the clock
 * is stepped forward it would go through every tick passed over, and when it is stepped back wait for the time to come.
 */
import cron from 'node-cron';
import type { Db } from '../db.ts';
import type { Check } from '../health.ts';
import type { Log } from '../log.ts';
import { LEASE_MS, type Lease } from './lease.ts';
import { createTick, type Tick } from './tick.ts';

/** A lease taken just before this instance asked is over by then. */
const LOOK_AFTER_MS = 200;
/** A job may end this long after its tick: longer than a run (drain.ts), and than a dead holder delays it. */
const GRACE_MS = 15_000;

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
  const ticks = new Map<string, Tick>();
  const busy = new Set<string>();
  const looks = new Map<string, NodeJS.Timeout>();
  const running = new Set<Promise<void>>();
  /** When each job last succeeded here, or was seen in another's hands (performance.now()); at first, the start. */
  const lastOk = new Map<string, number>();
  /** How old that may become: until the next tick from then on, and GRACE_MS. */
  const limitMs = new Map<string, number>();
  /** Why the last run failed. */
  const failing = new Map<string, string>();
  let stopped = false;

  return {
    start() {
      for (const job of jobs) {
        const schedule = cron.createTask(job.schedule, () => {}, { timezone: 'Etc/UTC' });
        const tick = createTick({
          next: () => schedule.getNextRuns(1)[0]!.getTime(),
          onDue: () => void track(run(job)),
        });
        ticks.set(job.name, tick);
        tick.start();
        noteOk(job);
      }
    },
    /** No further run; resolves when those under way have ended. */
    async stop() {
      stopped = true;
      for (const timer of looks.values()) clearTimeout(timer);
      for (const tick of ticks.values()) tick.stop();
      await Promise.all(running);
    },
    /** One a job. */
    checks: jobs.map(checkOf),
  };

  function checkOf({ name }: Job): Check {
    return {
      name: `watcher_${name}`,
      lastOkAgeMs: () => (lastOk.has(name) ? Math.round(performance.now() - lastOk.get(name)!) : null),
      get limitMs() {
        return limitMs.get(name) ?? GRACE_MS;
      },
      detail: () => failing.get(name) ?? null,
    };
  }

  function noteOk({ name }: Job): void {
    const next = ticks.get(name)?.nextAt() ?? Date.now();
    lastOk.set(name, performance.now());
    limitMs.set(name, Math.max(0, next - Date.now()) + GRACE_MS);
    failing.delete(name);
  }

  function track(work: Promise<void>): Promise<void> {
    running.add(work);
    return work.finally(() => running.delete(work));
  }

  async function run(job: Job): Promise<void> {
    if (busy.has(job.name)) {
      log.debug({ event: 'watcher_tick_skipped', job: job.name, reason: 'the run before is still going' });
      return;
    }
    busy.add(job.name);
    const startedAt = performance.now();
    try {
      const changed = await lease.run(job.name, () => complete(job));
      noteOk(job);
      observe(job.name, changed === undefined ? 'skipped' : 'ran', changed ?? 0);
      if (changed === undefined) lookAgain(job);
      else if (changed > 0) {
        const duration_ms = Math.round(performance.now() - startedAt);
        log.debug({ event: 'watcher_job_done', job: job.name, changed, duration_ms });
      }
    } catch (error) {
      const { message } = error as Error;
      observe(job.name, 'failed', 0);
      if (!failing.has(job.name)) log.warn({ event: 'watcher_job_failed', job: job.name, error: message });
      failing.set(job.name, message);
    } finally {
      busy.delete(job.name);
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
