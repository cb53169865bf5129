/**
 * docsched's own parts without HTTP: slots from the limiter, claim_tasks, settle_attempts, release. The statements, the
 * slot protocol and the targets are the service's; only the pushes and callbacks are left out.
 */
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { loadConfig } from '../../src/config.ts';
import { createDb } from '../../src/db.ts';
import { createInserter } from '../../src/inserter/inserter.ts';
import { createLimiter } from '../../src/limiter/limiter.ts';
import { createRedisBackend } from '../../src/limiter/redis.ts';
import { createLog } from '../../src/log.ts';
import { createChooser } from '../../src/pusher/chooser.ts';
import { createClaimer } from '../../src/pusher/claim.ts';
import { createTargets } from '../../src/pusher/targets.ts';
import { createQueues } from '../../src/queues.ts';
import { createSettler } from '../../src/receiver/settle.ts';
import { createRedis } from '../../src/redis.ts';
import { loadScripts, loadStatements, migrate } from '../../src/schema.ts';
import { payloadOf, priorityOf } from '../load/wire.ts';
import { type Engine, type EngineDeps, FILL_BATCH } from './engine.ts';

const QUEUE = 'default';
/** The most that one claim takes. */
const BATCH = 512;
const LOOPS = 2;
const TARGET = 'http://127.0.0.1:9/parse';
/** Empty claims in a row after which a loop gives up: something is wrong then. */
const MOST_EMPTY = 200;
const COUNTS = `SELECT count(*) FILTER (WHERE status < 2) AS open,
  count(*) FILTER (WHERE status > 2 OR attempt <> 1) AS failed
  FROM task_scheduler_tasks`;

export async function createDocschedEngine({ databaseUrl, redisUrl }: EngineDeps): Promise<Engine> {
  const log = createLog('warn');
  await migrate(databaseUrl);
  const config = loadConfig({ MAX_PROCESSING: String(BATCH * LOOPS), PARSER_URL: TARGET });
  const db = createDb({ url: databaseUrl, poolMax: config.PG_POOL_MAX, statements: loadStatements(), log });
  const redis = createRedis({ url: redisUrl, scripts: loadScripts(), log });
  const limiter = createLimiter({
    backend: createRedisBackend({ redis }),
    db,
    log,
    instanceId: randomUUID(),
    acquireTtlMs: config.ACQUIRE_TTL_MS,
    wantTtlMs: 2 * config.TRIGGER_INTERVAL_MS,
    onOpen: () => {},
  });
  const queues = createQueues({ db, config, onChanged: () => {}, log });
  await queues.start();
  await limiter.start();
  const settler = createSettler({ db, limiter, onClosed: () => {} });
  const inserter = createInserter({ db, onStored: () => {}, count: () => {} });
  const queue = () => queues.get(QUEUE)!;
  const targets = createTargets({ db, queue, wake: () => {}, log });
  const chooser = createChooser(Math.random);
  const { claim } = createClaimer({ db, limiter, chooser, targets, limits: queues.limits, onUnused: () => {}, log });
  const outside = new pg.Pool({ connectionString: databaseUrl, max: 1 });

  async function drainLoop(left: { tasks: number }): Promise<void> {
    for (let empty = 0; left.tasks > 0 && empty < MOST_EMPTY; ) {
      const { tasks } = await claim(queue(), BATCH);
      empty = tasks.length === 0 ? empty + 1 : 0;
      const settled = await settler.settleBatch(
        tasks.map((task) => ({ attemptId: task.attempt_id, verdict: 'success', statusCode: '0' })),
      );
      if (settled.some(({ outcome }) => outcome !== 'applied')) throw new Error('an attempt was not applied');
      targets.closed(tasks.map(() => ({ target: TARGET })));
      left.tasks -= tasks.length;
    }
  }

  return {
    fill: async ({ firstId, count }) => {
      for (let done = 0; done < count; done += FILL_BATCH) {
        const size = Math.min(FILL_BATCH, count - done);
        await inserter.submitBatch(Array.from({ length: size }, (_, i) => submit(firstId + done + i)));
      }
    },
    drain: async (count) => {
      const left = { tasks: count };
      await Promise.all(Array.from({ length: LOOPS }, () => drainLoop(left)));
      if (left.tasks > 0) throw new Error(`docsched: ${left.tasks} of ${count} not drained`);
    },
    counts: async () => {
      const { rows } = await outside.query(COUNTS);
      return { open: Number(rows[0].open), failed: Number(rows[0].failed) };
    },
    stop: async () => {
      await settler.idle();
      targets.stop();
      await limiter.stop();
      await queues.stop();
      redis.close();
      await Promise.all([db.close(), outside.end()]);
    },
  };
}

const submit = (id: number) => ({
  queue: QUEUE,
  taskId: String(id),
  taskVersion: '1',
  priority: priorityOf(id),
  payload: JSON.stringify(payloadOf(id)),
  runAt: null,
  maxRetries: null,
  traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00',
});
