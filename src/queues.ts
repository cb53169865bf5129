/**
 * Settings in force for each queue. PostgreSQL holds them (table queues), so that all instances decide alike; this is
 * the copy in memory, read again every second. What the API never set for a queue comes from the environment: each
 * instance writes its own at start, the last started wins, and the others log what changed.
 */
import type { Config } from './config.ts';
import type { Db } from './db.ts';
import type { Log } from './log.ts';
import { createLoop } from './loop.ts';

/** A parser of a queue. mode sync: the answer to the push is the result. batch: most tasks of one push. */
export type Target = { url: string; mode: 'async' | 'sync'; batch: number; push_timeout_ms: number };

/** What an instance keeps of a queue in memory; list_queues.sql. The rest is read by the statements themselves. */
export type Queue = {
  queue: string;
  targets: Target[];
  concurrency_limit: number;
  /** weights[i] is the weight of level i + 1. */
  priority_weights: number[];
  /** Of the slots, the share that retries may hold. */
  retry_share: number;
  fence: 'strict' | 'lenient';
  callback_auth: 'attempt' | 'signature';
  /** Newest first; pushes are signed with each. */
  secrets: string[];
  paused: boolean;
  payload_max_bytes: number;
  result_max_bytes: number;
};

/** How many slots an acquire may fill; see limiter.ts. */
export type Limits = {
  /** The queue's own limit. */
  limit: number;
  /** Of these, the most that retries may hold. */
  retries: number;
  /** GLOBAL_LIMIT, over all queues; 0 is off. */
  global: number;
  /** The queue's part of `global`: others borrow it only while this queue does not ask for it. */
  guaranteed: number;
};

/** By column of the table queues. */
type Settings = Record<string, unknown>;

export type Queues = {
  /** Undefined when there is no such queue. */
  get(queue: string): Queue | undefined;
  all(): Queue[];
  limits(queue: Queue): Limits;
  /** Reads the table now, for whoever just changed it. */
  load(): Promise<void>;
  start(): Promise<void>;
  stop(): Promise<void>;
  /** Of the reading. */
  lastOkAgeMs(): number | null;
  trouble(): string | null;
};

export type QueuesDeps = {
  db: Db;
  config: Config;
  /** After each change of any queue, and after the first look. */
  onChanged: (queues: Queue[]) => void;
  log: Log;
};

const RELOAD_EVERY_MS = 1_000;

export function createQueues({ db, config, onChanged, log }: QueuesDeps): Queues {
  let queues = new Map<string, Queue>();
  let seen = '';
  let defaultsSeen: Settings | undefined;
  let reading: Promise<void> = Promise.resolve();
  const loop = createLoop({ name: 'queues', intervalMs: RELOAD_EVERY_MS, log, runOnce: load });
  return {
    get: (queue) => queues.get(queue),
    all: () => [...queues.values()],
    limits: (queue) => limitsOf(queue, [...queues.values()], config.GLOBAL_LIMIT),
    load,
    async start() {
      // First as it was: what this instance's environment changes is logged here too.
      await load();
      await db.query('set_queue_defaults', [JSON.stringify(defaultsOf(config))]);
      await load();
      loop.start();
    },
    stop: loop.stop,
    lastOkAgeMs: loop.lastOkAgeMs,
    trouble: loop.trouble,
  };

  /** One after another: a slow read that began before a change never undoes a later one that saw it. */
  function load(): Promise<void> {
    const read = reading.then(readTable);
    reading = read.catch(() => {});
    return read;
  }

  async function readTable(): Promise<void> {
    const rows = await db.query<Queue & { defaults: Settings }>('list_queues', []);
    // A database that no instance has been started on yet.
    if (rows.length === 0) return;
    const loaded = rows.map(({ defaults: _, ...queue }) => queue);
    const { defaults } = rows[0]!;
    const changed = defaultsSeen && changesOf(defaultsSeen, defaults);
    if (changed && Object.keys(changed).length > 0)
      log.info({
        event: 'queue_defaults_changed',
        changed: { ...changed, ...(changed.targets && { targets: 'changed' }) },
      });
    defaultsSeen = defaults;
    const now = JSON.stringify(loaded);
    if (now === seen) return;
    for (const queue of loaded) {
      const { secrets: _, targets, ...rest } = queue;
      const shown = { ...rest, targets: targets.map(({ url }) => withoutQuery(url)) };
      if (seen !== '' && JSON.stringify(queue) !== JSON.stringify(queues.get(queue.queue)))
        log.info({ event: 'queue_changed', ...shown });
    }
    seen = now;
    queues = new Map(loaded.map((queue) => [queue.queue, queue]));
    onChanged(loaded);
  }
}

/** A target's URL for people: its query may hold a secret. */
const withoutQuery = (url: string): string => new URL(url).origin + new URL(url).pathname;

/** What differs, as [before, now]. The environment names no secrets, so there are none in it. */
function changesOf(before: Settings, now: Settings): Record<string, [unknown, unknown]> {
  const names = [...new Set([...Object.keys(before), ...Object.keys(now)])];
  const differing = names.filter((name) => JSON.stringify(before[name]) !== JSON.stringify(now[name]));
  return Object.fromEntries(differing.map((name) => [name, [before[name] ?? null, now[name] ?? null]]));
}

/** A queue's part of the global limit is its part of the sum of all limits, one slot at least. */
export function limitsOf(queue: Queue, all: readonly Queue[], globalLimit: number): Limits {
  const limit = queue.concurrency_limit;
  const sum = all.reduce((total, one) => total + one.concurrency_limit, 0);
  return {
    limit,
    retries: Math.max(1, Math.floor(limit * queue.retry_share)),
    global: globalLimit,
    guaranteed: sum <= globalLimit ? limit : Math.min(limit, Math.max(1, Math.floor((globalLimit * limit) / sum))),
  };
}

/** The environment's part, by column of the table; then the contract's defaults where the environment has no name. */
const defaultsOf = (config: Config) => ({
  targets: config.PARSER_URL === undefined ? [] : [{ url: config.PARSER_URL }],
  concurrency_limit: config.MAX_PROCESSING,
  push_timeout_ms: config.PUSH_TIMEOUT_MS,
  pending_expired_ms: config.PENDING_EXPIRED_MS,
  processing_expired_ms: config.PROCESSING_EXPIRED_MS,
  success_expired_ms: config.SUCCESS_EXPIRED_MS,
  cleanup_failed_ms: config.CLEANUP_AFTER_MS,
  cleanup_stopped_ms: config.CLEANUP_AFTER_MS,
  cleanup_timed_out_ms: config.CLEANUP_AFTER_MS,
  version_floor_ms: config.VERSION_FLOOR_MS,
  max_retries: config.MAX_RETRIES,
  retry_base_ms: config.RETRY_BASE_MS,
  payload_max_bytes: config.PAYLOAD_MAX_BYTES,
  result_max_bytes: config.RESULT_MAX_BYTES,
  priority_weights: [80, 60, 40, 30, 20],
  processing_max_ms: Math.max(86_400_000, config.PROCESSING_EXPIRED_MS),
  retry_strategy: 'exponential',
  retry_max_ms: 300_000,
  retry_jitter: 0.2,
  retry_demote: 1,
  retry_share: 0.5,
  version_policy: 'keep',
  fence: 'strict',
  callback_auth: 'attempt',
  secrets: [],
  paused: false,
});
