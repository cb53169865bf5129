/**
 * Finds the attempt a report is about, and checks that its sender may report on it.
 *
 * Most reports name their attempt and are allowed by that alone: the settle will find it. It is looked up before only
 * where something hangs on its queue or task: while any queue wants signatures, in the plain form, and when the result is
 * larger than some queue allows.
 */
import type { Db } from '../db.ts';
import { AppError } from '../errors.ts';
import type { Queue, Queues } from '../queues.ts';
import { verify } from '../signature.ts';
import { type KeyRow, keyOf, keyText } from '../task.ts';
import { type Report, settlementOf } from './report.ts';
import type { Settlement } from './settle.ts';

/** The bytes of a request and what it says they were signed with. */
export type Sender = {
  headers: { id: string | undefined; timestamp: string | undefined; signature: string | undefined };
  body: Uint8Array;
};

/** What is to be settled; `duplicate`: nothing is, its task has ended by a report before; or why it is refused. */
export type Resolved = Settlement | 'duplicate' | AppError;

export type Resolver = {
  /** In order. */
  resolve(reports: Report[], sender: Sender): Promise<Resolved[]>;
  /** Throws unless this sender may report on the attempt. */
  authorize(attemptId: string, sender: Sender): Promise<void>;
};

type AttemptRow = KeyRow & { attempt_id: string };
type CurrentRow = KeyRow & { attempt_id: string | null; reported: boolean };
/** Undefined when a report may be settled. */
type Check = (queue: Queue, report?: Report) => AppError | undefined;

const STOP = 'stop working on it and do not report it again';

export function createResolver({ db, queues }: { db: Db; queues: Queues }): Resolver {
  return { resolve, authorize };

  async function resolve(reports: Report[], sender: Sender): Promise<Resolved[]> {
    const smallestResult = Math.min(...queues.all().map((queue) => queue.result_max_bytes));
    const signed = anySigned();
    const mustBeKnown = (report: Report) =>
      signed || report.task !== undefined || bytesOf(report.result) > smallestResult;
    const [attempts, current] = await Promise.all([
      findAttempts(reports.filter(mustBeKnown).flatMap(({ attemptId }) => attemptId ?? [])),
      findCurrent(reports.filter(({ attemptId }) => attemptId === undefined)),
    ]);
    const check = createCheck(sender);
    return reports.map((report) => {
      if (report.attemptId === undefined) return resolveCurrent(report, current, check);
      if (!mustBeKnown(report)) return settlementOf(report, report.attemptId);
      return resolveNamed(report, attempts.get(report.attemptId), check);
    });
  }

  async function authorize(attemptId: string, sender: Sender): Promise<void> {
    if (!anySigned()) return;
    const known = (await findAttempts([attemptId])).get(attemptId);
    const queue = known && queues.get(known.queue);
    const fault = queue ? createCheck(sender)(queue) : unknownAttempt();
    if (fault) throw fault;
  }

  function anySigned(): boolean {
    return queues.all().some((queue) => queue.callback_auth === 'signature');
  }

  /** The settings of their queues are in memory then, also when another instance has only just added one. */
  async function findAttempts(attemptIds: string[]): Promise<Map<string, AttemptRow>> {
    if (attemptIds.length === 0) return new Map();
    const rows = await db.query<AttemptRow>('explain_attempts', [attemptIds]);
    if (rows.some((row) => !queues.get(row.queue))) await queues.load();
    return new Map(rows.map((row) => [row.attempt_id, row]));
  }

  async function findCurrent(reports: Report[]): Promise<Map<string, CurrentRow>> {
    if (reports.length === 0) return new Map();
    const tasks = reports.map((report) => report.task!);
    const rows = await db.query<CurrentRow>('find_current_attempts', [
      tasks.map((task) => task.queue),
      tasks.map((task) => task.taskId),
      tasks.map((task) => task.taskVersion),
    ]);
    return new Map(rows.map((row) => [keyText(keyOf(row)), row]));
  }

  function resolveNamed(report: Report, known: AttemptRow | undefined, check: Check): Resolved {
    const queue = known && queues.get(known.queue);
    const otherTask = known && report.task && keyText(report.task) !== keyText(keyOf(known));
    if (!queue || otherTask) return unknownAttempt();
    return check(queue, report) ?? settlementOf(report, known.attempt_id);
  }

  /** Fence `lenient`: the attempt that the task has now. */
  function resolveCurrent(report: Report, current: Map<string, CurrentRow>, check: Check): Resolved {
    const { queue: name, taskId, taskVersion } = report.task!;
    const queue = queues.get(name);
    if (!queue) return new AppError('unknown_queue', `There is no queue '${name}'`, { pointer: `${report.at}/queue` });
    if (queue.fence === 'strict')
      return new AppError('missing_field', `'attempt_id' is required: the fence of queue '${name}' is strict`, {
        pointer: `${report.at}/attempt_id`,
      });
    const fault = check(queue, report);
    if (fault) return fault;
    const row = current.get(keyText(report.task!));
    if (!row)
      return new AppError('unknown_task', `There is no task ${taskId} version ${taskVersion} in queue '${name}'`);
    if (row.attempt_id === null) return row.reported ? 'duplicate' : staleAttempt();
    return settlementOf(report, row.attempt_id);
  }
}

/** A batch is verified once for each of its queues. */
function createCheck({ headers, body }: Sender): Check {
  const verified = new Map<string, boolean>();
  return (queue, report) => {
    if (queue.callback_auth === 'signature') {
      const known = verified.get(queue.queue) ?? verify(queue.secrets, headers, body);
      verified.set(queue.queue, known);
      if (!known) return badSignature(queue.queue);
    }
    return report && checkResult(queue, report);
  };
}

function checkResult(queue: Queue, { result, at }: Report): AppError | undefined {
  if (bytesOf(result) <= queue.result_max_bytes) return undefined;
  const detail = `The result is larger than ${queue.result_max_bytes} bytes; report a failure instead`;
  return new AppError('result_too_large', detail, { pointer: `${at}/result` });
}

const bytesOf = (result: string | null): number => (result === null ? 0 : Buffer.byteLength(result));

const badSignature = (queue: string) =>
  new AppError(
    'bad_signature',
    `Queue '${queue}' takes signed reports only: sign the raw body with one of its secrets as Standard Webhooks has it, ` +
      'and send webhook-id, webhook-timestamp (seconds, at most 5 minutes off) and webhook-signature',
  );
export const unknownAttempt = () => new AppError('unknown_attempt', `There is no such attempt: ${STOP}`);
export const staleAttempt = () => new AppError('stale_attempt', `The attempt is closed: ${STOP}`);
