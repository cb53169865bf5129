/**
 * Composition root: reads top to bottom like the architecture. Sinks start before sources, so that a callback can
 * always land; the stop goes the other way. Exit codes: 0 stopped, 1 crashed, 57 the database is of a newer docsched,
 * 78 settings are wrong.
 */
import { randomUUID } from 'node:crypto';
import { type Config, ConfigError, loadConfig, type Role, usage } from './config.ts';
import { createDb } from './db.ts';
import { startEmbeddedPostgres } from './embedded.ts';
import { createHealth } from './health.ts';
import { createServer } from './http.ts';
import { createInserter } from './inserter/inserter.ts';
import { createInserterRoutes } from './inserter/route.ts';
import { createLimiter } from './limiter/limiter.ts';
import { createPostgresBackend } from './limiter/postgres.ts';
import { checkRedis, createRedisBackend, UnfitRedisError } from './limiter/redis.ts';
import { createLog, type Log } from './log.ts';
import { withLimit } from './loop.ts';
import { createMetrics } from './metrics.ts';
import { createChooser } from './pusher/chooser.ts';
import { createClaimer } from './pusher/claim.ts';
import { createParserClient } from './pusher/parser-client.ts';
import { createPusher, MAX_PUSHES } from './pusher/pusher.ts';
import { createQueues } from './queues.ts';
import { createReceiverRoutes } from './receiver/route.ts';
import { type ClosedAttempt, createSettler, isFinished, isReturned } from './receiver/settle.ts';
import { createRedis } from './redis.ts';
import { createSampler } from './sample.ts';
import { loadScripts, loadStatements, migrate, NewerSchemaError } from './schema.ts';
import { keyOf } from './task.ts';
import { createTaskRoutes } from './tasks.ts';
import { stopTelemetry } from './telemetry.ts';
import { createAnnouncer } from './trigger/announcer.ts';
import { createTrigger } from './trigger/trigger.ts';
import { createWaiter } from './waiter.ts';
import { createClean } from './watcher/clean.ts';
import { createExpirePending } from './watcher/expire-pending.ts';
import { createExpireProcessing } from './watcher/expire-processing.ts';
import { createPostgresLease, createRedisLease } from './watcher/lease.ts';
import { createPromote } from './watcher/promote.ts';
import { createReconcile } from './watcher/reconcile.ts';
import { createRetain } from './watcher/retain.ts';
import { createWatcher } from './watcher/watcher.ts';

/** The queue that the environment describes. */
const QUEUE = 'default';
const NO_PARSER = 'PARSER_URL is not set: tasks are accepted and held';
/** The watcher promotes what falls due; this instance what it returned itself, and once a minute in any case. */
const PROMOTE_ANYWAY_MS = 60_000;
/** Even when the time is over, a part gets this long: closing connections and the embedded PostgreSQL takes no longer. */
const MIN_STOP_MS = 250;

type Stores = Awaited<ReturnType<typeof openStores>>;
/** Started in order, stopped in reverse. */
type Part = { start?: () => unknown; stop?: () => unknown };

/** PostgreSQL (embedded when no URL is given), brought to this version's schema, and Redis when there is one. */
async function openStores(config: Config, log: Log) {
  const embedded = config.DATABASE_URL ? undefined : await startEmbeddedPostgres({ dataDir: config.DATA_DIR, log });
  const databaseUrl = config.DATABASE_URL ?? embedded!.url;
  await migrate(databaseUrl);
  const db = createDb({ url: databaseUrl, poolMax: config.PG_POOL_MAX, statements: loadStatements(), log });
  const redis = config.REDIS_URL ? createRedis({ url: config.REDIS_URL, scripts: loadScripts(), log }) : undefined;
  if (redis) await checkRedis(redis);
  const close = async () => {
    redis?.close();
    await db.close();
    await embedded?.stop();
  };
  return { db, redis, close };
}

