/** /metrics of an instance whose ten queues have seen every kind of submit, push, report and end. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { OUTCOMES } from '../../src/metrics.ts';
import { type Answer, finish, hang, type Push, reply } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Installation, install, metric, post, setQueue } from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

const MAX_SERIES = 4_000;
const MAX_SCRAPE_MS = 50;
/** A machine that is slow for a moment is given this long to answer a scrape in time. */
const MOMENT_MS = 5_000;
const QUEUES = ['default', ...Array.from({ length: 9 }, (_, i) => `lane-${i}`)];
const LONG_MS = 60_000;
/** By the task's id: what becomes of its attempt. */
const FATE = ['success', 'parser_failed', 'refused', 'result_too_large', 'cancelled'];
/** Each to a target of its own: after such answers a target is left alone for a while. By the time attempts have, ms. */
const TROUBLE: Record<string, number> = {
  processing_expired: 2_500,
  in_doubt_expired: 500,
  try_failed: LONG_MS,
  busy: LONG_MS,
  broken: LONG_MS,
};
const FATES = [...FATE, ...Object.keys(TROUBLE)];
const idOf = (fate: string): number => FATES.indexOf(fate);
/** No attempt can be made to end so from outside. */
const NOT_CAUSED = ['unsent', 'locked'];

const ANSWERS: Record<string, Answer> = {
  success: finish(),
  parser_failed: finish({ status_code: 7 }),
  try_failed: reply(500),
  refused: reply(422),
  result_too_large: finish({ result: 'x'.repeat(2_000) }),
  busy: reply(429, { 'retry-after': '1' }),
  in_doubt_expired: hang,
  broken: reply(401),
};

const answer: Answer = (pushes, req, res) => {
  const fate = FATES[Number(pushes[0]!.body.task_id)];
  return (ANSWERS[fate ?? ''] ?? reply(202))(pushes, req, res);
};

const seriesOf = (text: string): string[] => text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));

