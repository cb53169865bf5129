/** The spans of submits, over HTTP in this process: one a task that is decided, with what became of it. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { AppError } from '../../src/errors.ts';
import { createServer, type HttpServer } from '../../src/http.ts';
import type { Inserter } from '../../src/inserter/inserter.ts';
import { createInserterRoutes } from '../../src/inserter/route.ts';
import { createLog } from '../../src/log.ts';
import type { Queues } from '../../src/queues.ts';
import { recordSpans } from '../support/otlp-memory.ts';

const recorded = recordSpans();
const TRACEPARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const queues = {
  all: () => [{ payload_max_bytes: 100 }],
  get: (queue: string) => (queue === 'default' ? { payload_max_bytes: 100 } : undefined),
} as unknown as Queues;
const ACCEPTED = { outcome: 'created', task: {} } as const;
const LOCKED = { outcome: 'locked' } as const;
const STALE = { outcome: 'stale', latest: { task_version: '9', status: null } } as const;

let inserter: Partial<Inserter> = {};
let server: HttpServer;
let url: string;
const submitted: [string, string][] = [];

before(async () => {
  const deps = {
    inserter: {
      submit: (submit) => inserter.submit!(submit),
      submitBatch: (submits) => inserter.submitBatch!(submits),
      submitAtomic: (submits) => inserter.submitAtomic!(submits),
    } as Inserter,
    journal: { submitted: (key: { taskId: string }, outcome: string) => void submitted.push([key.taskId, outcome]) },
  };
  const routers = [createInserterRoutes({ ...deps, queues, batchMaxBytes: 10_000 })];
  server = createServer({ routers, log: createLog('silent') });
  url = `http://127.0.0.1:${await server.listen('127.0.0.1', 0)}`;
});
after(() => server.close());
beforeEach(() => {
  recorded.reset();
  submitted.length = 0;
});

const task = (taskId: number, more = {}) => ({ task_id: taskId, task_version: 1, payload: null, ...more });

async function post(path: string, body: unknown): Promise<number> {
  const headers = { 'content-type': 'application/json', traceparent: TRACEPARENT };
  const answer = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  await answer.text();
  return answer.status;
}

const told = () =>
  recorded
    .spans()
    .map(({ attributes, error }) => [
      attributes['docsched.task.id'],
      attributes['docsched.insert.outcome'],
      attributes['error.type'],
      error,
    ]);

test('each task of a batch is a span under the caller’s, malformed entries none', async () => {
  inserter = { submitBatch: async () => [ACCEPTED, STALE, LOCKED] };
  const tasks = [task(1), { nonsense: 1 }, task(2), task(3), task(4, { queue: 'nowhere' })];
  assert.equal(await post('/v1/tasks/batch', { tasks }), 200);
  assert.deepEqual(told(), [
    ['1', 'created', undefined, undefined],
    ['2', 'stale', undefined, undefined],
    ['3', 'locked', 'locked', 'another transaction holds the task'],
  ]);
  for (const { name, traceId, parentSpanId } of recorded.spans())
    assert.deepEqual([name, `00-${traceId}-${parentSpanId}-01`], ['insert default', TRACEPARENT]);
  assert.deepEqual(submitted, [
    ['1', 'created'],
    ['2', 'stale'],
    ['3', 'locked'],
  ]);
});

test('of an atomic batch that is refused the span of the entry says why, the others that they are not stored', async () => {
  inserter = { submitAtomic: async () => ({ refused: STALE, index: 1 }) };
  assert.equal(await post('/v1/tasks/batch', { tasks: [task(1), task(2), task(3)], atomic: true }), 409);
  assert.deepEqual(
    told().map(([, outcome]) => outcome),
    ['not_stored', 'stale', 'not_stored'],
  );
});

test('a submit that the store could not take is an error with its code, and is told once', async () => {
  const away = async () => {
    throw new AppError('store_unavailable', 'The database cannot be reached right now');
  };
  inserter = { submit: away };
  assert.equal(await post('/v1/tasks', task(1)), 503);
  assert.deepEqual(told(), [['1', undefined, 'store_unavailable', 'The database cannot be reached right now']]);
  assert.deepEqual(recorded.spans()[0]!.events, []);
  assert.deepEqual(submitted, []);
});

test('what the task keeps is its insert span', async () => {
  const kept: string[] = [];
  inserter = {
    submit: async ({ traceparent }) => {
      kept.push(traceparent);
      return ACCEPTED;
    },
  };
  assert.equal(await post('/v1/tasks', task(1)), 202);
  const { traceId, spanId } = recorded.spans()[0]!;
  assert.deepEqual(kept, [`00-${traceId}-${spanId}-01`]);
});
