/** POSTs JSON to docsched: the one place that talks to it. Redirects are not followed. */
import { request } from 'undici';

/** A call that gets no answer in this time counts as failed and is tried again by its caller. */
const ANSWER_TIMEOUT_MS = 10_000;

export type Answer = {
  status: number;
  /** The parsed body, or null when it is not JSON. */
  body: unknown;
  /** From Retry-After, in seconds or as a date. */
  retryAfterMs: number | undefined;
};

export type PostOptions = { traceparent: string | undefined; signal?: AbortSignal };

/** Rejects when no whole answer came: refused, reset, timed out, aborted. */
export type Post = (url: string, json: string, options: PostOptions) => Promise<Answer>;

export const post: Post = async (url, json, { traceparent, signal }) => {
  const response = await request(url, {
    method: 'POST',
    body: json,
    headers: { 'content-type': 'application/json', ...(traceparent === undefined ? {} : { traceparent }) },
    headersTimeout: ANSWER_TIMEOUT_MS,
    bodyTimeout: ANSWER_TIMEOUT_MS,
    ...(signal === undefined ? {} : { signal }),
  });
  const text = await response.body.text();
  return {
    status: response.statusCode,
    body: jsonOrNull(text),
    retryAfterMs: readRetryAfter(response.headers['retry-after']),
  };
};

function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function readRetryAfter(header: string | string[] | undefined): number | undefined {
  if (typeof header !== 'string') return undefined;
  if (/^\d+$/.test(header)) return Number(header) * 1_000;
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, at - Date.now());
}
