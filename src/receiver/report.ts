/**
 * A parser's report as it came in, by attempt id or in the plain form, and the settlement it asks for. Pure.
 */
import { memberText } from '../json.ts';
import { shortId } from '../log.ts';
import type { TaskKey } from '../task.ts';
import { batchedCallbackRequest, callbackRequest, check, plainCallbackRequest, storable } from '../wire.ts';
import type { Settlement } from './settle.ts';

export type Report = {
  /** Absent in the plain form of a queue whose fence is lenient. */
  attemptId: string | undefined;
  /** Named in the plain form; must be the attempt's. */
  task: TaskKey | undefined;
  statusCode: string;
  statusMsg: string | null;
  /** Raw JSON text, of a success only. */
  result: string | null;
  /** JSON pointer of the report in the body. */
  at: string;
};

const MAX_MESSAGE_CHARACTERS = 2_000;

type Callback = { status_code: string; status_msg?: string | null | undefined };
/** Where a report begins in the body's text, and its JSON pointer. */
type Place = { start: number; at: string };
const WHOLE_BODY: Place = { start: 0, at: '' };

/** The body of POST /v1/callbacks/{attempt_id}. */
export const readReport = (value: unknown, text: string, attemptId: string): Report =>
  reportOf(check(callbackRequest, value), text, attemptId, undefined, WHOLE_BODY);

/** The body of POST /v1/callbacks. */
export function readPlainReport(value: unknown, text: string, place: Place = WHOLE_BODY): Report {
  const request = check(plainCallbackRequest, value, place.at);
  const { queue, task_id: taskId, task_version: taskVersion } = request;
  return reportOf(request, text, request.attempt_id, { queue, taskId, taskVersion }, place);
}

/** An entry of POST /v1/callbacks/batch: the plain form when it names a task. */
export function readEntry(value: unknown, text: string, place: Place): Report {
  if (memberText(text, 'task_id', place.start) !== undefined) return readPlainReport(value, text, place);
  const request = check(batchedCallbackRequest, value, place.at);
  return reportOf(request, text, request.attempt_id, undefined, place);
}

function reportOf(
  { status_code: statusCode, status_msg: statusMsg = null }: Callback,
  text: string,
  attemptId: string | undefined,
  task: TaskKey | undefined,
  { start, at }: Place,
): Report {
  const result = statusCode === '0' ? (memberText(text, 'result', start) ?? null) : null;
  return { attemptId, task, statusCode, statusMsg, result, at };
}

export const settlementOf = ({ statusCode, statusMsg, result }: Report, attemptId: string): Settlement => ({
  attemptId,
  verdict: statusCode === '0' ? 'success' : 'parser_failed',
  statusCode,
  statusMsg: statusMsg === null ? null : storableWords(statusMsg, attemptId),
  result,
});

/** Without the attempt id, which a parser may put into its words: whoever reads the task must not learn it. */
export const storableWords = (words: string, attemptId: string): string =>
  storable(words.replaceAll(attemptId, shortId(attemptId)), MAX_MESSAGE_CHARACTERS);
