/**
 * Reads from PostgreSQL and the limiter what /metrics shows as gauges, so that a scrape asks no store. Both answer in
 * milliseconds at any number of tasks; what takes longer all the same is read less often.
 */
import type { Db } from './db.ts';
import type { Limiter } from './limiter/limiter.ts';
import type { Log } from './log.ts';
import { createLoop, type Loop } from './loop.ts';
import type { Metrics } from './metrics.ts';
import type { Queues } from './queues.ts';
import { PENDING, STATUS } from './task.ts';

export type SamplerDeps = { db: Db; limiter: Limiter; queues: Queues; metrics: Metrics; log: Log };

const SAMPLE_EVERY_MS = 2_000;
/** Counting takes at most one part in this many of the time. */
const COUNT_SHARE = 50;
const DELAYED = 1;
const BLOCKED = 2;

type CountRow = { queue: string; status: number; hold: number; tasks: number };
type OldestRow = { queue: string; pending_since: string };

export function createSampler({ db, limiter, queues, metrics, log }: SamplerDeps): Loop {
  let countAt = 0;
  return createLoop({ name: 'sampler', intervalMs: SAMPLE_EVERY_MS, log, runOnce });

  async function runOnce(): Promise<void> {
    await sampleLimiter();
    const began = performance.now();
    if (began < countAt) return;
    try {
      await sampleTasks();
      metrics.sampledAt.set(Date.now() / 1000);
    } finally {
      const ended = performance.now();
      countAt = ended + (ended - began) * COUNT_SHARE;
    }
  }

  async function sampleLimiter(): Promise<void> {
    const open = limiter.state().status === 'open';
    metrics.limiterOpen.set(open ? 1 : 0);
    const all = queues.all();
    const limits = all.map(({ queue, concurrency_limit }) => [queue, concurrency_limit] as const);
    for (const [queue, limit] of byLabel(limits)) metrics.limiterLimit.set({ queue }, limit);
    if (!open) return;
    const usage = await limiter.usage(all.map(({ queue }) => queue));
    for (const [queue, inUse] of byLabel([...usage])) metrics.limiterInUse.set({ queue }, inUse);
  }

  async function sampleTasks(): Promise<void> {
    const rows = await db.query<CountRow>('count_tasks', []);
    const oldest = await db.query<OldestRow>('find_oldest_pending', []);
    const count = (counts: (row: CountRow) => boolean) =>
      byLabel([
        ...queues.all().map(({ queue }) => [queue, 0] as const),
        ...rows.filter(counts).map(({ queue, tasks }) => [queue, tasks] as const),
      ]);
    for (const [number, status] of STATUS.entries())
      for (const [queue, tasks] of count((row) => row.status === number)) metrics.tasks.set({ queue, status }, tasks);
    const pending = (hold: number) => count((row) => row.status === PENDING && row.hold === hold);
    for (const [queue, tasks] of pending(DELAYED)) metrics.delayed.set({ queue }, tasks);
    for (const [queue, tasks] of pending(BLOCKED)) metrics.blocked.set({ queue }, tasks);

    const since = new Map<string, number>(queues.all().map(({ queue }) => [metrics.label(queue), 0]));
    for (const { queue, pending_since } of oldest) {
      const label = metrics.label(queue);
      since.set(label, Math.min(since.get(label) || Number.POSITIVE_INFINITY, Number(pending_since) / 1000));
    }
    for (const [queue, seconds] of since) metrics.oldestPending.set({ queue }, seconds);
  }

  /** Sums by the label of the queue, which many queues may share. */
  function byLabel(values: readonly (readonly [queue: string, value: number])[]): Map<string, number> {
    const sums = new Map<string, number>();
    for (const [queue, value] of values) {
      const label = metrics.label(queue);
      sums.set(label, (sums.get(label) ?? 0) + value);
    }
    return sums;
  }
}
