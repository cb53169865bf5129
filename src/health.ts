/**
 * /livez, /readyz, /metrics, /openapi.json. Ready: the database takes writes, so submits and callbacks work; `degraded`
 * says that nothing is pushed now, and why. Each check names the age of its last success and its limit.
 */
import { Router } from 'express';
import type { Db } from './db.ts';
import { sendJson } from './http.ts';
import type { Limiter } from './limiter/limiter.ts';
import type { Log } from './log.ts';
import { createLoop } from './loop.ts';
import { type Metrics, TARGET_STATE, toPlainText } from './metrics.ts';
import { openApiDocument } from './openapi.ts';

/** One check: ok while the age of the last success is at most the limit. `required`: without it the instance is unready. */
export type Check = {
  name: string;
  lastOkAgeMs: () => number | null;
  limitMs: number;
  required: boolean;
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

export function createHealth(deps: HealthDeps) {
  const { db, limiter, checks, metrics, notes, log } = deps;
  const loop = createLoop({ name: 'ping', intervalMs: PING_EVERY_MS, log, runOnce: ping });
  const all: Check[] = [
    { name: 'database', lastOkAgeMs: loop.lastOkAgeMs, limitMs: PING_LIMIT_MS, required: true, detail: loop.trouble },
    {
      name: 'limiter',
      lastOkAgeMs: () => (limiter.state().status === 'open' ? limiter.state().lastOkAgeMs : null),
      limitMs: LIMITER_LIMIT_MS,
      required: false,
      detail: () => limiter.state().reason,
    },
    ...checks,
  ];
  const document = JSON.stringify(openApiDocument());
  return { router: createRouter(), start: loop.start, stop: loop.stop };

  async function ping(): Promise<void> {
    const [row] = await db.query<{ writable: boolean }>('ping', []);
    if (!row?.writable) throw new Error('the database is read-only');
  }

  function createRouter(): Router {
    const router = Router();
    router.get('/livez', (_, res) => sendJson(res, 200, '{"status":"alive"}'));
    router.get('/readyz', (_, res) => {
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
    const unready = failed.some(({ required }) => required);
    const status = unready ? 'unready' : failed.length > 0 ? 'degraded' : 'ready';
    const shown = Object.fromEntries(results.map((result) => [result.name, result.shown]));
    return { status: unready ? 503 : 200, body: { status, checks: shown, notes: notes() } };
  }
}
