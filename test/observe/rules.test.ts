/**
 * The alerts: promtool accepts the rules; each alert fires for its trouble, stays silent beside it, and stays silent
 * when there is no data; each has a heading in the runbook.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { findProgram } from '../support/program.ts';
import { PROMTOOL } from '../support/prometheus.ts';

/** Series by their values, one a minute: promtool's notation, `start+step x times`. */
type Series = Record<string, string>;
/** `at`: when it must fire, minutes. */
type Case = { fires: Series; silent: Series; at: number };

const RULES = fileURLToPath(new URL('../../deploy/prometheus/rules.yaml', import.meta.url));
const RUNBOOK = fileURLToPath(new URL('../../docs/runbook.md', import.meta.url));
const UP = 'up{job="docsched",instance="a"}';
const q = (name: string, labels = '') => `docsched_${name}{queue="q",instance="a"${labels && `,${labels}`}}`;
const of = (name: string, labels = '') => `docsched_${name}{instance="a"${labels && `,${labels}`}}`;
const constant = (value: number) => `${value}+0x120`;
const rising = (perMinute: number) => `0+${perMinute}x120`;
/** A clock value that stands still at minute 0: its age grows by a minute a minute. */
const STOOD_STILL = constant(1);
/** A clock value that goes on. */
const GOES_ON = '0+60x120';

