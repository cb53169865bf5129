/** What a scrape holds: bounded, complete from the start, of names and never of ids, and cheap to make. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createHealth } from '../../src/health.ts';
import { createServer } from '../../src/http.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { createLog } from '../../src/log.ts';
import { createMetrics, type Metrics, OUTCOMES, toPlainText } from '../../src/metrics.ts';
import type { ClosedAttempt } from '../../src/receiver/settle.ts';

const MAX_SERIES = 4_000;
const MAX_SCRAPE_MS = 50;
const QUEUES = Array.from({ length: 10 }, (_, i) => `queue-${i}`);
const TRACEPARENT = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`;
const JOBS = ['expire_pending', 'expire_processing', 'retain', 'promote', 'reconcile', 'fold_counts', 'clean'];
const LOOPS = ['database', 'limiter', 'listener', 'queues', 'waiter', 'sampler', 'promoter', 'pusher'];
const LABELS = [
  'queue',
  'status',
  'outcome',
  'direction',
  'action',
  'loop',
  'source',
  'state',
  'target',
  'version',
  'le',
];

/** Samples, not comments. */
const series = (text: string): string[] => text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
const own = (text: string): string[] => series(text).filter((line) => line.startsWith('docsched_'));

const closed = (queue: string, verdict: string, status: number): ClosedAttempt => ({
  attempt_id: 'an-attempt-id-of-22-letters',
  queue,
  task_id: '4711',
  task_version: '4712',
  number: 1,
  target: 'http://parser.test/parse',
  verdict,
  applied: verdict !== 'cancelled',
  status,
  retry_count: 1,
  create_at: '1000',
  claimed_at: '1500',
  closed_at: '2500',
  traceparent: TRACEPARENT,
});

/** Everything that can be observed of a queue, in every outcome. */
function observeAll(metrics: Metrics, queue: string): void {
  metrics.addQueue(queue);
  for (const outcome of OUTCOMES.docsched_inserts_total) metrics.inserted(queue, outcome);
  for (const outcome of OUTCOMES.docsched_push_duration_seconds) metrics.pushed(queue, outcome, 0.02, TRACEPARENT);
  for (const outcome of OUTCOMES.docsched_attempts_total)
    for (const status of [0, 2, 3, 4]) metrics.attemptEnded(closed(queue, outcome, status));
  metrics.dispatched(queue, 0.01, TRACEPARENT);
  metrics.reconciled(queue, 0, 1, 1);
  metrics.limiterLimit.set({ queue }, 10);
  for (const target of ['one', 'two']) metrics.targetState.set({ queue, target: `http://${target}.test/parse` }, 0);
}

function observeProcess(metrics: Metrics): void {
  for (const outcome of OUTCOMES.docsched_callbacks_total) metrics.calledBack(outcome);
  for (const job of JOBS)
    for (const outcome of ['ran', 'skipped', 'failed'] as const) metrics.watcherRan(job, outcome, 1);
  for (const loop of ['pusher', 'promoter'])
    for (const outcome of ['ok', 'failed'] as const) metrics.looped(loop, outcome);
  for (const loop of [...LOOPS, ...JOBS.map((job) => `watcher_${job}`)]) {
    metrics.loopLastSuccess.set({ loop }, 1);
    metrics.loopStallLimit.set({ loop }, 1);
  }
  for (const state of ['total', 'idle', 'waiting']) metrics.dbPool.set({ state }, 1);
  metrics.redisUp.set(1);
}

