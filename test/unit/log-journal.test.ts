/** What is logged of tasks, and that nothing is built for a level that is off. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createJournal } from '../../src/journal.ts';
import type { Log } from '../../src/log.ts';
import { withoutWords } from '../../src/pusher/answer.ts';
import type { ClaimedTask } from '../../src/pusher/claim.ts';
import type { ClosedAttempt } from '../../src/receiver/settle.ts';
import type { ExpiredRow } from '../../src/watcher/expire-pending.ts';

const LEVELS = ['debug', 'info', 'warn', 'error'];
const KEY = { queue: 'default', taskId: '1', taskVersion: '2' };
const ROW = {
  queue: 'default',
  task_id: '1',
  task_version: '2',
  traceparent: `00-${'a'.repeat(32)}-${'b'.repeat(16)}-00`,
};
const CLOSED = {
  ...ROW,
  attempt_id: 'attempt-id-of-28-characters-',
  number: 2,
  verdict: 'success',
  applied: true,
  status: 2,
  retry_count: 1,
  claimed_at: '1000',
  closed_at: '1250',
} as ClosedAttempt;

/** Keeps lines as [level, object]. */
function listening(level: string) {
  const lines: [string, Record<string, unknown>][] = [];
  const log = Object.fromEntries(LEVELS.map((name) => [name, (line: object) => void lines.push([name, { ...line }])]));
  const isLevelEnabled = (name: string) => LEVELS.indexOf(name) >= LEVELS.indexOf(level);
  return { lines, log: { ...log, isLevelEnabled } as unknown as Log };
}

/** Throws when anything of it is read. */
const untouchable = <T>(): T =>
  new Proxy({} as object, {
    get: () => assert.fail('read for a line that nobody sees'),
    ownKeys: () => assert.fail('copied for a line that nobody sees'),
  }) as T;

test('while debug is off no line is built', () => {
  const { lines, log } = listening('info');
  const journal = createJournal(log);
  const task = untouchable<typeof KEY>();
  journal.submitted(task, 'created', ROW.traceparent, 0);
  journal.claimed('default', [untouchable<ClaimedTask>()]);
  journal.superseded([task]);
  journal.cancelled(task, null);
  journal.retried(task, null);
  journal.reported('applied', CLOSED.attempt_id);
  journal.settled([CLOSED]);
  assert.deepEqual(lines, []);
});

test('an attempt that ended is told with its first 8 characters, its trace, and how long it was open', () => {
  const { lines, log } = listening('debug');
  createJournal(log).settled([CLOSED]);
  assert.deepEqual(lines, [
    [
      'debug',
      {
        event: 'attempt_settled',
        queue: 'default',
        task_id: '1',
        task_version: '2',
        trace_id: 'a'.repeat(32),
        attempt_id: 'attempt-',
        attempt: 2,
        verdict: 'success',
        applied: true,
        status: 'Success',
        retry_count: 1,
        duration_ms: 250,
      },
    ],
  ]);
});

test('time-outs and a task that its parser failed for good are warnings; what will be tried again is none', () => {
  const cases: [string, number, string | undefined][] = [
    ['processing_expired', 0, 'warn'],
    ['in_doubt_expired', 3, 'warn'],
    ['parser_failed', 3, 'warn'],
    ['parser_failed', 0, undefined],
    ['try_failed', 3, undefined],
    ['success', 2, undefined],
  ];
  for (const [verdict, status, level] of cases) {
    const { lines, log } = listening('info');
    createJournal(log).settled([{ ...CLOSED, verdict, status }]);
    assert.deepEqual(
      lines.map(([at]) => at),
      level === undefined ? [] : [level],
      verdict,
    );
  }
});

test('tasks that nobody pushed in time are one warning with their number, and a line each at debug', () => {
  const rows = [1, 2, 3].map((id) => ({ ...ROW, task_id: String(id), waited_ms: '70' }) as ExpiredRow);
  const quiet = listening('info');
  assert.deepEqual(createJournal(quiet.log).expired([KEY], rows), [KEY]);
  assert.deepEqual(quiet.lines, [['warn', { event: 'tasks_expired', queue: 'default', count: 3 }]]);
  const loud = listening('debug');
  createJournal(loud.log).expired([KEY], rows);
  assert.deepEqual(loud.lines.map(([, { event, task_id, waited_ms }]) => [event, task_id, waited_ms]).slice(1), [
    ['task_expired', '1', 70],
    ['task_expired', '2', 70],
    ['task_expired', '3', 70],
  ]);
  const idle = listening('debug');
  createJournal(idle.log).expired([], []);
  assert.deepEqual(idle.lines, []);
});

test('of a message about an answer the parser’s words are left out', () => {
  const cases = [
    ['the parser answered 422: the text\nof the document', 'the parser answered 422'],
    ['the parser answered 500', 'the parser answered 500'],
    ['connect ECONNREFUSED 127.0.0.1:9', 'connect ECONNREFUSED 127.0.0.1:9'],
  ];
  for (const [message, shown] of cases) assert.equal(withoutWords(message!), shown);
});
