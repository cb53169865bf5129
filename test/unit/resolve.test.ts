/** Which reports are looked up before they are settled: those that must be, and no others. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Db } from '../../src/db.ts';
import type { Queue, Queues } from '../../src/queues.ts';
import type { Report } from '../../src/receiver/report.ts';
import { createResolver } from '../../src/receiver/resolve.ts';

const ATTEMPT = 'a'.repeat(22);
const UNSIGNED = { headers: { id: undefined, timestamp: undefined, signature: undefined }, body: Buffer.from('{}') };
const SIGNED: Partial<Queue> = { callback_auth: 'signature', secrets: [`whsec_${'A'.repeat(32)}`] };
const queueOf = (queue: string, more: Partial<Queue> = {}) =>
  ({ queue, callback_auth: 'attempt', fence: 'strict', secrets: [], result_max_bytes: 100, ...more }) as Queue;
const report = (more: Partial<Report> = {}): Report => ({
  attemptId: ATTEMPT,
  task: undefined,
  statusCode: '0',
  statusMsg: null,
  result: '1',
  at: '',
  ...more,
});

/** A resolver over queues in memory; `loaded` are there after a load. The attempt is one of queue `b`. */
function createResolverOver(memory: Queue[], loaded: Queue[] = memory) {
  let known = memory;
  const queries: string[] = [];
  const db = {
    query: async (name: string) => {
      queries.push(name);
      return [{ attempt_id: ATTEMPT, queue: 'b', task_id: '1', task_version: '1' }];
    },
  } as unknown as Db;
  const queues = {
    get: (name: string) => known.find(({ queue }) => queue === name),
    all: () => known,
    load: async () => {
      known = loaded;
    },
  } as unknown as Queues;
  return { resolver: createResolver({ db, queues }), queries };
}
const resolve = async (over: ReturnType<typeof createResolverOver>, one: Report) => {
  const [resolved] = await over.resolver.resolve([one], UNSIGNED);
  return resolved instanceof Error ? (resolved as unknown as { code: string }).code : resolved;
};

test('a report that names its attempt is settled without a look before, and so is its progress', async () => {
  const over = createResolverOver([queueOf('a'), queueOf('b')]);
  assert.deepEqual(await resolve(over, report()), {
    attemptId: ATTEMPT,
    verdict: 'success',
    statusCode: '0',
    statusMsg: null,
    result: '1',
  });
  await over.resolver.authorize(ATTEMPT, UNSIGNED);
  assert.deepEqual(over.queries, []);
});

test('while some queue wants signatures, a report is looked up, and allowed if its own queue wants none', async () => {
  const over = createResolverOver([queueOf('a', SIGNED), queueOf('b')]);
  assert.notEqual(await resolve(over, report()), 'bad_signature');
  const own = createResolverOver([queueOf('a'), queueOf('b', SIGNED)]);
  assert.equal(await resolve(own, report()), 'bad_signature');
  await assert.rejects(own.resolver.authorize(ATTEMPT, UNSIGNED), { code: 'bad_signature' });
  assert.deepEqual([over.queries, own.queries], [['explain_attempts'], ['explain_attempts', 'explain_attempts']]);
});

test('a result larger than some queue allows is looked up, and refused when it is its own', async () => {
  const result = `"${'x'.repeat(60)}"`;
  for (const [a, b, wanted] of [
    [50, 100, 'success'],
    [100, 50, 'result_too_large'],
  ] as const) {
    const over = createResolverOver([queueOf('a', { result_max_bytes: a }), queueOf('b', { result_max_bytes: b })]);
    const resolved = await resolve(over, report({ result }));
    assert.equal(typeof resolved === 'object' ? resolved.verdict : resolved, wanted);
    assert.deepEqual(over.queries, ['explain_attempts']);
  }
});

test('the queue of an attempt that another instance has only just added is read before it is judged', async () => {
  const over = createResolverOver([queueOf('a', SIGNED)], [queueOf('a', SIGNED), queueOf('b', SIGNED)]);
  assert.equal(await resolve(over, report()), 'bad_signature');
});
