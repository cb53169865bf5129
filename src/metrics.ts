/**
 * Every instrument, in one place. Base units, `_total` on counters, no ids as labels. A scrape touches no database:
 * what must be read there is sampled (sample.ts). Latencies carry the trace id of their last sampled task as exemplar.
 * docs/observability.md lists them; a test compares it with this file.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { ClosedAttempt } from './receiver/settle.ts';
import { FAILED, PENDING, STATUS } from './task.ts';
import type { ExpiredRow } from './watcher/expire-pending.ts';

/** From a few ms of dispatch to an hour of waiting. */
const DISPATCH_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600];
const PUSH_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];
const PROCESSING_SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600];
const AGE_SECONDS = [0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400];
const RETRIES = [0, 1, 2, 3, 5, 10];
/** Queues beyond this share the label `other`: the number of series stays bounded. */
const MAX_QUEUES = 50;
const OTHER = 'other';

/** How a target stands with its breaker, as a number. */
export const TARGET_STATE = { closed: 0, ramping: 1, half_open: 2, open: 3 } as const;
const INSERT_OUTCOMES = ['created', 'refreshed', 'recreated', 'existing', 'stale', 'locked'];
const PUSH_OUTCOMES = [
  'accepted',
  'done',
  'busy',
  'try_failed',
  'in_doubt',
  'refused',
  'broken',
  'result_too_large',
  'unsent',
];
/** What woke a pusher; see main.ts. */
const TRIGGER_SOURCES = ['insert', 'settle', 'promote', 'freed', 'notify', 'interval'] as const;
export type TriggerSource = (typeof TRIGGER_SOURCES)[number];
const CALLBACK_OUTCOMES = ['applied', 'duplicate', 'stale', 'unknown', 'unauthorized', 'invalid'];
/**
 * How attempts end, and a coarser word for it that a histogram can bear: success, failed, expired, or returned (what
 * became of the task was not for this attempt to say).
 */
const ENDINGS: Record<string, string> = {
  success: 'success',
  parser_failed: 'failed',
  try_failed: 'failed',
  refused: 'failed',
  result_too_large: 'failed',
  in_doubt_expired: 'expired',
  processing_expired: 'expired',
  busy: 'returned',
  broken: 'returned',
  unsent: 'returned',
  cancelled: 'returned',
};
/** Every value of the label `outcome`, by metric. */
export const OUTCOMES = {
  docsched_inserts_total: INSERT_OUTCOMES,
  docsched_push_duration_seconds: PUSH_OUTCOMES,
  docsched_attempts_total: Object.keys(ENDINGS),
  docsched_callbacks_total: CALLBACK_OUTCOMES,
};

export type Metrics = ReturnType<typeof createMetrics>;

type Exemplar = { exemplarLabels?: Record<string, string> };

