/**
 * Composition root: reads top to bottom like the architecture. Sinks start before sources, so that a callback can
 * always land; the stop goes the other way. Exit codes: 0 stopped, 1 crashed, 57 the database is of a newer docsched,
 * 78 settings are wrong.
 */
import { randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { type Config, ConfigError, loadConfig, usage } from './config.ts';
import { createDb } from './db.ts';
import { apiShare, createDbShare } from './db-share.ts';
import { startEmbeddedPostgres } from './embedded.ts';
import { createEventRoutes } from './events.ts';
import { type Check, createHealth, heldBecause, NO_PARSER } from './health.ts';
import { createServer } from './http.ts';
import { createInserter } from './inserter/inserter.ts';
import { createInserterRoutes } from './inserter/route.ts';
import { createJournal } from './journal.ts';
import { logCrashes, type Part, runParts } from './lifecycle.ts';
import { createLimiter } from './limiter/limiter.ts';
import { createPostgresBackend } from './limiter/postgres.ts';
import { checkRedis, createRedisBackend, UnfitRedisError } from './limiter/redis.ts';
import { createLog, type Log } from './log.ts';
import { createMetrics, type TriggerSource } from './metrics.ts';
import { createParserClient } from './pusher/parser-client.ts';
import { createPushers } from './pusher/pushers.ts';
import { createQueueRoutes } from './queue-routes.ts';
import { createQueues, type Queue } from './queues.ts';
import { createReceiverRoutes } from './receiver/route.ts';
import { type ClosedAttempt, createSettler, isFinished, isReturned } from './receiver/settle.ts';
import { createRedis } from './redis.ts';
import { createRedrive } from './redrive.ts';
import { createSampler } from './sample.ts';
import { loadScripts, loadStatements, migrate, NewerSchemaError } from './schema.ts';
import { keyOf, type TaskKey } from './task.ts';
import { createTaskRoutes } from './tasks.ts';
import { stopTelemetry } from './telemetry.ts';
import { createAnnouncer } from './trigger/announcer.ts';
import { createTrigger } from './trigger/trigger.ts';
import { createWaiter } from './waiter.ts';
import { createClean } from './watcher/clean.ts';
import { createExpirePending, type ExpiredRow } from './watcher/expire-pending.ts';
import { createExpireProcessing } from './watcher/expire-processing.ts';
import { createFoldCounts } from './watcher/fold-counts.ts';
import { createPostgresLease, createRedisLease } from './watcher/lease.ts';
import { createPromote } from './watcher/promote.ts';
import { createReconcile } from './watcher/reconcile.ts';
import { createRetain } from './watcher/retain.ts';
import { createWatcher } from './watcher/watcher.ts';

const { version: VERSION } = createRequire(import.meta.url)('../package.json') as { version: string };
/** What a wake-up tells the pushers, where it is more than that something happened. */
const TELLS: Partial<Record<TriggerSource, 'expectWork' | 'slotFreed'>> = { insert: 'expectWork', settle: 'slotFreed' };
/** The watcher promotes what falls due; this instance what it returned itself, and once a minute in any case. */
const PROMOTE_ANYWAY_MS = 60_000;

type Stores = Awaited<ReturnType<typeof openStores>>;

/** PostgreSQL (embedded when no URL is given), brought to this version's schema, and Redis when there is one. */
async function openStores(config: Config, log: Log) {
  const embedded = config.DATABASE_URL ? undefined : await startEmbeddedPostgres({ dataDir: config.DATA_DIR, log });
  const databaseUrl = config.DATABASE_URL ?? embedded!.url;
  const directUrl = config.DATABASE_DIRECT_URL;
  await migrate(directUrl ?? databaseUrl);
  const db = createDb({ url: databaseUrl, directUrl, poolMax: config.PG_POOL_MAX, statements: loadStatements(), log });
  const api = createDbShare({ db, max: apiShare(config.PG_POOL_MAX) });
  const redis = config.REDIS_URL ? createRedis({ url: config.REDIS_URL, scripts: loadScripts(), log }) : undefined;
  if (redis) await checkRedis(redis);
  const close = async () => {
    redis?.close();
    await db.close();
    await embedded?.stop();
  };
  return { db, api, redis, close };
}

/** Everything, wired. Nothing runs yet. */
function assemble(config: Config, log: Log, { db, api, redis }: Stores) {
  const does = (role: Config['ROLES'][number]) => config.ROLES.includes(role);
  const instanceId = randomUUID();
  const metrics = createMetrics({ version: VERSION });
  const journal = createJournal(log);
  const queues = createQueues({ db, config, onChanged, log });

  // The limiter, and what wakes whom.
  const backend = redis ? createRedisBackend({ redis }) : createPostgresBackend({ db });
  const limiter = createLimiter({
    backend,
    db,
    log,
    instanceId,
    acquireTtlMs: config.ACQUIRE_TTL_MS,
    wantTtlMs: 2 * config.TRIGGER_INTERVAL_MS,
    onOpen: () => pushers.wake(),
  });
  const onHeard = (queue?: string, walk?: boolean) => {
    metrics.triggered('notify');
    pushers.wake(queue, walk);
  };
  const announcer = createAnnouncer({ db, instanceId, onHeard, log });
  /** There is work in these queues, or in any. */
  const wake = (source: TriggerSource) => (names?: Iterable<string>) => {
    metrics.triggered(source);
    if (names === undefined) pushers.wake();
    else for (const name of names) pushers[TELLS[source] ?? 'wake'](name);
    announcer.announce(names ?? queues.all().map(({ queue }) => queue), TELLS[source] === undefined);
  };
  const promote = createPromote({
    db,
    onPromoted: wake('promote'),
    onStopped: (keys) => waiter.finished(journal.superseded(keys)),
  });
  const promoteNow = () => promote.runOnce().then(() => false);
  const promoteTrigger = createTrigger({
    name: 'promoter',
    intervalMs: PROMOTE_ANYWAY_MS,
    log,
    runOnce: promoteNow,
    onRound: (outcome) => metrics.looped('promoter', outcome),
  });
  const waiter = createWaiter({ db, log });

  // In: inserter.
  const inserter = createInserter({ db: api, onStored: wake('insert'), count: metrics.inserted });

  // Back: receiver.
  const settler = createSettler({ db, limiter, onClosed });

  // Out: pusher.
  let publicUrl = config.PUBLIC_URL?.replace(/\/$/, '');
  const client = createParserClient();
  const pushers = createPushers({
    db,
    limiter,
    client,
    settler,
    createTrigger: (one) =>
      createTrigger({
        ...one,
        onInterval: () => metrics.triggered('interval'),
        onRound: (outcome) => metrics.looped('pusher', outcome),
      }),
    intervalMs: config.TRIGGER_INTERVAL_MS,
    limits: queues.limits,
    onUnused: wake('freed'),
    callbackUrl: (attemptId) => `${publicUrl}/v1/callbacks/${attemptId}`,
    observePush: metrics.pushed,
    observeDispatch: metrics.dispatched,
    log,
  });

  // Around it: watcher and gauges.
  const onFinished = (keys: TaskKey[], rows: ExpiredRow[]) =>
    waiter.finished(journal.expired(keys, metrics.expired(rows)));
  const every = config.WATCH_CRON;
  const watcher = createWatcher({
    jobs: [
      {
        name: 'expire_pending',
        schedule: every,
        runOnce: createExpirePending({ db, queues, onFinished, onFreed: wake('freed') }).runOnce,
      },
      { name: 'expire_processing', schedule: every, runOnce: createExpireProcessing({ db, settler }).runOnce },
      { name: 'retain', schedule: every, runOnce: createRetain({ db, queues }).runOnce },
      { name: 'promote', schedule: config.PROMOTE_CRON, runOnce: promote.runOnce },
      {
        name: 'reconcile',
        schedule: config.RECONCILE_CRON,
        runOnce: createReconcile({ limiter, queues, observe: metrics.reconciled, onFreed: wake('freed'), log }).runOnce,
      },
      { name: 'fold_counts', schedule: every, runOnce: createFoldCounts({ db }).runOnce },
      { name: 'clean', schedule: config.CLEANUP_CRON, runOnce: createClean({ db, queues }).runOnce },
    ],
    lease: redis
      ? createRedisLease({ redis, fallback: createPostgresLease({ db, instanceId }) })
      : createPostgresLease({ db, instanceId }),
    db,
    observe: metrics.watcherRan,
    log,
  });
  const sampler = createSampler({ db, limiter, queues, metrics, log });

  // The front: HTTP.
  const checks: Check[] = [
    { name: 'listener', lastOkAgeMs: announcer.lastOkAgeMs, limitMs: 10_000, detail: announcer.trouble },
    { name: 'queues', lastOkAgeMs: queues.lastOkAgeMs, limitMs: 10_000, detail: queues.trouble },
    { name: 'waiter', lastOkAgeMs: waiter.lastOkAgeMs, limitMs: 10_000, detail: waiter.trouble },
    { name: 'sampler', lastOkAgeMs: sampler.lastOkAgeMs, limitMs: 30_000, detail: sampler.trouble },
    { name: 'promoter', lastOkAgeMs: promoteTrigger.lastOkAgeMs, limitMs: PROMOTE_ANYWAY_MS + 5_000 },
  ];
  const pusherLimitMs = config.TRIGGER_INTERVAL_MS + 5_000;
  if (does('pusher')) checks.push({ name: 'pusher', lastOkAgeMs: pushers.lastOkAgeMs, limitMs: pusherLimitMs });
  if (does('watcher')) checks.push(...watcher.checks);
  const notes = () => [...queues.all().flatMap(heldBecause), ...pushers.trouble()];
  const health = createHealth({
    db,
    limiter,
    checks,
    metrics,
    isRedisConnected: redis?.connected,
    targets: pushers.states,
    notes,
    log,
  });
  const { BATCH_MAX_BYTES: batchMaxBytes } = config;
  const apiRoutes = [
    createInserterRoutes({ inserter, queues, batchMaxBytes, journal }),
    createReceiverRoutes({ db, queues, settler, batchMaxBytes, count: metrics.calledBack, journal }),
    createQueueRoutes({ db: api, queues, redrive: createRedrive({ db: api, onRedriven: promoteTrigger.wake, log }) }),
    createTaskRoutes({ db: api, queues, waiter, onRetried: promoteTrigger.wake, onFreed: wake('freed'), journal }),
  ];
  const events = createEventRoutes({ db: api, queues, waiter });
  const routers = [health.router, ...(does('api') ? [...apiRoutes, events.router] : [])];
  const http = createServer({ routers, log });
  const serve = async () => {
    const port = await http.listen(config.HOST, config.PORT);
    const url = `http://${config.HOST.includes(':') ? `[${config.HOST}]` : config.HOST}:${port}`;
    publicUrl ??= url;
    if (does('pusher') && queues.get('default')?.targets.length === 0) log.warn({ event: 'no_parser', msg: NO_PARSER });
    log.info({ event: 'listening', url, roles: config.ROLES, limiter: redis ? 'redis' : 'postgres' });
  };

  /** After the commit and the release: tell those who wait, look for the next work. */
  function onClosed(closed: ClosedAttempt[]): void {
    journal.settled(closed);
    pushers.closed(closed);
    for (const attempt of closed) metrics.attemptEnded(attempt);
    waiter.finished(closed.filter(isFinished).map(keyOf));
    if (closed.some(isReturned)) promoteTrigger.wake();
    // Under a global limit a freed slot may be any queue's.
    wake('settle')(config.GLOBAL_LIMIT > 0 ? undefined : new Set(closed.map(({ queue }) => queue)));
  }

  function onChanged(all: Queue[]): void {
    for (const { queue } of all) metrics.addQueue(queue);
    pushers.set(all);
  }

  const parts: Part[] = [
    { start: queues.start, stop: queues.stop },
    { start: limiter.start, stop: limiter.stop },
    { start: announcer.start, stop: announcer.stop },
    { stop: settler.idle },
    { start: sampler.start, stop: sampler.stop },
    { start: promoteTrigger.start, stop: promoteTrigger.stop },
    { start: health.start, stop: health.stop },
    { stop: client.close },
    { start: serve, stop: http.close },
    { stop: inserter.idle },
    { start: waiter.start, stop: waiter.stop },
    ...(does('watcher') ? [watcher] : []),
    { stop: pushers.idle },
    { start: events.start, stop: events.stop },
    { stop: http.refuse },
    { stop: () => health.drained(config.SHUTDOWN_TIMEOUT_MS) },
    ...(does('pusher') ? [{ start: pushers.start, stop: pushers.stop }] : []),
    { stop: health.drain },
  ];
  return parts;
}

async function main(): Promise<void> {
  readArguments(process.argv.slice(2));
  const config = loadConfig(process.env);
  const log = createLog(config.LOG_LEVEL);
  logCrashes(log);
  await runParts(
    async (running) => {
      const stores = await openStores(config, log);
      running.push({ stop: stopTelemetry }, { stop: stores.close });
      return assemble(config, log, stores);
    },
    { shutdownTimeoutMs: config.SHUTDOWN_TIMEOUT_MS, log },
  );
}

/** There are none but --help. */
function readArguments(given: string[]): void {
  if (given.length === 0) return;
  const help = given.every((argument) => argument === '--help' || argument === '-h');
  (help ? console.log : console.error)(usage());
  process.exit(help ? 0 : 78);
}

function explainAndExit(error: Error): never {
  if (error instanceof ConfigError) {
    console.error(
      `docsched cannot start, its settings are wrong:\n${error.problems.map((problem) => `  ${problem}`).join('\n')}`,
    );
    process.exit(78);
  }
  if (error instanceof UnfitRedisError) {
    console.error(`docsched cannot start: ${error.message}`);
    process.exit(78);
  }
  console.error(`docsched cannot start: ${error.message}`);
  process.exit(error instanceof NewerSchemaError ? 57 : 1);
}

main().catch(explainAndExit);
