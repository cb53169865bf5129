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
/** Submit to push, 99 of 100. */
const P99_MS = 200;

test('a submit to one process is pushed by another at once, also after its listener was cut off', async (t) => {
  const place = await install(t, { limiter: 'redis', env: { TRIGGER_INTERVAL_MS: '60000', MAX_PROCESSING: '50' } });
  place.parser.answerWith(finish());
  const api = await place.start({ ROLES: 'api' });
  const pusher = await place.start({ ROLES: 'pusher', PUBLIC_URL: api.url });
  assert.equal((await submit(pusher, { task_id: 1 })).status, 404, 'a pusher takes no submits');
  await pushDelay(place, api, 0); // The first opens connections and prepares statements.

  const delays = await paced(SUBMITS, (i) => pushDelay(place, api, 1 + i));
  delays.sort((a, b) => a - b);
  const p99 = delays[Math.ceil(SUBMITS * 0.99) - 1]!;
  assert.ok(p99 < P99_MS, `p99 is ${Math.round(p99)} ms, the longest ${delays.slice(-5).map(Math.round)}`);

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
  assert.ok((await pushDelay(place, api, 1_000)) < 5_000);
  await eventually(async () => {
    const sinceMs = performance.now() - brokeAt;
    return listenerOk(await get(pusher, '/readyz'), sinceMs);
  });
  const after = await paced(20, (i) => pushDelay(place, api, 2_000 + i));
  assert.ok(Math.max(...after) < P99_MS * 2, `${after.map(Math.round)} ms after the break`);
  await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: SUBMITS + 22 }));
});

/** Starts one every APART_MS. */
async function paced<T>(count: number, work: (i: number) => Promise<T>): Promise<T[]> {
  const began: Promise<T>[] = [];
  for (let i = 0; i < count; i++) {
    began.push(work(i));
    await sleep(APART_MS);
  }
  return Promise.all(began);
}

/** From sending the submit to the arrival of its push, ms. */
async function pushDelay({ parser }: Installation, api: RunningService, id: number): Promise<number> {
  const sentAt = performance.now();
  assert.equal((await submit(api, { task_id: id })).status, 202);
  let push: Push | undefined;
  await eventually(() => {
    push = parser.pushes.find(({ body }) => body.task_id === String(id));
    return push !== undefined;
  });
  return push!.atMs - sentAt;
}

/** A notification came through within the last `sinceMs`. */
const listenerOk = ({ body }: { body: Record<string, unknown> }, sinceMs: number): boolean => {
  const { listener } = body.checks as { listener: { ok: boolean; last_ok_age_ms: number } };
  return listener.ok && listener.last_ok_age_ms < sinceMs;
};
