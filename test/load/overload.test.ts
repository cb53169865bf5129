/**
 * Three times as many submits as PostgreSQL takes, for a minute: what it takes is still taken, the rest is told to come
 * back, nothing piles up, and callbacks go on as before. PostgreSQL is slowed down at inserts, so that it is what is too
 * slow, on any machine. OVERLOAD_SECONDS and OVERLOAD_DELAY_MS (0: as fast as it is) make another run of it.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { Push } from '../support/answers.ts';
import { type Installation, install, setQueue, submitMany } from '../support/installation.ts';
import { quantile, slowInserts } from '../support/slow-inserts.ts';
import type { Outcome } from './generator.ts';

const SECONDS = Number(process.env.OVERLOAD_SECONDS || 60);
const DELAY_MS = Number(process.env.OVERLOAD_DELAY_MS ?? 1_000);
/** Enough to keep groups full while others are on their way. */
const CAPACITY_CONNECTIONS = 1_200;
const CAPACITY_SECONDS = 12;
const TIMES = 3;
const MIN_GOODPUT = 0.8;
const CALLBACK_EVERY_MS = 50;
/** Nine of ten, and each: the machine may stand still for a moment. */
const CALLBACK_P90_MS = 1_000;
const CALLBACK_MAX_MS = 10_000;
/** Above what it held at capacity: admitted bodies and their parsed form, and sockets of those that were refused. */
const MAX_GROWTH_MB = 300;
/** Of the last third over the one before: what is bounded does not grow. */
const MAX_DRIFT_MB = 60;
const GENERATOR = fileURLToPath(new URL('generator.ts', import.meta.url));

test('at three times its capacity a service keeps its goodput, its memory and its callbacks', {
  timeout: 600_000,
}, async (t) => {
  const callbacks = Math.ceil(((SECONDS + 5) * 1_000) / CALLBACK_EVERY_MS);
  const place = await install(t, { limiter: 'postgres', env: { MAX_PROCESSING: String(2 * callbacks) } });
  const service = await place.start();
  const port = new URL(service.url).port;
  await submitMany(
    service,
    Array.from({ length: callbacks }, (_, i) => ({ task_id: i + 1 })),
  );
  const pushes = await place.parser.waitForPushes(callbacks, 60_000);
  await setQueue(service, 'held', { paused: true });
  if (DELAY_MS > 0) await slowInserts(place.sql, DELAY_MS);
  const generate = (first: number, seconds: number, mode: 'open' | 'closed', amount: number) =>
    runGenerator([port, 'held', String(first), String(seconds), mode, String(amount)]);

  const closed = await generate(1_000_000, CAPACITY_SECONDS, 'closed', CAPACITY_CONNECTIONS);
  const capacity = steadyRate(closed.perSecond.slice(2, CAPACITY_SECONDS));
  assert.ok(capacity > 100, `${capacity}/s`);

  const memory = { before: residentMb(service.pid), samples: [] as number[] };
  const watching = setInterval(() => memory.samples.push(residentMb(service.pid)), 500);
  const reporting = report(place, pushes, SECONDS);
  const open = await generate(100_000_000, SECONDS, 'open', Math.round(TIMES * capacity)).finally(() =>
    clearInterval(watching),
  );
  const waits = await reporting;

  const goodput = steadyRate(open.perSecond.slice(2, SECONDS));
  const third = Math.floor(memory.samples.length / 3);
  const drift = Math.max(...memory.samples.slice(-third)) - Math.max(...memory.samples.slice(-2 * third, -third));
  const growth = Math.max(...memory.samples) - memory.before;
  t.diagnostic(`capacity ${capacity}/s, goodput at ${TIMES}x ${goodput}/s (${(goodput / capacity).toFixed(2)})`);
  t.diagnostic(
    `sent ${open.sent}, accepted ${open.accepted} (p50 ${open.p50}, p99 ${open.p99} ms), unsent ${open.unsent}`,
  );
  t.diagnostic(`refused ${JSON.stringify(open.refused)}, broken off ${open.broken}`);
  t.diagnostic(`callbacks p50 ${Math.round(quantile(waits, 0.5))} ms, p99 ${Math.round(quantile(waits, 0.99))} ms`);
  t.diagnostic(
    `resident ${Math.round(memory.before)} MB, ${Math.round(growth)} MB more at most, drift ${Math.round(drift)} MB`,
  );

  assert.ok(open.sent + open.unsent > 0.95 * TIMES * capacity * SECONDS, 'the generator did not keep its rate');
  assert.ok(open.unsent + open.broken < 0.02 * open.sent, 'connections were not answered');
  assert.deepEqual(
    Object.keys(open.refused).filter((refusal) => refusal !== '503 overloaded'),
    [],
  );
  assert.ok(open.refused['503 overloaded']! > open.sent / 3, 'it was not overloaded');
  assert.ok(goodput >= MIN_GOODPUT * capacity, `${goodput} of ${capacity}/s`);
  assert.ok(growth < MAX_GROWTH_MB && drift < MAX_DRIFT_MB, `${growth} MB, drift ${drift} MB`);
  assert.ok(quantile(waits, 0.9) < CALLBACK_P90_MS, `p90 ${quantile(waits, 0.9)} ms`);
  assert.ok(Math.max(...waits) < CALLBACK_MAX_MS, `one waited ${Math.max(...waits)} ms`);
  const { rows } = await place.sql.query(
    `SELECT count(*)::int AS n FROM task_scheduler_tasks WHERE queue = 'held' AND task_id >= 100000000`,
  );
  assert.equal(rows[0].n, open.accepted);
});

/** A callback every CALLBACK_EVERY_MS; how long each waited for its answer, for ever when it was not applied. */
async function report({ parser }: Installation, pushes: Push[], seconds: number): Promise<number[]> {
  const waits: Promise<number>[] = [];
  const one = async (push: Push) => {
    const sentAt = performance.now();
    const reply = await parser.callback(push).catch(() => null);
    return reply?.body.outcome === 'applied' ? performance.now() - sentAt : Number.POSITIVE_INFINITY;
  };
  for (const push of pushes.slice(0, (seconds * 1_000) / CALLBACK_EVERY_MS)) {
    waits.push(one(push));
    await sleep(CALLBACK_EVERY_MS);
  }
  return Promise.all(waits);
}

async function runGenerator(args: string[]): Promise<Outcome> {
  const { stdout } = await promisify(execFile)(process.execPath, [GENERATOR, ...args], { maxBuffer: 64 * 1024 * 1024 });
  return JSON.parse(stdout);
}

const steadyRate = (perSecond: number[]): number =>
  Math.round(perSecond.reduce((sum, count) => sum + count, 0) / perSecond.length);

const residentMb = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
