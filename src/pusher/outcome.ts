/**
 * What follows from a parser's answers: the right-hand column of the answers in docs/design.md. The target's breaker is
 * told first, so that a task that goes back to Pending is not claimed for a target that just refused it; then the
 * attempts are settled, noted as accepted, or left in doubt.
 *
 * Killed before it has settled: the attempt is open and holds its slot; the parser's callback or the deadline ends it.
 */
import { type Log, shortId } from '../log.ts';
import type { Queue } from '../queues.ts';
import type { Settlement, Settler } from '../receiver/settle.ts';
import { traceIdOf } from '../trace.ts';
import { storable } from '../wire.ts';
import type { Acceptance } from './acceptance.ts';
import type { PushAnswer } from './answer.ts';
import type { ClaimedTask } from './claim.ts';
import { endOf } from './request.ts';
import type { Targets } from './targets.ts';

export type Outcomes = {
  /** `answers[i]` is for `tasks[i]`: the tasks of one request, claimed at `claimedAt` (performance.now()). */
  act(queue: Queue, tasks: readonly ClaimedTask[], answers: readonly PushAnswer[], claimedAt: number): Promise<void>;
  /** Back to Pending, uncounted: it was not sent. */
  giveBack(task: ClaimedTask, claimedAt: number, why: string): Promise<void>;
  /** From now on pushes end because this process does, which says nothing about a target. */
  stop(): void;
};

export type OutcomesDeps = {
  settler: Pick<Settler, 'settle'>;
  targets: Pick<Targets, 'answered' | 'failed' | 'broken' | 'busy'>;
  acceptance: Pick<Acceptance, 'note'>;
  /** Its lines name the queue. */
  log: Log;
};

type Report = 'answered' | 'failed' | 'busy' | 'broken';

/** What an answer says about the target; `unsent` says nothing. */
const REPORT: Record<PushAnswer['kind'], Report | null> = {
  accepted: 'answered',
  done: 'answered',
  refused: 'answered',
  result_too_large: 'answered',
  try_failed: 'failed',
  in_doubt: 'failed',
  busy: 'busy',
  broken: 'broken',
  unsent: null,
};
/** Of a batch with answers of several kinds, what speaks for the target is told first: a failure then stands. */
const REPORTS: Report[] = ['answered', 'failed', 'busy', 'broken'];
const SETTLE_RETRY_MS = 50;
const SETTLE_RETRY_MAX_MS = 2_000;
/** As long as PostgreSQL is away nobody else can close the attempt: an answer is kept at least this long. */
const PATIENCE_MS = 60_000;
const STATUS_MSG_MAX_CHARS = 2_000;
const RESULT_TOO_LARGE = 'the result is larger than result_max_bytes';

export function createOutcomes({ settler, targets, acceptance, log }: OutcomesDeps): Outcomes {
  const warned = new Set<string>();
  let stopped = false;
  return {
    async act(queue, tasks, answers, claimedAt) {
      // A request is one observation of its target, however many tasks it held: each kind is told once.
      for (const report of stopped ? [] : REPORTS) {
        const i = answers.findIndex(({ kind }) => REPORT[kind] === report);
        if (i >= 0) await tell(tasks[i]!, answers[i]!);
      }
      await Promise.all(tasks.map((task, i) => end(queue, task, answers[i]!, claimedAt)));
    },
    giveBack: (task, claimedAt, why) => settle(task, claimedAt, { verdict: 'unsent', statusMsg: why }),
    stop() {
      stopped = true;
    },
  };

  function tell(task: ClaimedTask, answer: PushAnswer): void | Promise<void> {
    if (answer.kind === 'broken') return targets.broken(task, answer.message);
    if (answer.kind === 'busy') return targets.busy(task, answer.afterMs);
    if (answer.kind === 'try_failed' || answer.kind === 'in_doubt') return targets.failed(task, answer.message);
    return targets.answered(task);
  }

  function end(queue: Queue, task: ClaimedTask, answer: PushAnswer, claimedAt: number): void | Promise<void> {
    switch (answer.kind) {
      case 'accepted':
        if (answer.unclear) warnUnclear(task.target.url);
        return acceptance.note(task.attempt_id);
      case 'done':
        return settle(task, claimedAt, settlementOf(answer, queue.result_max_bytes));
      case 'busy':
        return settle(task, claimedAt, { verdict: 'busy', statusMsg: answer.message, afterMs: answer.afterMs });
      case 'in_doubt':
        return;
      case 'broken':
      case 'unsent':
      case 'try_failed':
      case 'refused':
      case 'result_too_large':
        return settle(task, claimedAt, { verdict: answer.kind, statusMsg: answer.message });
      default:
        answer satisfies never;
    }
  }

  /** Until PostgreSQL takes it; given up on only past the deadline, which progress may have moved, and after a while. */
  async function settle(task: ClaimedTask, claimedAt: number, what: Omit<Settlement, 'attemptId'>): Promise<void> {
    const giveUpAt = Math.max(endOf(task, claimedAt), performance.now() + PATIENCE_MS);
    const statusMsg = what.statusMsg == null ? null : storable(what.statusMsg, STATUS_MSG_MAX_CHARS);
    for (let delayMs = SETTLE_RETRY_MS; ; delayMs = Math.min(delayMs * 2, SETTLE_RETRY_MAX_MS)) {
      try {
        await settler.settle({ ...what, statusMsg, attemptId: task.attempt_id });
        return;
      } catch (error) {
        if (performance.now() > giveUpAt) {
          log.error({
            event: 'settle_failed',
            task_id: task.task_id,
            task_version: task.task_version,
            trace_id: task.traceparent ? traceIdOf(task.traceparent) : undefined,
            attempt_id: shortId(task.attempt_id),
            verdict: what.verdict,
            error: (error as Error).message,
          });
          return;
        }
        await new Promise((resolve) => setTimeout(resolve, delayMs));
      }
    }
  }

  /** Once: a parser that means `done` by a plain 200 would otherwise hold its slots until the deadlines, in silence. */
  function warnUnclear(url: string): void {
    if (warned.has(url)) return;
    warned.add(url);
    log.warn({
      event: 'push_answer_unclear',
      target: new URL(url).origin,
      msg: '2xx without a status_code is taken as accepted: answer 202, or 200 {"status_code": ...} when done',
    });
  }
}

function settlementOf(
  { statusCode, statusMsg, result }: PushAnswer & { kind: 'done' },
  resultMaxBytes: number,
): Omit<Settlement, 'attemptId'> {
  if (statusCode !== '0') return { verdict: 'parser_failed', statusCode, statusMsg, result };
  if (result !== null && Buffer.byteLength(result) > resultMaxBytes)
    return { verdict: 'result_too_large', statusMsg: RESULT_TOO_LARGE };
  return { verdict: 'success', statusCode, statusMsg, result };
}
