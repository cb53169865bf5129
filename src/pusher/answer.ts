/**
 * What a parser's answer to a push means: the answers in docs/design.md, row by row. Pure.
 */
import { elementStarts, memberText } from '../json.ts';
import { readStatusCode } from '../wire.ts';

/** An HTTP answer, or why there is none. `sent`: the first byte of the request had left. */
export type PushReply =
  | { kind: 'response'; status: number; retryAfter: string | undefined; body: string; truncated: boolean }
  | { kind: 'failure'; sent: boolean; error: string }
  /** The deadline passed first; nothing left this process. */
  | { kind: 'unsent'; error: string };

export type PushAnswer =
  /** unclear: not by a 202, so perhaps it meant `done`. */
  | { kind: 'accepted'; unclear?: true }
  /** A synchronous parser: as its callback. statusCode is a decimal string, result raw JSON text or null. */
  | { kind: 'done'; statusCode: string; statusMsg: string | null; result: string | null }
  | { kind: 'result_too_large'; message: string }
  | { kind: 'busy'; afterMs: number; message: string }
  | { kind: 'try_failed'; message: string }
  /** It may be working on it: the slot stays held until callback or deadline. */
  | { kind: 'in_doubt'; message: string }
  | { kind: 'refused'; message: string }
  | { kind: 'broken'; message: string }
  | { kind: 'unsent'; message: string };

const BUSY_DEFAULT_MS = 1_000;
/** A parser that is busy but says `Retry-After: 0` must not make the two of us spin. */
const BUSY_MIN_MS = 100;
/** A parser's Retry-After is believed up to here. */
const BUSY_MAX_MS = 3_600_000;
const TARGET_BROKEN = new Set([401, 403, 404, 405, 410]);
const TRY_FAILED = new Set([408, 425]);
const IN_DOUBT = new Set([502, 504]);

const TOO_LARGE: PushAnswer = { kind: 'result_too_large', message: 'the answer is larger than result_max_bytes' };

type Json = Record<string, unknown>;
/** What came with a status: its JSON object (null when it is none), and where that begins in the text. */
type Said = { value: Json | null; text: string; from: number };

/** `nowMs` (epoch) is for a Retry-After given as a date. */
export function readAnswer(reply: PushReply, nowMs: number): PushAnswer {
  if (reply.kind === 'unsent') return { kind: 'unsent', message: reply.error };
  if (reply.kind === 'failure')
    return reply.sent ? { kind: 'in_doubt', message: reply.error } : { kind: 'broken', message: reply.error };
  const { status, retryAfter, body } = reply;
  if (status === 202) return { kind: 'accepted' };
  if (status < 300 && reply.truncated) return TOO_LARGE;
  const retryAfterMs = retryAfter === undefined ? undefined : readRetryAfter(retryAfter, nowMs);
  return readStatus(status, retryAfterMs, { value: parseObject(body), text: body, from: 0 });
}

/**
 * An answer for each of `attemptIds`, in order. A 2xx with `results` is read entry by entry, each as if it were the HTTP
 * answer to that task alone (of several for one attempt the first counts); what it leaves out is in doubt. Everything
 * else is meant for all alike, and a 2xx without `results` is, like one without `status_code`, accepted.
 */
export function readBatchAnswer(reply: PushReply, attemptIds: readonly string[], nowMs: number): PushAnswer[] {
  const forAll = (answer: PushAnswer) => attemptIds.map(() => answer);
  if (reply.kind !== 'response' || reply.status === 202 || reply.status >= 300) return forAll(readAnswer(reply, nowMs));
  // Whose result was too large can only be told of a single one.
  if (reply.truncated)
    return forAll(attemptIds.length === 1 ? TOO_LARGE : { kind: 'in_doubt', message: 'the answer is too large' });
  const results = parseObject(reply.body)?.results;
  if (!Array.isArray(results)) return forAll({ kind: 'accepted', unclear: true });
  const starts = elementStarts(reply.body, 'results');
  const entries = new Map<unknown, number>();
  for (const [i, entry] of results.entries())
    if (isObject(entry) && !entries.has(entry.attempt_id)) entries.set(entry.attempt_id, i);
  return attemptIds.map((attemptId) => {
    const i = entries.get(attemptId);
    return i === undefined
      ? { kind: 'in_doubt', message: 'the answer to the batch holds no result of this attempt' }
      : readEntry({ value: results[i], text: reply.body, from: starts[i]! });
  });
}

function readEntry(entry: Said & { value: Json }): PushAnswer {
  const { http_status: status, retry_after_s: seconds } = entry.value;
  if (typeof status !== 'number' || !Number.isInteger(status) || status < 200 || status > 599)
    return { kind: 'in_doubt', message: 'the answer to the batch gives this attempt no http_status' };
  if (status === 202) return { kind: 'accepted' };
  const retryAfterMs = typeof seconds === 'number' ? clampRetryAfter(seconds * 1000) : BUSY_DEFAULT_MS;
  return readStatus(status, seconds == null ? undefined : retryAfterMs, entry);
}

/** Any status but 202. retryAfterMs is undefined when nothing was said about it. */
function readStatus(status: number, retryAfterMs: number | undefined, said: Said): PushAnswer {
  if (status < 300) return readSuccess(said);
  const message = `the parser answered ${status}${explain(said)}`;
  if (status === 429 || (status === 503 && retryAfterMs !== undefined))
    return { kind: 'busy', afterMs: Math.max(retryAfterMs ?? BUSY_DEFAULT_MS, BUSY_MIN_MS), message };
  if (TRY_FAILED.has(status)) return { kind: 'try_failed', message };
  if (IN_DOUBT.has(status)) return { kind: 'in_doubt', message };
  if (status >= 500) return { kind: 'try_failed', message };
  if (TARGET_BROKEN.has(status) || status < 400) return { kind: 'broken', message };
  return { kind: 'refused', message };
}

function readSuccess({ value, text, from }: Said): PushAnswer {
  if (value === null || !('status_code' in value)) return { kind: 'accepted', unclear: true };
  const statusCode = readStatusCode(value.status_code);
  if (statusCode === null) return { kind: 'in_doubt', message: 'the parser answered a status_code that is no integer' };
  const statusMsg = typeof value.status_msg === 'string' ? value.status_msg : null;
  return { kind: 'done', statusCode, statusMsg, result: memberText(text, 'result', from) ?? null };
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function parseObject(body: string): Json | null {
  try {
    const value: unknown = JSON.parse(body);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

/** Of a message what may be logged: a parser's own words may hold anything, its document too. */
export const withoutWords = (message: string): string => message.replace(/^(the parser answered \d+): .*$/s, '$1');

/** Seconds or an HTTP date -> ms from now, within 0 .. 1 h. */
export function readRetryAfter(header: string, nowMs: number): number {
  return clampRetryAfter(/^\d+$/.test(header.trim()) ? Number(header) * 1000 : Date.parse(header) - nowMs);
}

const clampRetryAfter = (ms: number): number =>
  Number.isNaN(ms) ? BUSY_DEFAULT_MS : Math.min(Math.max(ms, 0), BUSY_MAX_MS);

/** The parser's own words, if its body is a problem object or short text. */
function explain({ value, text }: Said): string {
  const words = value ? (value.detail ?? value.title ?? value.message ?? value.error) : text;
  return typeof words === 'string' && words.trim() !== '' ? `: ${words.trim().slice(0, 300)}` : '';
}
