/**
 * Tells docsched how far a run is, and hears three things in return: a later deadline, a wish to cancel, and that
 * the attempt is over. One report is under way at a time and only the newest is sent. Without news a heartbeat goes
 * out after a third of the time that is left, so a slow page does not let the attempt expire.
 * A lost report is not repeated: the next one says more.
 */
import type { Logger } from 'pino';
import type { Answer, Post } from './post.ts';

/** docsched keeps at most one report a second; more would only be traffic. */
const GAP_MS = 250;
const HEARTBEAT_MIN_MS = 200;
const HEARTBEAT_MAX_MS = 10_000;

export type ProgressDeps = {
  post: Post;
  url: string;
  traceparent: string | undefined;
  /** The attempt's deadline as last told, ms since the epoch; moved here when docsched extends it. */
  deadline: { atMs: number };
  onCancel: () => void;
  onGone: () => void;
  log: Logger;
};

export type Progress = { report: (percent: number, message: string) => void; close: () => void };

/** Reports once at the start, then as told. After `close` nothing more is sent or heard. */
export function createProgress(deps: ProgressDeps): Progress {
  const closing = new AbortController();
  let latest = { percent: 0, message: 'started' };
  let isNew = true;
  let isSending = false;
  let sentAtMs = 0;
  let timer: NodeJS.Timeout | undefined;

  const heartbeatMs = () =>
    Math.min(HEARTBEAT_MAX_MS, Math.max(HEARTBEAT_MIN_MS, (deps.deadline.atMs - Date.now()) / 3));

  function arm(): void {
    clearTimeout(timer);
    if (closing.signal.aborted || isSending) return;
    timer = setTimeout(send, Math.max(0, sentAtMs + (isNew ? GAP_MS : heartbeatMs()) - Date.now()));
  }

  async function send(): Promise<void> {
    isSending = true;
    isNew = false;
    sentAtMs = Date.now();
    const options = { traceparent: deps.traceparent, signal: closing.signal };
    const answer = await deps.post(deps.url, JSON.stringify(latest), options).catch((error: unknown) => {
      deps.log.debug({ event: 'progress_lost', error: String(error) });
      return undefined;
    });
    isSending = false;
    if (answer !== undefined && !closing.signal.aborted) hear(answer, deps);
    arm();
  }

  arm();
  return {
    report(percent, message) {
      latest = { percent, message };
      isNew = true;
      arm();
    },
    close() {
      clearTimeout(timer);
      closing.abort();
    },
  };
}

function hear(answer: Answer, deps: ProgressDeps): void {
  const body = (answer.body ?? {}) as { cancel_requested?: unknown; deadline?: unknown };
  if (answer.status === 404 || answer.status === 409) deps.onGone();
  else if (answer.status === 200 && body.cancel_requested === true) deps.onCancel();
  else if (answer.status === 200 && typeof body.deadline === 'number') deps.deadline.atMs = body.deadline;
}