export function createMetrics({ version }: { version: string }) {
  const registry = new Registry<typeof Registry.OPENMETRICS_CONTENT_TYPE>();
  registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
  const registers = [registry];
  collectDefaultMetrics({ register: registry });
  const gauge = (name: string, help: string, labelNames: string[]) => new Gauge({ name, help, labelNames, registers });
  const counter = (name: string, help: string, labelNames: string[]) =>
    new Counter({ name, help, labelNames, registers });
  const histogram = (name: string, help: string, labelNames: string[], buckets: number[]) =>
    new Histogram({ name, help, labelNames, buckets, registers, enableExemplars: true });

  const gauges = {
    tasks: gauge('docsched_tasks', 'Tasks by state.', ['queue', 'status']),
    delayed: gauge('docsched_tasks_delayed', 'Pending tasks that are not due yet.', ['queue']),
    blocked: gauge('docsched_tasks_blocked', 'Pending tasks that wait behind a higher version.', ['queue']),
    oldestPending: gauge(
      'docsched_oldest_pending_timestamp_seconds',
      'Since when the oldest claimable task is pending; 0 when there is none.',
      ['queue'],
    ),
    sampledAt: gauge('docsched_sample_timestamp_seconds', 'When the gauges read from the database were last read.', []),
    limiterInUse: gauge('docsched_limiter_in_use', 'Slots in use.', ['queue']),
    limiterLimit: gauge('docsched_limiter_limit', 'The most attempts open at once.', ['queue']),
    limiterDrift: gauge('docsched_limiter_drift', 'Slots less open attempts, as the last reconciliation found them.', [
      'queue',
    ]),
    limiterOpen: gauge('docsched_limiter_open', '1 while the limiter can be used, 0 while closed or degraded.', []),
    targetState: gauge(
      'docsched_target_state',
      'The breaker of a target: 0 closed, 1 ramping up, 2 half open, 3 open (left alone).',
      ['queue', 'target'],
    ),
    loopLastSuccess: gauge('docsched_loop_last_success_timestamp_seconds', 'When a loop last succeeded.', ['loop']),
    loopStallLimit: gauge('docsched_loop_stall_limit_seconds', 'How old that may be.', ['loop']),
    dbPool: gauge('docsched_db_pool_connections', 'Connections of this instance to PostgreSQL, and callers waiting.', [
      'state',
    ]),
    redisUp: gauge('docsched_redis_up', '1 while connected to Redis; absent without REDIS_URL.', []),
  };
  gauge('docsched_build_info', 'Always 1; the version is a label.', ['version']).set({ version }, 1);
  const inserts = counter('docsched_inserts_total', 'Submits by outcome.', ['queue', 'outcome']);
  const attempts = counter('docsched_attempts_total', 'Attempts that ended, by how.', ['queue', 'outcome']);
  const callbacks = counter('docsched_callbacks_total', 'Callbacks by outcome.', ['outcome']);
  const corrections = counter('docsched_limiter_corrections_total', 'Slots that a reconciliation dropped or added.', [
    'queue',
    'direction',
  ]);
  const watcherActions = counter('docsched_watcher_actions_total', 'Rows changed by the watcher, by job.', ['action']);
  const watcherRuns = counter(
    'docsched_watcher_runs_total',
    'Runs of the jobs: ran, skipped (held elsewhere), failed.',
    ['action', 'outcome'],
  );
  const triggerFires = counter(
    'docsched_trigger_fires_total',
    'Wake-ups of the pushers, by what caused them: one a commit or notification, not one a task.',
    ['source'],
  );
  const loopRounds = counter('docsched_loop_rounds_total', 'Rounds of the pushers and the promoter.', [
    'loop',
    'outcome',
  ]);
  const dispatchLatency = histogram(
    'docsched_dispatch_latency_seconds',
    'From becoming due to being claimed.',
    ['queue'],
    DISPATCH_SECONDS,
  );
  const pushDuration = histogram(
    'docsched_push_duration_seconds',
    'Pushes by what the answer meant.',
    ['queue', 'outcome'],
    PUSH_SECONDS,
  );
  const processingDuration = histogram(
    'docsched_processing_duration_seconds',
    'From claim to the end of the attempt, by how it ended.',
    ['queue', 'outcome'],
    PROCESSING_SECONDS,
  );
  const taskAge = histogram(
    'docsched_task_age_seconds',
    'From submit to the end of the task, by an attempt or the pending time-out, by its state.',
    ['queue', 'status'],
    AGE_SECONDS,
  );
  const taskRetries = histogram('docsched_task_retries', 'Counted retries of tasks that ended.', ['queue'], RETRIES);
  /** Queues with a label of their own. */
  const known = new Set<string>();
  /** Labels whose series have begun. */
  const begun = new Set<string>();
  for (const outcome of CALLBACK_OUTCOMES) callbacks.inc({ outcome }, 0);
  for (const source of TRIGGER_SOURCES) triggerFires.inc({ source }, 0);

  return {
    ...gauges,
    /** Renders OpenMetrics; see toPlainText. */
    registry,
    label,
    addQueue,
    inserted: (queue: string, outcome: string) => inserts.inc({ queue: label(queue), outcome }),
    dispatched: (queue: string, seconds: number, traceparent: string) =>
      dispatchLatency.observe({ labels: { queue: label(queue) }, value: seconds, ...exemplar(traceparent) }),
    pushed: (queue: string, outcome: string, seconds: number, traceparent: string) =>
      pushDuration.observe({ labels: { queue: label(queue), outcome }, value: seconds, ...exemplar(traceparent) }),
    calledBack: (outcome: string) => callbacks.inc({ outcome }),
    attemptEnded,
    expired,
    reconciled: (queue: string, drift: number, dropped: number, added: number) => {
      gauges.limiterDrift.set({ queue: label(queue) }, drift);
      corrections.inc({ queue: label(queue), direction: 'dropped' }, dropped);
      corrections.inc({ queue: label(queue), direction: 'added' }, added);
    },
    watcherRan: (job: string, outcome: 'ran' | 'skipped' | 'failed', changed: number) => {
      // Another instance reconciles: what this one found is no longer news.
      if (job === 'reconcile' && outcome === 'skipped')
        for (const queue of known) gauges.limiterDrift.set({ queue }, 0);
      watcherRuns.inc({ action: job, outcome });
      watcherActions.inc({ action: job }, changed);
    },
    triggered: (source: TriggerSource) => triggerFires.inc({ source }),
    looped: (loop: string, outcome: 'ok' | 'failed') => loopRounds.inc({ loop, outcome }),
  };

  function label(queue: string): string {
    if (!known.has(queue) && known.size < MAX_QUEUES) known.add(queue);
    return known.has(queue) ? queue : OTHER;
  }

  /** Known label values begin at 0, so that the first event is a rate and not a new series. Once: it sets them to 0. */
  function addQueue(name: string): void {
    const queue = label(name);
    if (begun.has(queue)) return;
    begun.add(queue);
    for (const status of STATUS) gauges.tasks.set({ queue, status }, 0);
    for (const outcome of INSERT_OUTCOMES) inserts.inc({ queue, outcome }, 0);
    for (const outcome of Object.keys(ENDINGS)) attempts.inc({ queue, outcome }, 0);
    for (const outcome of ['accepted', 'broken', 'busy', 'in_doubt', 'try_failed'])
      pushDuration.zero({ queue, outcome });
    for (const direction of ['dropped', 'added']) corrections.inc({ queue, direction }, 0);
    dispatchLatency.zero({ queue });
    taskRetries.zero({ queue });
    for (const one of [gauges.delayed, gauges.blocked, gauges.oldestPending, gauges.limiterDrift, gauges.limiterInUse])
      one.set({ queue }, 0);
  }

  function attemptEnded(closed: ClosedAttempt): void {
    const queue = label(closed.queue);
    const secondsSince = (ms: string) => (Number(closed.closed_at) - Number(ms)) / 1000;
    // Its task moved on without it: only a cancel does that.
    const outcome = closed.applied ? closed.verdict : 'cancelled';
    const ending = ENDINGS[outcome] ?? 'failed';
    const trace = exemplar(closed.traceparent ?? '');
    attempts.inc({ queue, outcome });
    processingDuration.observe({
      labels: { queue, outcome: ending },
      value: secondsSince(closed.claimed_at),
      ...trace,
    });
    if (closed.status === null || closed.status === PENDING || closed.create_at === null) return;
    taskEnded(queue, closed.status, secondsSince(closed.create_at), closed.retry_count ?? 0, trace);
  }

  /** Tasks that nobody pushed in time. Answers them. */
  function expired(rows: ExpiredRow[]): ExpiredRow[] {
    for (const { queue, age_ms, retry_count, traceparent } of rows)
      taskEnded(label(queue), FAILED, Number(age_ms) / 1000, retry_count, exemplar(traceparent ?? ''));
    return rows;
  }

  function taskEnded(queue: string, status: number, ageSeconds: number, retries: number, trace: Exemplar): void {
    taskAge.observe({ labels: { queue, status: STATUS[status]! }, value: ageSeconds, ...trace });
    taskRetries.observe({ labels: { queue }, value: retries, ...trace });
  }
}

/** Only of traces that are recorded: a link to nothing helps nobody. */
function exemplar(traceparent: string): Exemplar {
  if (!traceparent.endsWith('1')) return {};
  const [, trace_id = '', span_id = ''] = traceparent.split('-');
  return { exemplarLabels: { trace_id, span_id } };
}

/** For scrapers that do not ask for OpenMetrics: without exemplars, counters named as their samples. */
export function toPlainText(openMetrics: string): string {
  const counters = new Set([...openMetrics.matchAll(/^# TYPE (\S+) counter$/gm)].map(([, name]) => name));
  return openMetrics
    .replace(/^# (HELP|TYPE) (\S+)/gm, (line, _, name) => (counters.has(name) ? `${line}_total` : line))
    .replace(/ # \{[^}]*\} \S+ \S+$/gm, '')
    .replace(/# EOF\n$/, '');
}
