/**
 * Reads from PostgreSQL and the limiter what /metrics shows as gauges, so that a scrape asks no store. Paces itself: a
 * table that takes long to count is counted less often.
 */
import type { Db } from './db.ts';
import type { Limiter } from './limiter/limiter.ts';
import type { Log } from './log.ts';
import { createLoop, type Loop } from './loop.ts';
import type { Metrics } from './metrics.ts';
import type { Queues } from './queues.ts';
import { STATUS } from './task.ts';

export type SamplerDeps = { db: Db; limiter: Limiter; queues: Queues; metrics: Metrics; log: Log };

const SAMPLE_EVERY_MS = 2_000;
/** Counting takes at most one part in this many of the time. */
const COUNT_SHARE = 50;
const DELAYED = 1;
const BLOCKED = 2;

type CountRow = { queue: string; status: number; hold: number; tasks: number };

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
    for (const { queue, concurrency_limit } of queues.all()) metrics.limiterLimit.set({ queue }, concurrency_limit);
    if (!open) return;
    const usage = await limiter.usage(queues.all().map(({ queue }) => queue));
    for (const [queue, inUse] of usage) metrics.limiterInUse.set({ queue }, inUse);
  }

  async function sampleTasks(): Promise<void> {
    const rows = await db.query<CountRow>('count_tasks', []);
    const oldest = await db.query<{ queue: string; pending_since: string }>('find_oldest_pending', []);
    for (const { queue } of queues.all()) {
      const mine = rows.filter((row) => row.queue === queue);
      const sum = (pick: (row: CountRow) => boolean) => mine.filter(pick).reduce((total, row) => total + row.tasks, 0);
      for (const [status, name] of STATUS.entries())
        metrics.tasks.set(
          { queue, status: name },
          sum((row) => row.status === status),
        );
      metrics.delayed.set(
        { queue },
        sum((row) => row.status === 0 && row.hold === DELAYED),
      );
      metrics.blocked.set(
        { queue },
        sum((row) => row.status === 0 && row.hold === BLOCKED),
      );
      const since = oldest.find((row) => row.queue === queue)?.pending_since;
      metrics.oldestPending.set({ queue }, since === undefined ? 0 : Number(since) / 1000);
    }
  }
}
