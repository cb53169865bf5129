/**
 * Every instrument, in one place. Base units, `_total` on counters, no ids as labels. A scrape touches no database:
 * what must be counted there is sampled by the watcher's loop (sample.ts).
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { STATUS } from './task.ts';

/** From a few ms of dispatch to hours of parsing. */
const LATENCY_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const PROCESSING_SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600];

export type Metrics = ReturnType<typeof createMetrics>;

export function createMetrics() {
  const registry = new Registry();
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  const gauge = (name: string, help: string, labelNames: string[]) => new Gauge({ name, help, labelNames, registers });
  const counter = (name: string, help: string, labelNames: string[]) =>
    new Counter({ name, help, labelNames, registers });
  const histogram = (name: string, help: string, labelNames: string[], buckets: number[]) =>
    new Histogram({ name, help, labelNames, buckets, registers });

  const instruments = {
    tasks: gauge('docsched_tasks', 'Tasks by state.', ['queue', 'status']),
    delayed: gauge('docsched_tasks_delayed', 'Pending tasks that are not due yet.', ['queue']),
    blocked: gauge('docsched_tasks_blocked', 'Pending tasks that wait behind a higher version.', ['queue']),
    oldestPending: gauge(
      'docsched_oldest_pending_timestamp_seconds',
      'Since when the oldest claimable task is pending; 0 when there is none.',
      ['queue'],
    ),
    sampledAt: gauge('docsched_sample_timestamp_seconds', 'When the gauges read from the database were last read.', []),
    inserts: counter('docsched_inserts_total', 'Submits by outcome.', ['queue', 'outcome']),
    dispatchLatency: histogram(
      'docsched_dispatch_latency_seconds',
      'From becoming due to being claimed.',
      ['queue'],
      LATENCY_SECONDS,
    ),
    pushDuration: histogram(
      'docsched_push_duration_seconds',
      'Pushes by what the answer meant.',
      ['queue', 'outcome'],
      LATENCY_SECONDS,
    ),
    processingDuration: histogram(
      'docsched_processing_duration_seconds',
      'From claim to the end of the attempt, by how it ended.',
      ['queue', 'outcome'],
      PROCESSING_SECONDS,
    ),
    callbacks: counter('docsched_callbacks_total', 'Callbacks by outcome.', ['outcome']),
    limiterInUse: gauge('docsched_limiter_in_use', 'Slots in use.', ['queue']),
    limiterLimit: gauge('docsched_limiter_limit', 'The most attempts open at once.', ['queue']),
    limiterDrift: gauge('docsched_limiter_drift', 'Slots less open attempts, as the last reconciliation found them.', [
      'queue',
    ]),
    limiterOpen: gauge('docsched_limiter_open', '1 while the limiter can be used, 0 while closed or degraded.', []),
    watcherActions: counter('docsched_watcher_actions_total', 'Rows changed by the watcher, by job.', ['job']),
  };
  return { ...instruments, registry, start };

  /** Known label values begin at 0, so that the first event is a rate and not a new series. */
  function start(queue: string): void {
    for (const status of STATUS) instruments.tasks.set({ queue, status }, 0);
    for (const outcome of ['created', 'refreshed', 'recreated', 'existing', 'stale'])
      instruments.inserts.inc({ queue, outcome }, 0);
    for (const outcome of ['applied', 'duplicate', 'stale', 'unknown']) instruments.callbacks.inc({ outcome }, 0);
    instruments.delayed.set({ queue }, 0);
    instruments.blocked.set({ queue }, 0);
    instruments.oldestPending.set({ queue }, 0);
    instruments.limiterDrift.set({ queue }, 0);
    instruments.limiterInUse.set({ queue }, 0);
  }
}
