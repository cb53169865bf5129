/**
 * Every route of /openapi.json under requests of any kind (promise 8): bad input gets a 4xx problem that says what
 * is wrong and where, never a 5xx, never a partial write, and the process lives on, no larger than before.
 *
 * FUZZ_REQUESTS and FUZZ_SEED make another run of it; what failed names its seed.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import { build, type FuzzRequest, type OpenApi, type Route, requestsTo, routesOf } from '../support/fuzz.ts';
import { judge } from '../support/fuzz-judge.ts';
import { createLane, type Lane } from '../support/fuzz-lane.ts';
import { exchange } from '../support/fuzz-wire.ts';
import { ended, get, install, submit } from '../support/installation.ts';

const REQUESTS = Number(process.env.FUZZ_REQUESTS || 5_000);
const SEED = Number(process.env.FUZZ_SEED || Date.now() % 2 ** 31);
/** Routes under fire at once. */
const LANES = 6;
/** The process may grow by this much: bodies on their way, and heap that V8 has not given back. */
const MAX_GROWTH_MB = 400;
/**
 * Of the good requests to a route, the share that must be taken, or meet a task or an attempt that is there. Some name a
 * version that nobody submitted: of 150, between a fifth and a third were taken.
 */
const MIN_TAKEN = 0.1;
const ANSWER_WITHIN_MS = 30_000;
/** How long an answer is waited for that need not come. */
const PATIENCE_MS = 60;
const LAST_TASK = 77_777_777;

test('whatever is sent to any route is taken as a whole or refused as a problem', {
  timeout: 14_400_000,
}, async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  place.parser.autoCallback();
  const service = await place.start();
  const port = Number(new URL(service.url).port);
  const document = (await get(service, '/openapi.json')).body as unknown as OpenApi;
  const accepted = new Set(['1/1', `${LAST_TASK}/1`]);
  await submit(service, { task_id: 1 });
  await ended(service, 1);
  const memory = watchMemory(service.pid);

  const routes = routesOf(document).map((route, index) => ({ route, queue: `f${index}` }));
  assert.ok(routes.length > 20, `${routes.length} routes`);
  const runs = Math.ceil(REQUESTS / routes.length);
  const startedAt = performance.now();
  const failures: unknown[] = [];
  const work = async () => {
    for (let next = routes.shift(); next && failures.length === 0; next = routes.shift()) {
      const { route, queue } = next;
      const lane = await createLane(route, queue, place, service);
      const requests = requestsTo(route, document, { queue, parserUrl: place.parser.url });
      await fuzz(route, requests, lane).catch((error) => failures.push(error));
      await lane.stop();
    }
  };
  await Promise.all(Array.from({ length: LANES }, work));
  memory.stop();
  if (failures.length > 0) throw failures[0];
  t.diagnostic(`seed ${SEED}: ${REQUESTS} requests in ${Math.round((performance.now() - startedAt) / 1_000)} s`);

  await t.test('no task is there but those whose submit was accepted', async () => {
    const { rows } = await place.sql.query<{ key: string }>(
      `SELECT concat_ws('/', task_id, task_version) AS key FROM task_scheduler_tasks WHERE queue = 'default'`,
    );
    assert.deepEqual(new Set(rows.map(({ key }) => key)), accepted.difference(new Set([`${LAST_TASK}/1`])));
  });
  await t.test('a good submit is parsed as ever', async () => {
    assert.equal((await submit(service, { task_id: LAST_TASK })).status, 202);
    assert.equal((await ended(service, LAST_TASK)).status, 'Success');
  });
  await t.test('it is the same process, which logged no error and has not grown', async () => {
    process.kill(service.pid, 0);
    const errors = service.lines.filter((line) => /"level":"(error|fatal)"|unhandled/.test(line));
    assert.deepEqual(errors, []);
    t.diagnostic(memory.report());
    assert.ok(memory.grownByMb() < MAX_GROWTH_MB, memory.report());
  });

  async function fuzz(route: Route, requests: fc.Arbitrary<FuzzRequest>, lane: Lane): Promise<void> {
    const good = { sent: 0, taken: 0 };
    const one = async (request: FuzzRequest) => {
      const built = build(request, await lane.prepare());
      const waitMs = built.answered ? ANSWER_WITHIN_MS : PATIENCE_MS;
      const done = judge(route, request, built, await exchange(port, { ...built, waitMs }));
      await lane.check(request, done);
      for (const { task } of done.results)
        if (task?.queue === 'default') accepted.add(`${task.task_id}/${task.task_version}`);
      if (request.faults.length > 0) return;
      good.sent += 1;
      if (done.status! < 400 || done.status === 409) good.taken += 1;
    };
    await fc.assert(fc.asyncProperty(requests, one), { numRuns: runs, seed: SEED });
    const enough = good.sent < 20 || good.taken >= good.sent * MIN_TAKEN;
    assert.ok(enough, `${route.method} ${route.path}: ${good.taken} of ${good.sent} good requests were taken`);
  }
});

test('a route is not passed over because nothing is known about it', () => {
  const document = { paths: {}, components: { schemas: {} } };
  const at = { queue: 'q', parserUrl: 'http://127.0.0.1:1' };
  const named = { name: 'colour', in: 'path' as const, schema: { type: 'string' } };
  const route = { method: 'GET', path: '/v1/colours/{colour}', parameters: [named], body: null };
  assert.throws(() => requestsTo(route, document, at), /GET \/v1\/colours/);
  assert.throws(() => requestsTo({ ...route, parameters: [] }, document, at), /GET \/v1\/colours/);
  const odd: Route = { method: 'POST', path: '/v1/colours', parameters: [], body: ['Colour', { type: 'colour' }] };
  assert.throws(() => requestsTo(odd, { ...document, components: { schemas: { Colour: { type: 'colour' } } } }, at));
});

/** Resident memory of a process, looked at ten times a second. */
function watchMemory(pid: number) {
  const readMb = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
  const before = readMb();
  let most = before;
  const timer = setInterval(() => {
    // Gone: the next request will tell.
    if (existsSync(`/proc/${pid}`)) most = Math.max(most, readMb());
  }, 100);
  return {
    stop: () => clearInterval(timer),
    grownByMb: () => most - before,
    report: () => `resident memory: ${Math.round(before)} MB at the start, ${Math.round(most)} MB at most`,
  };
}
