/**
 * Runs the jobs on their cron schedules, each under a lease, never twice at once in a process. A run that fails is
 * logged once and comes again with the next tick.
 */
import cron, { type Logger, type ScheduledTask } from 'node-cron';
import type { Log } from '../log.ts';
import type { Lease } from './lease.ts';

export type Job = {
  name: string;
  /** Six fields, seconds first. */
  schedule: string;
  /** One bounded run; returns how many rows it changed. */
  runOnce: () => Promise<number>;
};

export type WatcherDeps = { jobs: Job[]; lease: Lease; observe: (job: string, changed: number) => void; log: Log };

export function createWatcher({ jobs, lease, observe, log }: WatcherDeps) {
  const tasks: ScheduledTask[] = [];
  const running = new Set<Promise<void>>();
  const failing = new Set<string>();
  let lastOk: number | null = null;

  return {
    start() {
      for (const job of jobs)
        tasks.push(
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
      await Promise.all(tasks.map((task) => task.destroy()));
      await Promise.all(running);
    },
    lastOkAgeMs: () => (lastOk === null ? null : Math.round(performance.now() - lastOk)),
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
      const changed = await lease.run(job.name, job.runOnce);
      lastOk = performance.now();
      failing.delete(job.name);
      if (!changed) return;
      observe(job.name, changed);
      log.debug({ event: 'watcher_job_done', job: job.name, changed });
    } catch (error) {
      if (!failing.has(job.name))
        log.warn({ event: 'watcher_job_failed', job: job.name, error: (error as Error).message });
      failing.add(job.name);
    }
  }
}