/** Everything, wired. Nothing runs yet. */
function assemble(config: Config, log: Log, { db, redis }: Stores) {
  const does = (role: Config['ROLES'][number]) => config.ROLES.includes(role);
  const instanceId = randomUUID();
  const metrics = createMetrics();
  metrics.start(QUEUE);
  const queues = createQueues({ db, config, onChanged: () => pushTrigger.wake(), log });

  // The limiter, and what wakes whom.
  const backend = redis ? createRedisBackend({ redis }) : createPostgresBackend({ db });
  const limiter = createLimiter({
    backend,
    db,
    log,
    instanceId,
    acquireTtlMs: config.ACQUIRE_TTL_MS,
    onOpen: () => pushTrigger.wake(),
  });
  const announcer = createAnnouncer({ db, instanceId, onHeard: () => pushTrigger.wake(), log });
  const wakeAll = () => {
    pushTrigger.wake();
    announcer.announce();
  };
  const promote = createPromote({ db, onPromoted: wakeAll });
  const promoteNow = async () => {
    await promote.runOnce();
    return false;
  };
  const promoteTrigger = createTrigger({ name: 'promoter', intervalMs: PROMOTE_ANYWAY_MS, log, runOnce: promoteNow });
  const waiter = createWaiter({ db, log });

  // In: inserter.
  const countInsert = (queue: string, outcome: string) => metrics.inserts.inc({ queue, outcome });
  const inserter = createInserter({ db, onStored: wakeAll, count: countInsert });

  // Back: receiver.
  const settler = createSettler({ db, limiter, onClosed });

  // Out: pusher.
  let publicUrl = config.PUBLIC_URL?.replace(/\/$/, '');
  const client = createParserClient({ connections: MAX_PUSHES });
  const { claim } = createClaimer({ db, limiter, chooser: createChooser(Math.random), log });
  const pusher = createPusher({
    db,
    claim,
    client,
    settler,
    queue: () => queues.get(QUEUE),
    callbackUrl: (attemptId) => `${publicUrl}/v1/callbacks/${attemptId}`,
    wake: () => pushTrigger.wake(),
    observePush: (queue, outcome, seconds) => metrics.pushDuration.observe({ queue, outcome }, seconds),
    observeDispatch: (queue, seconds) => metrics.dispatchLatency.observe({ queue }, Math.max(0, seconds)),
    log,
  });
  const pushTrigger = createTrigger({
    name: 'pusher',
    intervalMs: config.TRIGGER_INTERVAL_MS,
    log,
    runOnce: pusher.runOnce,
  });

  // Around it: watcher and gauges.
  const onFinished = waiter.finished;
  const observeDrift = (queue: string, drift: number) => metrics.limiterDrift.set({ queue }, drift);
  const every = config.WATCH_CRON;
  const watcher = createWatcher({
    jobs: [
      {
        name: 'expire_pending',
        schedule: every,
        runOnce: createExpirePending({ db, queues, onFinished, onFreed: wakeAll }).runOnce,
      },
      { name: 'expire_processing', schedule: every, runOnce: createExpireProcessing({ db, settler }).runOnce },
      { name: 'retain', schedule: every, runOnce: createRetain({ db, queues }).runOnce },
      { name: 'promote', schedule: config.PROMOTE_CRON, runOnce: promote.runOnce },
      {
        name: 'reconcile',
        schedule: config.RECONCILE_CRON,
        runOnce: createReconcile({ limiter, queues, observeDrift, onFreed: wakeAll, log }).runOnce,
      },
      { name: 'clean', schedule: config.CLEANUP_CRON, runOnce: createClean({ db, queues }).runOnce },
    ],
    lease: redis
      ? createRedisLease({ redis, fallback: createPostgresLease({ db, instanceId }) })
      : createPostgresLease({ db, instanceId }),
    db,
    observe: (job, changed) => metrics.watcherActions.inc({ job }, changed),
    log,
  });
  const sampler = createSampler({ db, limiter, queues, metrics, log });

  // The front: HTTP.
  const pusherLimitMs = config.TRIGGER_INTERVAL_MS + 5_000;
  const checks = [
    { name: 'listener', lastOkAgeMs: announcer.lastOkAgeMs, limitMs: 10_000, required: false },
    { name: 'pusher', lastOkAgeMs: pushTrigger.lastOkAgeMs, limitMs: pusherLimitMs, required: false },
    { name: 'watcher', lastOkAgeMs: watcher.lastOkAgeMs, limitMs: 15_000, required: false },
  ].filter(({ name }) => name === 'listener' || does(name as Role));
  const notes = () => [config.PARSER_URL ? null : NO_PARSER, pusher.trouble()].filter((note) => note !== null);
  const health = createHealth({ db, limiter, checks, metrics, notes, log });
  const countCallback = (outcome: string) => metrics.callbacks.inc({ outcome });
  const {
    PAYLOAD_MAX_BYTES: payloadMaxBytes,
    BATCH_MAX_BYTES: batchMaxBytes,
    RESULT_MAX_BYTES: resultMaxBytes,
  } = config;
  const apiRoutes = [
    createInserterRoutes({ inserter, queues, payloadMaxBytes, batchMaxBytes }),
    createReceiverRoutes({ db, settler, resultMaxBytes, count: countCallback }),
    createTaskRoutes({ db, queues, waiter, onRetried: promoteTrigger.wake, onFreed: wakeAll }),
  ];
  const http = createServer({ routers: [health.router, ...(does('api') ? apiRoutes : [])], log });
  const serve = async () => {
    const port = await http.listen(config.HOST, config.PORT);
    const url = `http://${config.HOST.includes(':') ? `[${config.HOST}]` : config.HOST}:${port}`;
    publicUrl ??= url;
    if (!config.PARSER_URL) log.warn({ event: 'no_parser', msg: NO_PARSER });
    log.info({ event: 'listening', url, roles: config.ROLES, limiter: redis ? 'redis' : 'postgres' });
  };

  /** After the commit and the release: tell those who wait, look for the next work. */
  function onClosed(closed: ClosedAttempt[]): void {
    for (const attempt of closed) {
      const { queue, verdict, claimed_at, closed_at } = attempt;
      metrics.processingDuration.observe({ queue, outcome: verdict }, (Number(closed_at) - Number(claimed_at)) / 1000);
    }
    waiter.finished(closed.filter(isFinished).map(keyOf));
    if (closed.some(isReturned)) promoteTrigger.wake();
    wakeAll();
  }

  const parts: Part[] = [
    { start: queues.start, stop: queues.stop },
    { start: limiter.start, stop: limiter.stop },
    { stop: settler.idle },
    { start: sampler.start, stop: sampler.stop },
    { start: promoteTrigger.start, stop: promoteTrigger.stop },
    { start: health.start, stop: health.stop },
    { stop: client.close },
    { start: serve, stop: http.close },
    { stop: inserter.idle },
    { start: waiter.start, stop: waiter.stop },
    ...(does('watcher') ? [watcher] : []),
    { stop: pusher.idle },
    ...(does('pusher') ? [{ start: pushTrigger.start, stop: pushTrigger.stop }] : []),
    { start: announcer.start, stop: announcer.stop },
    { stop: http.refuse },
  ];
  return parts;
}

