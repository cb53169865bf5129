/**
 * A varied load for looking at: two instances, a queue with a good and a passing bad target, every kind of submit and of
 * ending, Redis away for a moment, slots that leak. What happens when is drawn from the clock, not from chance.
 */
import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { type Answer, finish, type Push, reply } from './answers.ts';
import { eventually } from './eventually.ts';
import { type Installation, install, post } from './installation.ts';
import { startParser } from './parser.ts';
import type { RunningService } from './process.ts';

/** Submits a second, at the most. */
const PER_SECOND = 30;
const ENV = {
  MAX_PROCESSING: '8',
  RECONCILE_CRON: '* * * * * *',
  CLEANUP_CRON: '*/2 * * * * *',
  ACQUIRE_TTL_MS: '300',
  PROCESSING_EXPIRED_MS: '2500',
  PENDING_EXPIRED_MS: '20000',
  SUCCESS_EXPIRED_MS: '8000',
  CLEANUP_AFTER_MS: '8000',
  RETRY_BASE_MS: '300',
  MAX_RETRIES: '2',
};

/** By task: most succeed, soon or later; some fail, are busy, or never answer. */
const answerOf =
  (place: () => Installation): Answer =>
  ([push], req, res) => {
    const kind = Number(push!.body.task_id) % 23;
    if (kind === 0) return reply(500)([push!], req, res);
    if (kind === 1) return reply(422)([push!], req, res);
    if (kind === 2 && push!.body.attempt === 1) return reply(429, { 'retry-after': '1' })([push!], req, res);
    if (kind === 3) return reply(202)([push!], req, res);
    if (kind < 12) return finish()([push!], req, res);
    void reply(202)([push!], req, res);
    void callBack(place(), push!, kind === 22 ? 7 : 0, 50 + (kind - 12) * 40);
  };

async function callBack(place: Installation, push: Push, statusCode: number, afterMs: number): Promise<void> {
  await sleep(afterMs);
  await place.parser.callback(push, { status_code: statusCode }).catch(() => {});
}

export async function startLoad() {
  // The hooks of a test file's own `before`: what `install` starts ends with the file.
  const place: Installation = await install({ after } as never, { limiter: 'redis', env: ENV });
  place.parser.answerWith(answerOf(() => place));
  const second = await startParser({ answer: finish() });
  const instances = [await place.start(), await place.start()];
  await patchQueue(instances[0]!, {
    targets: [{ url: place.parser.url }, { url: second.url }],
    pending_expired_ms: 20_000,
  });
  const store = new Redis(place.redis.url, { enableOfflineQueue: false });
  store.on('error', () => {});
  return {
    hosts: instances.map(({ url }) => new URL(url).host),
    run: (seconds: number) => run(place, instances, store, second, seconds),
    stop: async () => {
      store.disconnect();
      await second.stop();
    },
  };
}

async function run(
  place: Installation,
  instances: RunningService[],
  store: Redis,
  second: Awaited<ReturnType<typeof startParser>>,
  seconds: number,
): Promise<void> {
  let taskId = 0;
  for (let at = 0; at < seconds; at++) {
    const began = performance.now();
    const count = 5 + Math.round((PER_SECOND - 5) * (0.5 + 0.5 * Math.sin(at / 6)));
    const tasks = Array.from({ length: count }, () => submitOf(++taskId));
    await submitTraced(instances[at % 2]!, tasks).catch(() => {});
    if (at % 7 === 0) await post(instances[0]!, `/v1/callbacks/${'x'.repeat(32)}`, { status_code: 0 });
    if (at % 5 === 0) leak(store, at).catch(() => {});
    if (at === Math.round(seconds * 0.3)) second.answerWith(reply(503));
    if (at === Math.round(seconds * 0.45)) second.answerWith(reply(401));
    if (at === Math.round(seconds * 0.55)) second.answerWith(finish());
    if (at === Math.round(seconds * 0.65)) await place.redis.kill();
    if (at === Math.round(seconds * 0.7)) await place.redis.restart({ empty: true });
    if (at === Math.round(seconds * 0.8)) await patchQueue(instances[1]!, { limit: 4 });
    await sleep(Math.max(0, 1_000 - (performance.now() - began)));
  }
  await eventually(async () => {
    if ((await place.countTasks()).Success === undefined) throw new Error('nothing was done under the load');
  });
}

/** Most are new; some repeat, some are older, some are for later. */
function submitOf(taskId: number): Record<string, unknown> {
  const task = { task_id: taskId, task_version: 2, payload: { n: taskId }, priority: 1 + (taskId % 5) };
  if (taskId % 11 === 0) return { ...task, task_id: taskId - 3, task_version: 1 };
  if (taskId % 13 === 0) return { ...task, task_id: taskId - 5 };
  if (taskId % 17 === 0) return { ...task, task_id: taskId - 1, task_version: 3 };
  if (taskId % 19 === 0) return { ...task, run_at: Date.now() + 3_000 };
  return task;
}

/** Sampled by the caller: latencies carry exemplars. */
async function submitTraced({ url }: RunningService, tasks: unknown[]): Promise<void> {
  const traceparent = `00-${randomBytes(16).toString('hex')}-${randomBytes(8).toString('hex')}-01`;
  const headers = { 'content-type': 'application/json', traceparent };
  await fetch(`${url}/v1/tasks/batch`, { method: 'POST', headers, body: JSON.stringify({ tasks }) });
}

async function leak(store: Redis, at: number): Promise<void> {
  await store.zadd('{docsched}:slots:default', 1, `held-by-nobody-${at}`);
}

async function patchQueue({ url }: RunningService, settings: Record<string, unknown>): Promise<void> {
  const answer = await fetch(`${url}/v1/queues/default`, {
    method: 'PATCH',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(settings),
  });
  if (!answer.ok) throw new Error(await answer.text());
}
