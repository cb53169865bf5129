/**
 * /livez, /readyz, /metrics, /openapi.json. Alive: the process answers; nothing outside is asked. Ready: the database
 * takes writes, so submits and callbacks work; `degraded`: something else does not, mostly nothing is pushed now, and why.
 * Each check names the age of its last success and its limit. At the stop it is `draining`, and 503, before anything else.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Router } from 'express';
import type { Db } from './db.ts';
import { sendJson } from './http.ts';
import type { Limiter } from './limiter/limiter.ts';
import type { Log } from './log.ts';
import { createLoop } from './loop.ts';
import { type Metrics, TARGET_STATE, toPlainText } from './metrics.ts';
import { openApiDocument } from './openapi.ts';
import type { Queue } from './queues.ts';

/** One check: ok while the age of the last success is at most the limit. `required`: without it the instance is unready. */
export type Check = {
  name: string;
  lastOkAgeMs: () => number | null;
  limitMs: number;
  required?: boolean;
  detail?: () => string | null;
};

export type HealthDeps = {
  db: Db;
  limiter: Limiter;
  checks: Check[];
  metrics: Metrics;
  /** Undefined without Redis. */
  isRedisConnected: (() => boolean) | undefined;
  /** Of each target of each queue: how it stands with its breaker. */
  targets: () => readonly { queue: string; url: string; state: keyof typeof TARGET_STATE }[];
  /** Sentences for people: what keeps tasks from being pushed though all checks are ok. */
  notes: () => string[];
  log: Log;
};

const PING_EVERY_MS = 1_000;
const PING_LIMIT_MS = 5_000;
const LIMITER_LIMIT_MS = 5_000;
/** Whoever sends traffic by /readyz asks at least this often. */
const ASKED_WITHIN_MS = 30_000;
/** Of SHUTDOWN_TIMEOUT_MS, the part in which /readyz says no and everything is still taken. */
const DRAIN_PART = 5;
/** The queue that the environment describes. */
const QUEUE = 'default';
export const NO_PARSER =
  "queue 'default' has no target: set PARSER_URL, or its targets; until then tasks are accepted and held";

export function createHealth(deps: HealthDeps) {
  const { db, limiter, checks, metrics, notes, log } = deps;
  const loop = createLoop({ name: 'ping', intervalMs: PING_EVERY_MS, log, runOnce: ping });
  const all: Check[] = [
    { name: 'database', lastOkAgeMs: loop.lastOkAgeMs, limitMs: PING_LIMIT_MS, required: true, detail: loop.trouble },
    {
      name: 'limiter',
      lastOkAgeMs: () => (limiter.state().status === 'open' ? limiter.state().lastOkAgeMs : null),
      limitMs: LIMITER_LIMIT_MS,
      detail: () => limiter.state().reason,
    },
    ...checks,
  ];
  const document = JSON.stringify(openApiDocument());
  let askedAt = Number.NEGATIVE_INFINITY;
  let drainingSince: number | undefined;
  return { router: createRouter(), start: loop.start, stop: loop.stop, drain, drained };

  /** From now on /readyz says 503, while everything is still answered. */
  function drain(): void {
    drainingSince = performance.now();
  }

  /** Resolves when those who send traffic by /readyz have had time to notice; at once when nobody asks it. */
  async function drained(shutdownTimeoutMs: number): Promise<void> {
    const since = drainingSince ?? performance.now();
    if (askedAt < since - ASKED_WITHIN_MS) return;
    await sleep(since + shutdownTimeoutMs / DRAIN_PART - performance.now());
  }

  async function ping(): Promise<void> {
    const [row] = await db.query<{ writable: boolean }>('ping', []);
    if (!row?.writable) throw new Error('the database is read-only');
  }

  function createRouter(): Router {
    const router = Router();
    router.get('/livez', (_, res) => sendJson(res, 200, '{"status":"alive"}'));
    router.get('/readyz', (_, res) => {
      askedAt = performance.now();
      const { status, body } = report();
      if (status === 503) res.set('retry-after', '1');
      sendJson(res, status, JSON.stringify(body));
    });
    router.get('/metrics', async (req, res) => {
      observe();
      const text = await metrics.registry.metrics();
      if (/application\/openmetrics-text/.test(req.get('accept') ?? ''))
        res.set('content-type', metrics.registry.contentType).end(text);
      else res.set('content-type', 'text/plain; version=0.0.4; charset=utf-8').end(toPlainText(text));
    });
    router.get('/openapi.json', (_, res) => sendJson(res, 200, document));
    return router;
  }

  /** What a scrape shows of this process, from memory. */
  function observe(): void {
    for (const { name, lastOkAgeMs, limitMs } of all) {
      const age = lastOkAgeMs();
      if (age !== null) metrics.loopLastSuccess.set({ loop: name }, (Date.now() - age) / 1000);
      metrics.loopStallLimit.set({ loop: name }, limitMs / 1000);
    }
    for (const [state, connections] of Object.entries(db.stats())) metrics.dbPool.set({ state }, connections);
    if (deps.isRedisConnected) metrics.redisUp.set(deps.isRedisConnected() ? 1 : 0);
    metrics.targetState.reset();
    for (const { queue, url, state } of deps.targets()) {
      const { origin, pathname } = new URL(url);
      metrics.targetState.set({ queue: metrics.label(queue), target: origin + pathname }, TARGET_STATE[state]);
    }
  }

  function report() {
    const results = all.map((check) => {
      const age = check.lastOkAgeMs();
      const ok = age !== null && age <= check.limitMs;
      const detail = check.detail?.() ?? null;
      return {
        ...check,
        ok,
        shown: { ok, last_ok_age_ms: age, limit_ms: check.limitMs, ...(detail ? { detail } : {}) },
      };
    });
    const failed = results.filter(({ ok }) => !ok);
    const healthy = failed.length === 0 ? 'ready' : failed.some(({ required }) => required) ? 'unready' : 'degraded';
    const status = drainingSince === undefined ? healthy : 'draining';
    const shown = Object.fromEntries(results.map((result) => [result.name, result.shown]));
    const available = status === 'ready' || status === 'degraded';
    return { status: available ? 200 : 503, body: { status, checks: shown, notes: notes() } };
  }
}

/** Why nothing of the queue is pushed; empty when it is. */
export function heldBecause({ queue, paused, targets, concurrency_limit }: Queue): string[] {
  if (paused) return [`queue '${queue}' is paused: tasks are accepted and held`];
  if (concurrency_limit === 0) return [`queue '${queue}' has limit 0: tasks are accepted and held`];
  if (targets.length > 0) return [];
  return [queue === QUEUE ? NO_PARSER : `queue '${queue}' has no target: tasks are accepted and held`];
}