const CASES: Record<string, Case> = {
  DocschedDown: { fires: { [UP]: constant(0) }, silent: { [UP]: constant(1) }, at: 5 },
  DocschedBacklogOld: {
    fires: { [q('oldest_pending_timestamp_seconds')]: STOOD_STILL },
    silent: { [q('oldest_pending_timestamp_seconds')]: GOES_ON },
    at: 25,
  },
  DocschedLoopStalled: {
    fires: {
      [of('loop_last_success_timestamp_seconds', 'loop="pusher"')]: STOOD_STILL,
      [of('loop_stall_limit_seconds', 'loop="pusher"')]: constant(10),
    },
    silent: {
      [of('loop_last_success_timestamp_seconds', 'loop="pusher"')]: GOES_ON,
      [of('loop_stall_limit_seconds', 'loop="pusher"')]: constant(10),
    },
    at: 10,
  },
  DocschedCallbacksStopped: {
    fires: {
      [q('limiter_in_use')]: constant(4),
      [of('callbacks_total', 'outcome="applied"')]: constant(7),
      [q('push_duration_seconds_count', 'outcome="done"')]: constant(0),
    },
    silent: {
      [q('limiter_in_use')]: constant(4),
      [of('callbacks_total', 'outcome="applied"')]: rising(1),
      [q('push_duration_seconds_count', 'outcome="done"')]: constant(0),
    },
    at: 40,
  },
  DocschedLimiterOverLimit: {
    fires: { [q('limiter_in_use')]: constant(11), [q('limiter_limit')]: constant(10) },
    // A limit that was lowered takes no slots away.
    silent: { [q('limiter_in_use')]: constant(11), [q('limiter_limit')]: '20x5 10x60' },
    at: 10,
  },
  DocschedLimiterClosed: {
    fires: { [of('limiter_open')]: constant(0) },
    silent: { [of('limiter_open')]: constant(0), 'docsched_limiter_open{instance="b"}': constant(1) },
    at: 5,
  },
  DocschedParserUnavailable: {
    fires: {
      [q('push_duration_seconds_count', 'outcome="broken"')]: rising(60),
      [q('push_duration_seconds_count', 'outcome="accepted"')]: rising(30),
    },
    silent: {
      [q('push_duration_seconds_count', 'outcome="broken"')]: rising(20),
      [q('push_duration_seconds_count', 'outcome="accepted"')]: rising(30),
    },
    at: 15,
  },
  DocschedSamplerStale: {
    fires: { [of('sample_timestamp_seconds')]: STOOD_STILL, [UP]: constant(1) },
    silent: { [of('sample_timestamp_seconds')]: GOES_ON, [UP]: constant(1) },
    at: 12,
  },
  DocschedBacklogGrowing: {
    fires: {
      [q('inserts_total', 'outcome="created"')]: rising(100),
      [q('task_age_seconds_count', 'status="Success"')]: rising(50),
      [q('tasks', 'status="Pending"')]: rising(50),
      [q('tasks_delayed')]: constant(0),
    },
    silent: {
      [q('inserts_total', 'outcome="created"')]: rising(100),
      [q('task_age_seconds_count', 'status="Success"')]: rising(100),
      [q('tasks', 'status="Pending"')]: constant(5000),
      [q('tasks_delayed')]: constant(0),
    },
    at: 50,
  },
  DocschedBacklogDeep: {
    fires: { [q('tasks', 'status="Pending"')]: constant(2_000), [q('tasks_delayed')]: constant(10) },
    // Tasks for later are no backlog.
    silent: { [q('tasks', 'status="Pending"')]: constant(2_000), [q('tasks_delayed')]: constant(1_500) },
    at: 10,
  },
  DocschedDispatchSlow: {
    fires: { ...slow('dispatch_latency_seconds'), ...slots(2) },
    silent: { ...slow('dispatch_latency_seconds'), ...slots(10) },
    at: 30,
  },
  DocschedProcessingSlow: {
    fires: slow('processing_duration_seconds', 'outcome="success"'),
    silent: quick('processing_duration_seconds', 'outcome="success"'),
    at: 30,
  },
  DocschedLimiterSaturated: {
    fires: { ...slots(10), [q('oldest_pending_timestamp_seconds')]: STOOD_STILL },
    silent: { ...slots(10), [q('oldest_pending_timestamp_seconds')]: GOES_ON },
    at: 50,
  },
  DocschedLimiterLeaking: {
    fires: { [q('limiter_corrections_total', 'direction="dropped"')]: rising(1) },
    silent: { [q('limiter_corrections_total', 'direction="dropped"')]: '0x30 3x90' },
    at: 60,
  },
  DocschedAttemptsFailing: {
    fires: {
      [q('attempts_total', 'outcome="parser_failed"')]: rising(20),
      [q('attempts_total', 'outcome="success"')]: rising(40),
    },
    silent: {
      [q('attempts_total', 'outcome="parser_failed"')]: rising(5),
      [q('attempts_total', 'outcome="busy"')]: rising(500),
      [q('attempts_total', 'outcome="success"')]: rising(40),
    },
    at: 25,
  },
  DocschedDeadLettersGrowing: {
    fires: { [q('task_age_seconds_count', 'status="Failed"')]: rising(1) },
    silent: {
      [q('task_age_seconds_count', 'status="Failed"')]: '0x30 10x90',
      [q('task_age_seconds_count', 'status="Success"')]: rising(1),
    },
    at: 60,
  },
  DocschedTasksRetriedOften: {
    fires: { [q('task_retries_count')]: rising(5), [q('task_retries_bucket', 'le="3"')]: rising(4) },
    silent: { [q('task_retries_count')]: rising(5), [q('task_retries_bucket', 'le="3"')]: rising(5) },
    at: 60,
  },
  DocschedDeadlinesMissed: {
    fires: {
      [q('attempts_total', 'outcome="processing_expired"')]: rising(6),
      [q('attempts_total', 'outcome="success"')]: rising(60),
    },
    silent: {
      [q('attempts_total', 'outcome="processing_expired"')]: rising(1),
      [q('attempts_total', 'outcome="success"')]: rising(60),
    },
    at: 60,
  },
  DocschedCallbacksRejected: {
    fires: { [of('callbacks_total', 'outcome="unauthorized"')]: rising(5) },
    silent: {
      [of('callbacks_total', 'outcome="unauthorized"')]: '0x20 3x100',
      [of('callbacks_total', 'outcome="applied"')]: rising(60),
      [of('callbacks_total', 'outcome="stale"')]: rising(1),
    },
    at: 30,
  },
  DocschedTargetOpen: {
    fires: { [q('target_state', 'target="http://p/"')]: constant(3) },
    silent: { [q('target_state', 'target="http://p/"')]: '3x3 0x100' },
    at: 10,
  },
  DocschedJobFailing: {
    fires: { [of('watcher_runs_total', 'action="clean",outcome="failed"')]: rising(1) },
    silent: {
      [of('watcher_runs_total', 'action="clean",outcome="failed"')]: constant(4),
      [of('watcher_runs_total', 'action="clean",outcome="ran"')]: rising(1),
    },
    at: 20,
  },
  DocschedEventLoopLag: {
    fires: { 'nodejs_eventloop_lag_p99_seconds{job="docsched",instance="a"}': constant(0.4) },
    silent: { 'nodejs_eventloop_lag_p99_seconds{job="docsched",instance="a"}': constant(0.02) },
    at: 15,
  },
  DocschedDbPoolWaiting: {
    fires: { [of('db_pool_connections', 'state="waiting"')]: constant(3) },
    silent: { [of('db_pool_connections', 'state="waiting"')]: '3x5 0 3x100' },
    at: 8,
  },
};

