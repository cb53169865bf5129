/** Wake-ups across processes: an instance that only takes submits, another that only pushes, and no safety net. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { finish, type Push } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { get, type Installation, install, submit } from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

const SUBMITS = 200;
const APART_MS = 25;
/** Submit to push, 99 of 100: one of TRIES must be so, as the machine may stand still for a moment. */
const P99_MS = 200;
const TRIES = 3;
/** Far below the safety net's interval, which is what a lost wake-up costs. */
const LOST_MS = 20_000;

test('a submit to one process is pushed by another at once, also after its listener was cut off', async (t) => {
  const place = await install(t, { limiter: 'redis', env: { TRIGGER_INTERVAL_MS: '60000', MAX_PROCESSING: '50' } });
  place.parser.answerWith(finish());
  const api = await place.start({ ROLES: 'api' });
  const pusher = await place.start({ ROLES: 'pusher', PUBLIC_URL: api.url });
  assert.equal((await submit(pusher, { task_id: 1 })).status, 404, 'a pusher takes no submits');
  let submits = 0;
  const pushDelay = () => delayOf(place, api, ++submits);
  await pushDelay(); // The first opens connections and prepares statements.

  let delays: number[];
  let tries = 0;
  do delays = (await paced(SUBMITS, pushDelay)).sort((a, b) => a - b);
  while (p99(delays) >= P99_MS && ++tries < TRIES);
  assert.ok(p99(delays) < P99_MS, `p99 is ${p99(delays)} ms, the longest ${delays.slice(-5).map(Math.round)}`);

  const listenerBreaks = async () => {
    const { rowCount } = await place.sql.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
           WHERE datname = current_database() AND application_name = 'docsched-listen'`,
    );
    assert.ok(rowCount! >= 1);
  };
  await listenerBreaks();
  const brokeAt = performance.now();
  // What is submitted before the listener is back is found by the round that its return brings.
  await pushDelay();
  await eventually(async () => {
    const sinceMs = performance.now() - brokeAt;
    return listenerOk(await get(pusher, '/readyz'), sinceMs);
  });
  await paced(20, pushDelay);
  await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: submits }));
});

/** Of sorted values. */
const p99 = (delays: number[]): number => delays[Math.ceil(delays.length * 0.99) - 1]!;

/** Starts one every APART_MS. */
async function paced<T>(count: number, work: () => Promise<T>): Promise<T[]> {
  const began: Promise<T>[] = [];
  for (let i = 0; i < count; i++) {
    began.push(work());
    await sleep(APART_MS);
  }
  return Promise.all(began);
}

/** From sending the submit to the arrival of its push, ms: LOST_MS at most. */
async function delayOf({ parser }: Installation, api: RunningService, id: number): Promise<number> {
  const sentAt = performance.now();
  assert.equal((await submit(api, { task_id: id })).status, 202);
  let push: Push | undefined;
  const isPushed = () => {
    push = parser.pushes.find(({ body }) => body.task_id === String(id));
    return push !== undefined;
  };
  await eventually(isPushed, { timeoutMs: LOST_MS });
  return push!.atMs - sentAt;
}

/** A notification came through within the last `sinceMs`. */
const listenerOk = ({ body }: { body: Record<string, unknown> }, sinceMs: number): boolean => {
  const { listener } = body.checks as { listener: { ok: boolean; last_ok_age_ms: number } };
  return listener.ok && listener.last_ok_age_ms < sinceMs;
};
