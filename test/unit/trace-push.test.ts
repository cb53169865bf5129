/** The spans and lines of a push, for each way a parser can answer. */
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import type { Log } from '../../src/log.ts';
import type { PushReply } from '../../src/pusher/answer.ts';
import type { ClaimedTask } from '../../src/pusher/claim.ts';
import type { PushRequest } from '../../src/pusher/parser-client.ts';
import { createPush } from '../../src/pusher/push.ts';
import type { Queue } from '../../src/queues.ts';
import { recordSpans } from '../support/otlp-memory.ts';

const recorded = recordSpans();
const QUEUE = { queue: 'default', result_max_bytes: 1_000, secrets: [] as string[] } as unknown as Queue;
const WORDS = 'what the document says';
const attemptId = (n: number) => `attempt-${n}-of-28-characters--`;

const task = (n: number, batch = 1) =>
  ({
    attempt_id: attemptId(n),
    task_id: String(n),
    task_version: '1',
    priority: 5,
    attempt: 1,
    payload: '{}',
    traceparent: `00-${String(n).padStart(32, '0')}-b7ad6b7169203331-01`,
    create_at: '1000',
    pending_since: '1500',
    started_at: '1700',
    deadline: '61700',
    target: { url: 'https://parser.test/parse?token=hush', mode: 'async', batch, push_timeout_ms: 1_000 },
  }) as ClaimedTask;

const answered = (status: number, body: unknown = { detail: WORDS }): PushReply => ({
  kind: 'response',
  status,
  retryAfter: undefined,
  body: JSON.stringify(body),
  truncated: false,
});

/** Pushes `tasks`; the parser gives these replies in turn. */
async function pushed(tasks: ClaimedTask[], ...replies: PushReply[]) {
  const lines: Record<string, unknown>[] = [];
  const note = (level: string) => (line: object) => void lines.push({ level, ...line });
  const log = { debug: note('debug'), warn: note('warn'), isLevelEnabled: () => true } as unknown as Log;
  const requests: PushRequest[] = [];
  const client = {
    push: async (request: PushRequest) => {
      requests.push(request);
      return replies.shift()!;
    },
    close: async () => {},
  };
  const callbackUrl = (id: string) => `http://docsched.test/v1/callbacks/${id}`;
  const push = createPush({ db: undefined as never, client, callbackUrl, observePush: () => {}, log });
  await push(QUEUE, tasks, performance.now());
  return { lines, requests };
}

beforeEach(() => recorded.reset());

test('each answer is an outcome; a failure is one status, an error.type and, but for a broken target, a warning', async () => {
  const cases: [PushReply, outcome: string, error: string | undefined, level: string][] = [
    [answered(202), 'accepted', undefined, 'debug'],
    [answered(200, { status_code: 0 }), 'done', undefined, 'debug'],
    [answered(429), 'busy', undefined, 'debug'],
    [answered(422), 'refused', 'the parser answered 422', 'warn'],
    [answered(500), 'try_failed', 'the parser answered 500', 'warn'],
    [answered(504), 'in_doubt', 'the parser answered 504', 'warn'],
    [answered(401), 'broken', 'the parser answered 401', 'debug'],
    [{ kind: 'failure', sent: true, error: 'reset' }, 'in_doubt', 'reset', 'warn'],
    [{ kind: 'failure', sent: false, error: 'refused' }, 'broken', 'refused', 'debug'],
    [{ kind: 'unsent', error: 'too late' }, 'unsent', 'too late', 'warn'],
  ];
  for (const [reply, outcome, error, level] of cases) {
    recorded.reset();
    const { lines } = await pushed([task(1)], reply);
    const [span, ...more] = recorded.spans();
    assert.deepEqual(more, []);
    const status = reply.kind === 'response' ? reply.status : undefined;
    assert.deepEqual(
      [span!.attributes['docsched.push.outcome'], span!.error, span!.attributes['error.type']],
      [outcome, error, error && outcome],
    );
    assert.equal(span!.attributes['http.response.status_code'], status, outcome);
    assert.deepEqual(span!.events, ['docsched.task.due', 'docsched.task.claimed'], 'and no exception');
    const [line] = lines;
    const told = [line!.level, line!.event, line!.outcome, line!.http_status, line!.attempt_id];
    assert.deepEqual(told, [level, 'push_answered', outcome, status, attemptId(1).slice(0, 8)]);
    assert.doesNotMatch(JSON.stringify([span, lines]), new RegExp(`${WORDS}|hush|${attemptId(1)}`));
  }
});

test('a push says how long its task waited, and where it goes', async () => {
  await pushed([task(1)], answered(202));
  const { attributes } = recorded.spans()[0]!;
  assert.deepEqual(
    ['docsched.task.waited_ms', 'docsched.task.age_ms', 'server.address', 'server.port'].map(
      (name) => attributes[name],
    ),
    [200, 700, 'parser.test', 443],
  );
});

test('a batch that is refused as a whole is no error of its tasks, which are pushed anew', async () => {
  const { requests } = await pushed([task(1, 2), task(2, 2)], answered(413), answered(202), answered(422));
  assert.equal(requests.length, 3);
  const told = recorded
    .spans()
    .map(({ attributes, error }) => [
      attributes['docsched.task.id'],
      attributes['docsched.push.outcome'],
      attributes['messaging.batch.message_count'],
      error,
    ]);
  assert.deepEqual(told, [
    ['1', 'split', 2, undefined],
    ['2', 'split', 2, undefined],
    ['1', 'accepted', undefined, undefined],
    ['2', 'refused', undefined, 'the parser answered 422'],
  ]);
});

test('the parser is told the span of its push', async () => {
  const { requests } = await pushed([task(1)], answered(202));
  const { traceId, spanId } = recorded.spans()[0]!;
  assert.equal(requests[0]!.headers.traceparent, `00-${traceId}-${spanId}-01`);
});