describe('ten queues in which everything has happened', () => {
  const metrics = createMetrics({ version: '0' });
  for (const queue of QUEUES) observeAll(metrics, queue);
  observeProcess(metrics);

  test('are fewer than 4,000 series, in both formats', async (t) => {
    const openMetrics = await metrics.registry.metrics();
    const count = series(openMetrics).length;
    t.diagnostic(`${count} series`);
    assert.ok(count > 3_000, `${count}: not everything was observed`);
    assert.ok(count < MAX_SERIES, `${count}`);
    assert.equal(series(toPlainText(openMetrics)).length, count);
  });

  test('are rendered in less than 50 ms, in both formats', async (t) => {
    const times: number[] = [];
    const least = () => Math.min(...times);
    const giveUpAt = performance.now() + 5_000;
    // The least of them: the others may have waited for the machine.
    while (times.length < 20 || (least() >= MAX_SCRAPE_MS && performance.now() < giveUpAt)) {
      const began = performance.now();
      toPlainText(await metrics.registry.metrics());
      times.push(performance.now() - began);
    }
    t.diagnostic(`least ${Math.round(least())} ms of ${times.length} times`);
    assert.ok(least() < MAX_SCRAPE_MS, `${times}`);
  });

  test('carry no ids: the labels are a closed set, and what was observed of one task is nowhere but in exemplars', async () => {
    const openMetrics = await metrics.registry.metrics();
    const labels = own(openMetrics).flatMap((line) => {
      const [, pairs = ''] = line.replace(/ # \{.*$/, '').match(/^[^{ ]*\{(.*)\}/) ?? [];
      return [...pairs.matchAll(/(\w+)="/g)].map(([, label]) => label!);
    });
    assert.deepEqual([...new Set(labels)].toSorted(), LABELS.toSorted());
    const plain = toPlainText(openMetrics);
    for (const id of ['4711', '4712', 'an-attempt', 'aaaa', 'bbbb']) assert.ok(!plain.includes(id), id);
    assert.ok(openMetrics.includes(`trace_id="${'a'.repeat(32)}"`));
  });

  test('name their units: seconds for times, _total for counters, nothing in ms', async () => {
    const types = toPlainText(await metrics.registry.metrics()).matchAll(/^# TYPE (docsched_\S+) (\w+)$/gm);
    for (const [, name = '', type] of types) {
      assert.equal(name.endsWith('_total'), type === 'counter', name);
      assert.doesNotMatch(name, /_(ms|millis|milliseconds|minutes|hours|kb|mb|percent)(_|$)/, name);
      if (/(duration|latency|age|timestamp)/.test(name)) assert.match(name, /_seconds$/);
    }
  });
});

test('everything that is counted begins at 0, before the first event', async () => {
  const metrics = createMetrics({ version: '0' });
  metrics.addQueue('new');
  const text = toPlainText(await metrics.registry.metrics());
  const value = (name: string, labels: Record<string, string>) =>
    own(text)
      .filter((line) => line.startsWith(`${name}{`))
      .find((line) => Object.entries(labels).every(([label, one]) => line.includes(`${label}="${one}"`)))
      ?.split(' ')
      .at(-1);
  for (const outcome of OUTCOMES.docsched_callbacks_total)
    assert.equal(value('docsched_callbacks_total', { outcome }), '0', outcome);
  for (const outcome of OUTCOMES.docsched_inserts_total)
    assert.equal(value('docsched_inserts_total', { queue: 'new', outcome }), '0', outcome);
  for (const outcome of OUTCOMES.docsched_attempts_total)
    assert.equal(value('docsched_attempts_total', { queue: 'new', outcome }), '0', outcome);
  for (const outcome of ['accepted', 'broken', 'busy', 'in_doubt', 'try_failed'])
    assert.equal(value('docsched_push_duration_seconds_count', { queue: 'new', outcome }), '0', outcome);
  for (const direction of ['dropped', 'added'])
    assert.equal(value('docsched_limiter_corrections_total', { queue: 'new', direction }), '0', direction);
  for (const source of ['insert', 'settle', 'promote', 'freed', 'notify', 'interval'])
    assert.equal(value('docsched_trigger_fires_total', { source }), '0', source);
  for (const name of ['docsched_dispatch_latency_seconds_count', 'docsched_task_retries_count'])
    assert.equal(value(name, { queue: 'new' }), '0', name);
});

test('queues beyond fifty share the label `other`, so that the series stay as many however many queues there are', async () => {
  const metrics = createMetrics({ version: '0' });
  const count = async () => own(await metrics.registry.metrics()).length;
  for (let i = 0; i < 50; i++) metrics.addQueue(`queue-${i}`);
  const fifty = await count();
  metrics.addQueue('queue-50');
  const more = (await count()) - fifty;
  for (let i = 51; i < 500; i++) {
    metrics.addQueue(`queue-${i}`);
    metrics.inserted(`queue-${i}`, 'created');
  }
  assert.equal(await count(), fifty + more, 'one more label, for all the others');
  const text = await metrics.registry.metrics();
  assert.match(text, /docsched_inserts_total\{queue="other",outcome="created"\} 449/);
  assert.doesNotMatch(text, /queue="queue-50"/);
  metrics.inserted('queue-7', 'created');
  assert.match(await metrics.registry.metrics(), /docsched_inserts_total\{queue="queue-7",outcome="created"\} 1/);
});

test('an attempt whose task was cancelled ended as `cancelled`, whatever its parser said', async () => {
  const metrics = createMetrics({ version: '0' });
  metrics.attemptEnded({ ...closed('q', 'success', 2), applied: false, status: null, create_at: null });
  const text = await metrics.registry.metrics();
  assert.match(text, /docsched_attempts_total\{queue="q",outcome="cancelled"\} 1/);
  assert.match(text, /docsched_processing_duration_seconds_count\{queue="q",outcome="returned"\} 1/);
  assert.doesNotMatch(text, /docsched_task_age_seconds_count\{queue="q"/);
});

test('a task that nobody pushed in time ended too', async () => {
  const metrics = createMetrics({ version: '0' });
  const key = { queue: 'q', task_id: '1', task_version: '1', traceparent: null, has_blocked: false };
  metrics.expired([{ ...key, waited_ms: '2000', age_ms: '3000', retry_count: 2 }]);
  const text = await metrics.registry.metrics();
  assert.match(text, /docsched_task_age_seconds_sum\{queue="q",status="Failed"\} 3\n/);
  assert.match(text, /docsched_task_retries_sum\{queue="q"\} 2\n/);
});

test('a scraper that does not ask for OpenMetrics gets counters by their full name, and no exemplars', async () => {
  const metrics = createMetrics({ version: '0' });
  metrics.calledBack('applied');
  metrics.dispatched('q', 0.01, TRACEPARENT);
  const text = toPlainText(await metrics.registry.metrics());
  assert.match(text, /^# TYPE docsched_callbacks_total counter$/m);
  assert.match(text, /^docsched_callbacks_total\{outcome="applied"\} 1$/m);
  assert.doesNotMatch(text, / # \{|# EOF/);
});

test('a scrape, and a probe, ask neither the database nor the limiter', async (t) => {
  const asked: string[] = [];
  const db = { query: async (name: string) => void asked.push(name), stats: () => ({ total: 3, idle: 2, waiting: 0 }) };
  const limiter = {
    state: () => ({ status: 'open', reason: null, lastOkAgeMs: 5 }),
    usage: async () => void asked.push('usage'),
  };
  const metrics = createMetrics({ version: '0' });
  const log = createLog('silent');
  const health = createHealth({
    db: db as unknown as Db,
    limiter: limiter as unknown as Limiter,
    checks: [{ name: 'pusher', lastOkAgeMs: () => 1_000, limitMs: 5_000 }],
    metrics,
    isRedisConnected: () => true,
    targets: () => [{ queue: 'q', url: 'http://user:secret@parser.test/parse?key=secret', state: 'open' }],
    notes: () => [],
    log,
  });
  const server = createServer({ routers: [health.router], log });
  const url = `http://127.0.0.1:${await server.listen('127.0.0.1', 0)}`;
  t.after(() => server.close());
  for (const accept of ['text/plain', 'application/openmetrics-text; version=1.0.0']) {
    const answer = await fetch(`${url}/metrics`, { headers: { accept } });
    assert.match(answer.headers.get('content-type')!, new RegExp(`^${accept.split(';')[0]}`));
    const text = await answer.text();
    assert.match(text, /docsched_loop_stall_limit_seconds\{loop="pusher"\} 5/);
    assert.match(text, /docsched_db_pool_connections\{state="idle"\} 2/);
    assert.match(text, /docsched_target_state\{queue="q",target="http:\/\/parser.test\/parse"\} 3/);
    assert.doesNotMatch(text, /secret/);
  }
  for (const path of ['/livez', '/readyz', '/openapi.json']) await (await fetch(url + path)).text();
  assert.deepEqual(asked, []);
});