async function main(): Promise<void> {
  readArguments(process.argv.slice(2));
  const config = loadConfig(process.env);
  const log = createLog(config.LOG_LEVEL);
  process.on('unhandledRejection', (error) =>
    log.error({ event: 'unhandled_rejection', error: String(error), stack: (error as Error)?.stack }),
  );
  const running: Part[] = [];
  let stopping = false;
  const starting = start();
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
  await starting;

  async function start(): Promise<void> {
    const stores = await openStores(config, log);
    running.push({ stop: stopTelemetry }, { stop: stores.close });
    for (const part of assemble(config, log, stores)) {
      if (stopping) return;
      running.push(part);
      await part.start?.();
    }
  }

  /** What has been started by then, in reverse. A second signal ends the process at once. */
  async function stop(signal: string): Promise<void> {
    if (stopping) process.exit(1);
    stopping = true;
    log.info({ event: 'stopping', signal });
    const until = performance.now() + config.SHUTDOWN_TIMEOUT_MS;
    await starting.catch(() => {});
    // No part may use up the time of those after it: a hung push must not keep the answers of others from leaving.
    const share = config.SHUTDOWN_TIMEOUT_MS / 2;
    for (const part of running.toReversed()) await stopPart(part, Math.min(until, performance.now() + share), log);
    log.info({ event: 'stopped' });
    process.exit(0);
  }
}

/** A part that does not stop in time is left behind: what it held open is repaired like after a crash. */
async function stopPart(part: Part, until: number, log: Log): Promise<void> {
  try {
    await withLimit(Promise.resolve(part.stop?.()), Math.max(MIN_STOP_MS, until - performance.now()));
  } catch (error) {
    log.warn({ event: 'stop_incomplete', error: (error as Error).message });
  }
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
