/**
 * Settings in force for each queue. PostgreSQL holds them (table queues), so that all instances decide alike; this is
 * the copy in memory, read again every second. At start the environment's values are written for queue `default`:
 * the last started instance wins, and the others log what changed.
 */
import type { Config } from './config.ts';
import type { Db } from './db.ts';
import type { Log } from './log.ts';
import { createLoop } from './loop.ts';

export type Queue = {
  queue: string;
  target_url: string | null;
  concurrency_limit: number;
  /** weights[i] is the weight of level i + 1. */
  priority_weights: number[];
  push_timeout_ms: number;
  payload_max_bytes: number;
  result_max_bytes: number;
};

export type Queues = {
  /** Undefined when there is no such queue. */
  get(queue: string): Queue | undefined;
  all(): Queue[];
  start(): Promise<void>;
  stop(): Promise<void>;
};

/** The contract's defaults where the environment has no name for them. */
const PRIORITY_WEIGHTS = [80, 60, 40, 30, 20];
const PROCESSING_MAX_MS = 86_400_000;
const RETRY = { strategy: 'exponential', maxMs: 300_000, jitter: 0.2, demote: 1 };

export function createQueues({ db, config, log }: { db: Db; config: Config; log: Log }): Queues {
  let queues = new Map<string, Queue>();
  const loop = createLoop({ name: 'queues', intervalMs: 1_000, log, runOnce: load });
  return {
    get: (queue) => queues.get(queue),
    all: () => [...queues.values()],
    async start() {
      await db.query('set_default_queue', defaults(config));
      await load();
      loop.start();
    },
    stop: loop.stop,
  };

  async function load(): Promise<void> {
    const rows = await db.query<Queue & { version: string }>('list_queues', []);
    for (const row of rows) {
      const known = queues.get(row.queue);
      if (known && JSON.stringify(known) !== JSON.stringify(row))
        log.info({
          event: 'queue_defaults_changed',
          queue: row.queue,
          limit: row.concurrency_limit,
          target: row.target_url,
        });
    }
    queues = new Map(rows.map((row) => [row.queue, row]));
  }
}

function defaults(config: Config): unknown[] {
  return [
    'default',
    config.PARSER_URL ?? null,
    config.MAX_PROCESSING,
    PRIORITY_WEIGHTS,
    config.PUSH_TIMEOUT_MS,
    config.PENDING_EXPIRED_MS,
    config.PROCESSING_EXPIRED_MS,
    Math.max(PROCESSING_MAX_MS, config.PROCESSING_EXPIRED_MS),
    config.SUCCESS_EXPIRED_MS,
    config.CLEANUP_AFTER_MS,
    config.VERSION_FLOOR_MS,
    config.MAX_RETRIES,
    RETRY.strategy,
    config.RETRY_BASE_MS,
    Math.max(RETRY.maxMs, config.RETRY_BASE_MS),
    RETRY.jitter,
    RETRY.demote,
    config.PAYLOAD_MAX_BYTES,
    config.RESULT_MAX_BYTES,
  ];
}
