/** What goes together in one push request, and what it says. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ClaimedTask } from '../../src/pusher/claim.ts';
import { batchBody, intoRequests, pushBody } from '../../src/pusher/request.ts';
import type { Target } from '../../src/queues.ts';

const MB = 1024 * 1024;

const target = (batch: number, url = 'http://parser.test/'): Target => ({
  url,
  mode: 'async',
  batch,
  push_timeout_ms: 1_000,
});
const task = (id: number, to: Target, payload = '{}') =>
  ({
    attempt_id: `attempt-${id}`,
    task_id: String(id),
    task_version: '9223372036854775807',
    priority: 2,
    attempt: 1,
    deadline: '1893456000000',
    payload,
    target: to,
  }) as ClaimedTask;
const range = (from: number, to: number): number[] => Array.from({ length: to - from + 1 }, (_, i) => from + i);
const idsOf = (requests: ClaimedTask[][]) => requests.map((tasks) => tasks.map(({ task_id }) => Number(task_id)));

test('a target without batches gets each task alone', () => {
  const tasks = range(1, 3).map((id) => task(id, target(1)));
  assert.deepEqual(idsOf(intoRequests(tasks)), [[1], [2], [3]]);
  assert.deepEqual(intoRequests([]), []);
});

test('batches are full but for the last, in the order of the claim', () => {
  const tasks = range(1, 7).map((id) => task(id, target(3)));
  assert.deepEqual(idsOf(intoRequests(tasks)), [[1, 2, 3], [4, 5, 6], [7]]);
});

test('a batch is of one target', () => {
  const [one, two, single] = [
    target(2, 'http://one.test/'),
    target(3, 'http://two.test/'),
    target(1, 'http://s.test/'),
  ];
  const order = [one, two, single, two, one, one, two, single, two];
  const requests = intoRequests(order.map((to, i) => task(i, to)));
  assert.deepEqual(idsOf(requests), [[0, 4], [1, 3, 6], [2], [5], [7], [8]]);
  for (const tasks of requests) assert.equal(new Set(tasks.map(({ target }) => target.url)).size, 1);
});

test('a batch is sent before it grows beyond 8 MB, and a task larger than that goes alone', () => {
  const payload = (bytes: number) => JSON.stringify('x'.repeat(bytes - 2));
  const sizes = [3 * MB, 3 * MB, 3 * MB, 9 * MB, MB, 1_000, 8 * MB, 1_000];
  const requests = intoRequests(sizes.map((bytes, i) => task(i, target(100), payload(bytes))));
  assert.deepEqual(idsOf(requests), [[0, 1], [2], [3], [4, 5], [6], [7]]);
  // Counted in bytes, not in characters.
  const wide = JSON.stringify('€'.repeat(MB));
  assert.equal(intoRequests(range(1, 3).map((id) => task(id, target(100), wide))).length, 2);
});

test('a push body holds the payload byte for byte', () => {
  const payload = '{ "big": 12345678901234567890.10, "b":1, "a":2, "nul":"\\u0000" }';
  const text = pushBody('news', task(7, target(1), payload), 'https://docsched.test/v1/callbacks/attempt-7');
  assert.ok(text.includes(`"payload":${payload},`));
  assert.deepEqual(JSON.parse(text), {
    queue: 'news',
    task_id: '7',
    task_version: '9223372036854775807',
    priority: 2,
    payload: JSON.parse(payload),
    attempt: 1,
    attempt_id: 'attempt-7',
    deadline: 1_893_456_000_000,
    callback_url: 'https://docsched.test/v1/callbacks/attempt-7',
    progress_url: 'https://docsched.test/v1/callbacks/attempt-7/progress',
  });
});

test('a batch body holds the push bodies, each with the traceparent of its task', () => {
  const tasks = [task(1, target(2), 'null'), task(2, target(2), '[1]')];
  const urlOf = (attemptId: string) => `http://docsched.test/${attemptId}`;
  const body = JSON.parse(batchBody('news', tasks, urlOf, ['00-one-00', '00-two-00']));
  assert.deepEqual(body, {
    tasks: tasks.map((one, i) => ({
      ...JSON.parse(pushBody('news', one, urlOf(one.attempt_id))),
      traceparent: ['00-one-00', '00-two-00'][i],
    })),
  });
});
