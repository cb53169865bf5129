/** What follows from answers: what the target's breaker is told, how attempts are settled, what is left open. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLog } from '../../src/log.ts';
import type { PushAnswer } from '../../src/pusher/answer.ts';
import type { ClaimedTask } from '../../src/pusher/claim.ts';
import { createOutcomes } from '../../src/pusher/outcome.ts';
import type { Queue } from '../../src/queues.ts';
import type { Settlement } from '../../src/receiver/settle.ts';

const QUEUE = { queue: 'default', result_max_bytes: 10 } as Queue;
const taskOf = (id: string) =>
  ({ attempt_id: id, started_at: '1000', deadline: '61000', target: { url: 'http://parser.test/' } }) as ClaimedTask;
const TASKS = ['a', 'b', 'c', 'd'].map(taskOf);

/** `log` holds what happened, in order: reports as `kind:attempt`, settlements as `verdict!attempt`. */
function scripted(failures = 0) {
  const log: string[] = [];
  const settled: Settlement[] = [];
  let left = failures;
  /** Later than anything that does not wait for it. */
  const told = async (word: string) => {
    await new Promise((resolve) => setImmediate(resolve));
    log.push(word);
  };
  const outcomes = createOutcomes({
    settler: {
      settle: async (settlement) => {
        if (left-- > 0) throw new Error('the store is away');
        log.push(`${settlement.verdict}!${settlement.attemptId}`);
        settled.push(settlement);
        return { outcome: 'applied', closed: null };
      },
    },
    targets: {
      answered: ({ attempt_id }) => void log.push(`answered:${attempt_id}`),
      failed: ({ attempt_id }) => told(`failed:${attempt_id}`),
      broken: ({ attempt_id }) => told(`broken:${attempt_id}`),
      busy: ({ attempt_id }, forMs) => told(`busy ${forMs}:${attempt_id}`),
    },
    acceptance: { note: (attemptId) => void log.push(`accepted!${attemptId}`) },
    log: createLog('silent'),
  });
  const act = (...answers: PushAnswer[]) =>
    outcomes.act(QUEUE, TASKS.slice(0, answers.length), answers, performance.now());
  return { outcomes, act, log, settled };
}

const DONE: PushAnswer = { kind: 'done', statusCode: '0', statusMsg: null, result: '1' };
const BUSY: PushAnswer = { kind: 'busy', afterMs: 700, message: 'full' };
const failure = (kind: 'try_failed' | 'in_doubt' | 'refused' | 'broken' | 'unsent' | 'result_too_large') =>
  ({ kind, message: 'why' }) as const;

test('each answer is told to the target first and then settled, noted, or left in doubt', async () => {
  const cases: [PushAnswer, string[]][] = [
    [{ kind: 'accepted' }, ['answered:a', 'accepted!a']],
    [DONE, ['answered:a', 'success!a']],
    [{ ...DONE, statusCode: '7' }, ['answered:a', 'parser_failed!a']],
    [failure('refused'), ['answered:a', 'refused!a']],
    [failure('result_too_large'), ['answered:a', 'result_too_large!a']],
    [failure('try_failed'), ['failed:a', 'try_failed!a']],
    [failure('in_doubt'), ['failed:a']],
    [BUSY, ['busy 700:a', 'busy!a']],
    [failure('broken'), ['broken:a', 'broken!a']],
    [failure('unsent'), ['unsent!a']],
  ];
  for (const [answer, expected] of cases) {
    const { act, log } = scripted();
    await act(answer);
    assert.deepEqual(log, expected, answer.kind);
  }
});

test('a batch tells the target each kind of answer once, its failures last', async () => {
  const same = scripted();
  await same.act(failure('try_failed'), failure('try_failed'), failure('in_doubt'));
  assert.deepEqual(same.log, ['failed:a', 'try_failed!a', 'try_failed!b']);
  const mixed = scripted();
  await mixed.act(BUSY, failure('in_doubt'), DONE, { kind: 'accepted' });
  assert.deepEqual(mixed.log, ['answered:c', 'failed:b', 'busy 700:a', 'busy!a', 'success!c', 'accepted!d']);
});

test('once the process stops, its own broken connections say nothing about a target', async () => {
  const { outcomes, act, log } = scripted();
  outcomes.stop();
  await act(failure('in_doubt'), failure('try_failed'), DONE);
  assert.deepEqual(log, ['try_failed!b', 'success!c']);
});

test('a result of result_max_bytes is kept, a longer one is not, counted in bytes', async () => {
  for (const [result, verdict] of [
    ['"12345678"', 'success'],
    ['"123456789"', 'result_too_large'],
    ['"€€€"', 'result_too_large'],
  ] as const) {
    const { act, settled } = scripted();
    await act({ ...DONE, result });
    assert.equal(settled[0]!.verdict, verdict, result);
    assert.equal(settled[0]!.result, verdict === 'success' ? result : undefined);
  }
});

test('a result of a failure is no reason to say that it is too large', async () => {
  const { act, settled } = scripted();
  await act({ ...DONE, statusCode: '9', result: '"a long explanation"' });
  assert.deepEqual([settled[0]!.verdict, settled[0]!.statusCode], ['parser_failed', '9']);
});

test('an answer is settled again and again until the store takes it', async () => {
  const { act, log } = scripted(3);
  await act(DONE);
  assert.deepEqual(log, ['answered:a', 'success!a']);
});

test('past the deadline it is kept for a while all the same: progress may have moved it', async () => {
  const { outcomes, log } = scripted(3);
  await outcomes.act(QUEUE, TASKS.slice(0, 1), [DONE], performance.now() - 61_000);
  assert.deepEqual(log, ['answered:a', 'success!a']);
});

test('what was not sent goes back with the reason', async () => {
  const { outcomes, settled, log } = scripted();
  await outcomes.giveBack(TASKS[0]!, performance.now(), 'its slot was taken by others');
  assert.deepEqual(log, ['unsent!a']);
  assert.equal(settled[0]!.statusMsg, 'its slot was taken by others');
});
