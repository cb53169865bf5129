/**
 * Delivers a terminal report (callback, or progress with done) until docsched has settled it.
 *
 * 2xx: durable, finished. 404 and 409: the attempt is over for docsched, finished. 413: too large, the caller
 * reports a failure instead. 408, 425, 429, 5xx, redirects, no answer: again, 0.5 s doubling to 30 s with jitter,
 * never before Retry-After. Any other 4xx: final, repeating the same bytes cannot help. It gives up an hour after
 * the deadline: long before that docsched has closed the attempt and would answer 409.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from 'pino';
import type { Answer, Post } from './post.ts';

const BACKOFF_BASE_MS = 500;
const BACKOFF_MAX_MS = 30_000;
const RETRY_AFTER_MAX_MS = 300_000;
const GIVE_UP_AFTER_DEADLINE_MS = 3_600_000;

export type Delivery = 'accepted' | 'gone' | 'too_large' | 'refused' | 'gave_up';

export type Letter = {
  url: string;
  json: string;
  traceparent: string | undefined;
  /** Milliseconds since the epoch. */
  deadline: number;
};

export type Deliver = (letter: Letter, log: Logger) => Promise<Delivery>;

/** `signal` ends all waiting at once (shutdown); what is not delivered then is left to docsched's deadline. */
export function createDeliver({ post, signal }: { post: Post; signal: AbortSignal }): Deliver {
  const attempt = ({ url, json, traceparent }: Letter): Promise<Tried> =>
    post(url, json, { traceparent, signal }).catch(toNoAnswer);
  return async (letter, log) => {
    for (let failures = 0; ; failures += 1) {
      const answer = await attempt(letter);
      const verdict = judge(answer);
      if (verdict !== 'again') return verdict;
      const waitMs = backOffMs(failures, answer.retryAfterMs, Math.random());
      if (signal.aborted || Date.now() + waitMs > letter.deadline + GIVE_UP_AFTER_DEADLINE_MS) return 'gave_up';
      log.warn({ event: 'report_retry', http_status: answer.status, error: answer.error, wait_ms: Math.round(waitMs) });
      await delay(waitMs, undefined, { signal }).catch(() => undefined);
    }
  };
}

type Tried = Pick<Answer, 'status' | 'retryAfterMs'> & { error?: string };

const toNoAnswer = (error: unknown): Tried => ({ status: 0, retryAfterMs: undefined, error: String(error) });

const AGAIN = new Set([408, 425, 429]);

function judge({ status }: Tried): Delivery | 'again' {
  if (status >= 200 && status < 300) return 'accepted';
  if (status === 404 || status === 409) return 'gone';
  if (status === 413) return 'too_large';
  return status >= 400 && status < 500 && !AGAIN.has(status) ? 'refused' : 'again';
}

/** Half of the exponential step is fixed, half is drawn, so that many parsers do not come back at once. */
function backOffMs(failures: number, retryAfterMs: number | undefined, random: number): number {
  const stepMs = Math.min(BACKOFF_MAX_MS, BACKOFF_BASE_MS * 2 ** Math.min(failures, 10));
  return Math.max(stepMs * (0.5 + random / 2), Math.min(retryAfterMs ?? 0, RETRY_AFTER_MAX_MS));
}
