/**
 * What a parser's answer to a push means: the table of SPEC section 3, row by row. Pure.
 */
import { memberText } from '../json.ts';
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

/** `nowMs` (epoch) is for a Retry-After given as a date. */
export function readAnswer(reply: PushReply, nowMs: number): PushAnswer {
  if (reply.kind === 'unsent') return { kind: 'unsent', message: reply.error };
  if (reply.kind === 'failure')
    return reply.sent ? { kind: 'in_doubt', message: reply.error } : { kind: 'broken', message: reply.error };
  const { status } = reply;
  if (status >= 200 && status < 300) return readSuccess(reply);
  const message = `the parser answered ${status}${explain(reply.body)}`;
  if (status === 429 || (status === 503 && reply.retryAfter !== undefined))
    return { kind: 'busy', afterMs: Math.max(readRetryAfter(reply.retryAfter, nowMs), BUSY_MIN_MS), message };
  if (TRY_FAILED.has(status)) return { kind: 'try_failed', message };
  if (IN_DOUBT.has(status)) return { kind: 'in_doubt', message };
  if (status >= 500) return { kind: 'try_failed', message };
  if (TARGET_BROKEN.has(status) || (status >= 300 && status < 400)) return { kind: 'broken', message };
  return { kind: 'refused', message };
}

function readSuccess({ status, body, truncated }: PushReply & { kind: 'response' }): PushAnswer {
  if (status === 202) return { kind: 'accepted' };
  if (truncated) return { kind: 'result_too_large', message: 'the answer is larger than result_max_bytes' };
  const value = parseObject(body);
  if (value === null || !('status_code' in value)) return { kind: 'accepted', unclear: true };
  const statusCode = readStatusCode(value.status_code);
  if (statusCode === null) return { kind: 'in_doubt', message: 'the parser answered a status_code that is no integer' };
  const statusMsg = typeof value.status_msg === 'string' ? value.status_msg : null;
  return { kind: 'done', statusCode, statusMsg, result: memberText(body, 'result') ?? null };
}

function parseObject(body: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(body);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}

/** Seconds or an HTTP date -> ms from now, within 0 .. 1 h. */
export function readRetryAfter(header: string | undefined, nowMs: number): number {
  if (header === undefined) return BUSY_DEFAULT_MS;
  const ms = /^\d+$/.test(header.trim()) ? Number(header) * 1000 : Date.parse(header) - nowMs;
  return Number.isNaN(ms) ? BUSY_DEFAULT_MS : Math.min(Math.max(ms, 0), BUSY_MAX_MS);
}

/** The parser's own words, if its body is a problem object or short text. */
function explain(body: string): string {
  const value = parseObject(body);
  const words = value ? (value.detail ?? value.title ?? value.message ?? value.error) : body;
  return typeof words === 'string' && words.trim() !== '' ? `: ${words.trim().slice(0, 300)}` : '';
}