/** Everything takes between 60 and 300 s. */
function slow(name: string, labels = ''): Series {
  return histogram(name, labels, { 30: 0, 60: 0, 300: 10 });
}
/** Everything takes less than a second. */
function quick(name: string, labels = ''): Series {
  return histogram(name, labels, { 1: 10, 30: 10, 60: 10, 300: 10 });
}
function histogram(name: string, labels: string, perMinute: Record<string, number>): Series {
  const more = labels && `,${labels}`;
  const buckets = Object.entries({ ...perMinute, '+Inf': 10 });
  return Object.fromEntries(buckets.map(([le, count]) => [q(`${name}_bucket`, `le="${le}"${more}`), rising(count)]));
}
function slots(inUse: number): Series {
  return { [q('limiter_in_use')]: constant(inUse), [q('limiter_limit')]: constant(10) };
}

const directory = mkdtempSync(join(tmpdir(), 'docsched-rules-'));
after(() => rmSync(directory, { recursive: true }));
const promtool = findProgram(PROMTOOL);
const alerts = [...readFileSync(RULES, 'utf8').matchAll(/- alert: (\w+)/g)].map(([, name]) => name!);

/** Whether the alert is firing at that minute; the alert of "no instance answers" also fires without any data. */
const expectation = (alert: string, series: Series, at: number, firing: boolean) => ({
  interval: '1m',
  input_series: Object.entries(series).map(([name, values]) => ({ series: name, values })),
  promql_expr_test: [
    {
      expr: `count(ALERTS{alertname="${alert}", alertstate="firing"})`,
      eval_time: `${at}m`,
      exp_samples: firing ? [{ labels: '{}', value: 1 }] : [],
    },
  ],
});

function runPromtool(name: string, tests: unknown[]): void {
  const file = join(directory, `${name}.json`);
  writeFileSync(file, JSON.stringify({ rule_files: [RULES], evaluation_interval: '1m', tests }));
  execFileSync(promtool, ['test', 'rules', file], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
}

test('promtool accepts the rules', () => {
  execFileSync(promtool, ['check', 'rules', RULES], { stdio: ['ignore', 'pipe', 'pipe'] });
});

test('each alert has its cases, and no case is left over', () => {
  assert.deepEqual(Object.keys(CASES).toSorted(), alerts.toSorted());
});

for (const [alert, { fires, silent, at }] of Object.entries(CASES))
  test(`${alert} fires for its trouble, and neither beside it nor without data`, () => {
    runPromtool(`${alert}-fires`, [expectation(alert, fires, at, true)]);
    runPromtool(`${alert}-silent`, [expectation(alert, silent, at, false)]);
    runPromtool(`${alert}-no-data`, [expectation(alert, {}, at, alert === 'DocschedDown')]);
  });

test('each alert has a heading in the runbook, with what it means, where to look first and what to do', () => {
  const sections = readFileSync(RUNBOOK, 'utf8').split(/^## /m).slice(1);
  for (const alert of alerts) {
    const section = sections.find((text) => text.startsWith(`${alert}\n`));
    assert.ok(section, `docs/runbook.md has no heading for ${alert}`);
    for (const part of ['Means', 'Look', 'Fix']) assert.match(section, new RegExp(`\\*\\*${part}[.:]?\\*\\*`), alert);
  }
  const headings = sections.map((text) => text.split('\n')[0]!).filter((name) => name.startsWith('Docsched'));
  assert.deepEqual(headings.toSorted(), alerts.toSorted());
});
