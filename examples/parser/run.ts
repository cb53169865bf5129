/**
 * One attempt from push to settled report: parse in a thread, report progress, stop when told to, deliver the end.
 * The parse slot is given back before the callback leaves: docsched may push the next task the moment it has
 * committed this one, and must not be told 429 then.
 */
import type { Logger } from 'pino';
import type { Deliver, Delivery } from './deliver.ts';
import type { DocumentRef } from './document.ts';
import { type Part, parseIsolated } from './isolate.ts';
import { type Failed, failed, type Outcome, STATUS_CODES } from './outcome.ts';
import type { Post } from './post.ts';
import { createProgress } from './progress.ts';
import type { Push } from './push.ts';
import type { Limits } from './settings.ts';

export type RunDeps = { limits: Limits; post: Post; deliver: Deliver };

export type RunOrder = {
  push: Push;
  traceparent: string | undefined;
  document: DocumentRef;
  /** Called once, when the thread is gone and before anything is delivered. */
  onParsed: (outcome: Outcome) => void;
  log: Logger;
};

export type Run = {
  /** Never rejects. Settles when docsched has the end, or never will. */
  settled: Promise<void>;
  /** Ends the parse with this outcome, which is then reported like any other. */
  end: (outcome: Outcome) => void;
};

export function startRun(deps: RunDeps, order: RunOrder): Run {
  const { push, traceparent, document, log } = order;
  const deadline = { atMs: push.deadline };
  const parse = parseIsolated(document, deps.limits, (part) => progress.report(percentOf(part), sentenceOf(part)));
  const disarm = onDeadline(deadline, () => parse.end(failed('timed_out', 'The deadline of the attempt passed.')));
  const progress = createProgress({
    post: deps.post,
    url: push.progress_url,
    traceparent,
    deadline,
    onCancel: () => parse.end({ kind: 'cancelled' }),
    onGone: () => parse.end({ kind: 'abandoned' }),
    log,
  });
  const settled = parse.outcome.then((outcome) => {
    disarm();
    progress.close();
    order.onParsed(outcome);
    return settle(deps, order, outcome, deadline.atMs);
  });
  return { settled, end: parse.end };
}

async function settle(deps: RunDeps, order: RunOrder, outcome: Outcome, deadline: number): Promise<void> {
  const { push, traceparent, log } = order;
  const send = (url: string, json: string) => deps.deliver({ url, json, traceparent, deadline }, log);
  const settled = (delivery: Delivery, reason: string) =>
    log[delivery === 'accepted' || delivery === 'gone' ? 'info' : 'error']({ event: 'run_settled', reason, delivery });
  switch (outcome.kind) {
    case 'abandoned':
      return settled('gone', outcome.kind);
    case 'cancelled':
      return settled(await send(push.progress_url, '{"done":true}'), outcome.kind);
    case 'failed':
      return settled(await send(push.callback_url, failureJson(outcome)), outcome.reason);
    case 'parsed': {
      const delivery = await send(push.callback_url, successJson(outcome));
      if (delivery !== 'too_large') return settled(delivery, outcome.kind);
      return settled(await send(push.callback_url, failureJson(TOO_LARGE_FOR_DOCSCHED)), TOO_LARGE_FOR_DOCSCHED.reason);
    }
    default:
      outcome satisfies never;
  }
}

const TOO_LARGE_FOR_DOCSCHED = failed('result_too_large', 'The result is larger than docsched takes.');

const failureJson = ({ reason, message }: Failed) =>
  JSON.stringify({ status_code: STATUS_CODES[reason], status_msg: message, result: null });

/** Put together as text: the result is JSON already and may be large. */
const successJson = ({ resultJson, message }: Extract<Outcome, { kind: 'parsed' }>) =>
  `{"status_code":0,"status_msg":${JSON.stringify(message)},"result":${resultJson}}`;

const percentOf = ({ done, total }: Part) => Math.floor((done / total) * 100);
const sentenceOf = ({ unit, done, total }: Part) => `${unit} ${done} of ${total}`;

/** Node's timers hold at most 2^31-1 ms. */
const TIMER_MAX_MS = 2_147_483_647;

/** Fires when the deadline has passed, wherever it has been moved to by then. Returns the way to disarm it. */
function onDeadline(deadline: { atMs: number }, onPassed: () => void): () => void {
  let timer: NodeJS.Timeout;
  function look(): void {
    const leftMs = deadline.atMs - Date.now();
    if (leftMs <= 0) onPassed();
    else timer = setTimeout(look, Math.min(leftMs, TIMER_MAX_MS));
  }
  look();
  return () => clearTimeout(timer);
}
