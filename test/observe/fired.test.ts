/**
 * Trouble caused for real: service, parser, Prometheus and Alertmanager run, the trouble is made, its alert fires and
 * reaches Alertmanager; the trouble is mended, and it resolves. The rules are those of deploy/ with time sixty times as
 * fast: minutes are seconds, and so are the ages they compare with.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { Webhook } from 'standardwebhooks';
import { accept, finish, reportText } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Installation, install, setQueue, submitMany } from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';
import { startAlertmanager, startPrometheus, type TestPrometheus } from '../support/prometheus.ts';

const RULES = fileURLToPath(new URL('../../deploy/prometheus/rules.yaml', import.meta.url));
/** From the trouble to the alert, and from the end of the trouble to its end; the longest window is an hour, here a minute. */
const PATIENCE = { timeoutMs: 150_000, everyMs: 500 };

/** Hours become minutes, minutes seconds; ages in expressions are a sixtieth. */
const faster = (rules: string): string =>
  rules
    .replace(/(?<=[[\s])(\d+)m\b/g, '$1s')
    .replace(/(?<=\[)1h(?=\])/g, '60s')
    .replace(/(backlog_age:seconds > )(\d+)/g, (_, before, seconds) => `${before}${Number(seconds) / 60}`)
    // A rate over seconds needs some events in them.
    .replace(/\[5s\]/g, '[10s]');

type Watched = { place: Installation; instance: RunningService; prometheus: TestPrometheus; alertmanager: string };

async function watch(t: TestContext, env: Record<string, string> = {}): Promise<Watched> {
  const place = await install(t, { limiter: 'redis', env: { MAX_PROCESSING: '4', ...env } });
  place.parser.answerWith(finish());
  const instance = await place.start();
  const directory = mkdtempSync(join(tmpdir(), 'docsched-rules-'));
  const rules = join(directory, 'rules.yaml');
  writeFileSync(rules, faster(readFileSync(RULES, 'utf8')));
  const alertmanager = await startAlertmanager({ route: { receiver: 'none' }, receivers: [{ name: 'none' }] });
  const prometheus = await startPrometheus({
    global: { scrape_interval: '1s', evaluation_interval: '1s' },
    rule_files: [rules],
    alerting: { alertmanagers: [{ static_configs: [{ targets: [new URL(alertmanager.url).host] }] }] },
    scrape_configs: [{ job_name: 'docsched', static_configs: [{ targets: [new URL(instance.url).host] }] }],
  });
  t.after(async () => {
    await prometheus.stop();
    await alertmanager.stop();
    rmSync(directory, { recursive: true });
  });
  return { place, instance, prometheus, alertmanager: alertmanager.url };
}

const isFiring = async ({ prometheus }: Watched, name: string): Promise<boolean> =>
  (await prometheus.alerts()).some(({ labels, state }) => labels.alertname === name && state === 'firing');

/** Fires, is known to Alertmanager, and ends after `mend`. Meanwhile `keepOn` goes on causing it. */
async function firesAndResolves(
  watched: Watched,
  alert: string,
  mend: () => Promise<unknown>,
  keepOn: () => Promise<unknown> = async () => {},
): Promise<void> {
  assert.equal(await isFiring(watched, alert), false, `${alert} fires before the trouble`);
  await eventually(async () => {
    await keepOn();
    assert.ok(await isFiring(watched, alert), `${alert} does not fire`);
  }, PATIENCE);
  await eventually(async () => {
    const known = (await (await fetch(`${watched.alertmanager}/api/v2/alerts`)).json()) as {
      labels: { alertname: string };
    }[];
    assert.ok(known.some(({ labels }) => labels.alertname === alert));
  });
  await mend();
  await eventually(
    async () => assert.equal(await isFiring(watched, alert), false, `${alert} does not resolve`),
    PATIENCE,
  );
}

const some = (count: number, from: number) => Array.from({ length: count }, (_, i) => ({ task_id: from + i }));

test('the parser is away: DocschedParserUnavailable', async (t) => {
  const watched = await watch(t);
  const { place, instance } = watched;
  await submitMany(instance, some(5, 0));
  await eventually(async () => assert.equal((await place.countTasks()).Success, 5));
  await place.parser.stop();
  await submitMany(instance, some(20, 100));
  await firesAndResolves(watched, 'DocschedParserUnavailable', async () => {
    await place.replaceParser();
    place.parser.answerWith(finish());
    await submitMany(instance, some(50, 200));
  });
});

test('tasks wait and nothing is pushed: DocschedBacklogOld', async (t) => {
  const watched = await watch(t);
  const { instance } = watched;
  const pause = (paused: boolean) =>
    fetch(`${instance.url}/v1/queues/default`, {
      method: 'PATCH',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ paused }),
    });
  await pause(true);
  await submitMany(instance, some(20, 0));
  await firesAndResolves(watched, 'DocschedBacklogOld', () => pause(false));
});

test("a parser signs with a secret that is not the queue's: DocschedCallbacksRejected", async (t) => {
  const watched = await watch(t);
  const { place, instance } = watched;
  place.parser.answerWith(accept);
  await setQueue(instance, 'default', {
    targets: [{ url: place.parser.url }],
    callback_auth: 'signature',
    secrets: [`whsec_${randomBytes(24).toString('base64')}`],
  });
  await submitMany(instance, some(1, 0));
  const [push] = await place.parser.waitForPushes(1);
  const own = new Webhook(`whsec_${randomBytes(24).toString('base64')}`);
  const report = async () => {
    const body = reportText({});
    const [id, at] = [push!.body.attempt_id, new Date()];
    const headers = {
      'webhook-id': id,
      'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
      'webhook-signature': own.sign(id, at, body),
    };
    assert.equal((await place.parser.callback(push!, {}, headers)).status, 401);
  };
  await firesAndResolves(watched, 'DocschedCallbacksRejected', async () => {}, report);
});

test('Redis answers no more: DocschedLoopStalled and DocschedLimiterClosed', async (t) => {
  const watched = await watch(t);
  await eventually(async () => assert.ok((await watched.prometheus.names()).has('docsched_limiter_open')));
  const { redis } = watched.place;
  const mend = async () => {
    await eventually(async () => assert.ok(await isFiring(watched, 'DocschedLimiterClosed')), PATIENCE);
    redis.resume();
  };
  await firesAndResolves(watched, 'DocschedLoopStalled', mend, async () => redis.pause());
  await eventually(async () => assert.equal(await isFiring(watched, 'DocschedLimiterClosed'), false), PATIENCE);
});

test('slots leak: DocschedLimiterLeaking', async (t) => {
  const watched = await watch(t, { RECONCILE_CRON: '* * * * * *', ACQUIRE_TTL_MS: '200' });
  const client = new Redis(watched.place.redis.url);
  t.after(() => client.disconnect());
  let leaked = 0;
  const leak = async () => {
    await client.zadd('{docsched}:slots:default', 1, `leaked-by-nobody-${++leaked}`);
    await client.sadd('{docsched}:queues', 'default');
  };
  await firesAndResolves(watched, 'DocschedLimiterLeaking', async () => {}, leak);
});