describe('the metrics of ten busy queues', () => {
  let place: Installation;
  let instance: RunningService;
  const ends: (() => unknown)[] = [];

  before(async () => {
    place = await install({ after: (end: () => unknown) => ends.push(end) } as never, {
      limiter: 'redis',
      env: {
        RETRY_BASE_MS: '100',
        MAX_RETRIES: '0',
        RECONCILE_CRON: '* * * * * *',
      },
    });
    place.parser.answerWith(answer);
    instance = await place.start();
    await setTargets('good', LONG_MS);
    await submitAll(FATE.map((fate) => task(idOf(fate))));
    const pushes = await eventually(
      () => {
        const found = place.parser.pushes.filter(({ body }) => Number(body.task_id) === idOf('cancelled'));
        return found.length === QUEUES.length && found;
      },
      { timeoutMs: 30_000 },
    );
    for (const push of pushes as Push[]) {
      await post(instance, `/v1/tasks/${idOf('cancelled')}/versions/2/cancel?queue=${push.body.queue}`);
      await place.parser.callback(push);
    }
    await seen('docsched_attempts_total', FATE);
    await submitAll([{ ...task(100), run_at: Date.now() + 3_600_000 }, task(101)]);
    await submitAll([task(100), task(0, 1), task(0), task(idOf('refused'))]); // refreshed, stale, existing, recreated
    await seen('docsched_inserts_total', OUTCOMES.docsched_inserts_total);
    for (const [fate, expiredMs] of Object.entries(TROUBLE)) {
      await setTargets(fate, expiredMs);
      await submitAll([task(idOf(fate))]);
      await seen('docsched_attempts_total', [fate]);
    }
    await seen('docsched_attempts_total', OUTCOMES.docsched_attempts_total);
  });
  after(async () => {
    for (const end of ends) await end();
  });

  /** All queues have one target, the parser under this name. */
  async function setTargets(name: string, expiredMs: number): Promise<void> {
    // Only where an answer is not to come may a push be given up on: a slow machine's comes late.
    const push_timeout_ms = name === 'in_doubt_expired' ? 300 : 10_000;
    const settings = {
      targets: [{ url: `${place.parser.url}?${name}`, push_timeout_ms }],
      processing_expired_ms: expiredMs,
      limit: 20,
      result_max_bytes: 1_000,
    };
    for (const queue of QUEUES) await setQueue(instance, queue, settings);
  }

  const task = (id: number, version = 2) => ({ task_id: id, task_version: version, payload: null });

  const submitAll = (tasks: Record<string, unknown>[]) =>
    post(instance, '/v1/tasks/batch', { tasks: QUEUES.flatMap((queue) => tasks.map((one) => ({ ...one, queue }))) });

  /** Every queue has counted each of these outcomes. */
  async function seen(name: string, outcomes: string[]): Promise<void> {
    const wanted = QUEUES.flatMap((queue) =>
      outcomes
        .filter((outcome) => !NOT_CAUSED.includes(outcome))
        .map((outcome) => `${name}{queue="${queue}",outcome="${outcome}"}`),
    );
    await eventually(
      async () => {
        const lines = seriesOf(await (await fetch(`${instance.url}/metrics`)).text());
        const counted = new Map(lines.map((line) => line.split(/ (?=[^ ]*$)/) as [string, string]));
        assert.deepEqual(
          wanted.filter((series) => !(Number(counted.get(series)) > 0)),
          [],
        );
      },
      { timeoutMs: 30_000, everyMs: 100 },
    );
  }

  for (const accept of ['text/plain', 'application/openmetrics-text'])
    test(`are fewer than 4,000 series and come within 50 ms (${accept})`, async (t) => {
      const times: number[] = [];
      let count = 0;
      const until = performance.now() + MOMENT_MS;
      while (times.length < 20 || (Math.min(...times) >= MAX_SCRAPE_MS && performance.now() < until)) {
        const began = performance.now();
        const answer = await fetch(`${instance.url}/metrics`, { headers: { accept } });
        const text = await answer.text();
        times.push(performance.now() - began);
        count = seriesOf(text).length;
        await sleep(10);
      }
      const sorted = times.toSorted((a, b) => a - b).map(Math.round);
      t.diagnostic(`${count} series; median ${sorted[Math.floor(times.length / 2)]} ms, least ${sorted[0]} ms`);
      assert.ok(count > 2_500 && count < MAX_SERIES, `${count} series`);
      // The least: the others may have waited for the machine.
      assert.ok(Math.min(...times) < MAX_SCRAPE_MS, `${sorted}`);
    });

  test('say what woke the pushers', async () => {
    for (const source of ['insert', 'settle', 'promote', 'interval'])
      assert.ok((await metric(instance, 'docsched_trigger_fires_total', { source })) > 0, source);
  });

  test('count a callback by what became of it, in every form', async () => {
    const count = (outcome: string) => metric(instance, 'docsched_callbacks_total', { outcome });
    const before = { invalid: await count('invalid'), unknown: await count('unknown') };
    const unknown = 'x'.repeat(32);
    await post(instance, `/v1/callbacks/${unknown}`, { status_code: 0 }); // unknown
    await post(instance, '/v1/callbacks/no-id', { status_code: 0 }); // unknown
    await post(instance, `/v1/callbacks/${unknown}`, { status_code: 'zero' }); // invalid
    await post(instance, '/v1/callbacks', { task_id: 1, task_version: 1, status_code: 0 }); // invalid: strict fence
    await post(instance, `/v1/callbacks/${unknown}/progress`, {}); // none: not a callback
    const callbacks = [{ attempt_id: unknown, status_code: 0 }, { attempt_id: unknown }];
    await post(instance, '/v1/callbacks/batch', { callbacks }); // unknown, invalid
    assert.equal((await count('unknown')) - before.unknown, 3);
    assert.equal((await count('invalid')) - before.invalid, 3);
    await setQueue(instance, 'signed', {
      targets: [{ url: place.parser.url }],
      callback_auth: 'signature',
      secrets: [`whsec_${Buffer.alloc(24, 7).toString('base64')}`],
    });
    await post(instance, '/v1/tasks', { queue: 'signed', task_id: 300, task_version: 1, payload: null });
    const push = await eventually(() => place.parser.pushes.find(({ body }) => body.queue === 'signed') ?? false);
    assert.equal((await place.parser.callback(push as Push)).status, 401);
    assert.equal(await count('unauthorized'), 1);
  });

  test('count a task that nobody pushed in time as Failed', async () => {
    await setQueue(instance, 'held', { pending_expired_ms: 100, paused: true });
    await post(instance, '/v1/tasks', { queue: 'held', task_id: 1, task_version: 1, payload: null });
    const failed = { queue: 'held', status: 'Failed' };
    await eventually(async () => assert.equal(await metric(instance, 'docsched_task_age_seconds_count', failed), 1), {
      timeoutMs: 20_000,
      everyMs: 100,
    });
    assert.ok((await metric(instance, 'docsched_task_age_seconds_sum', failed)) >= 0.1);
  });

  test('tell the wake-ups that came from another instance', async () => {
    const other = await place.start({ ROLES: 'api' });
    const heard = () => metric(instance, 'docsched_trigger_fires_total', { source: 'notify' });
    const before = await heard();
    await post(other, '/v1/tasks', { task_id: 200, task_version: 1, payload: null });
    await eventually(async () => assert.ok((await heard()) > before));
    assert.equal(await metric(other, 'docsched_trigger_fires_total', { source: 'interval' }), 0, 'it has no pusher');
  });
});
