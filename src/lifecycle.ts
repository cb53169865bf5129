/**
 * Starts the parts of the process in order and stops them in reverse, at a signal and within SHUTDOWN_TIMEOUT_MS. A part
 * that does not stop in time is left behind: what it held open is repaired like after a crash.
 */
import type { Log } from './log.ts';
import { withLimit } from './loop.ts';

/** Started in order, stopped in reverse. */
export type Part = { start?: () => unknown; stop?: () => unknown };

/** Even when the time is over, a part gets this long: closing connections and the embedded PostgreSQL takes no longer. */
const MIN_STOP_MS = 250;

export type LifecycleDeps = { shutdownTimeoutMs: number; log: Log };

/** `open` makes the parts, the stores first; resolves when all have started, or when a signal has ended that. */
export async function runParts(
  open: (running: Part[]) => Promise<Part[]>,
  { shutdownTimeoutMs, log }: LifecycleDeps,
): Promise<void> {
  const running: Part[] = [];
  let stopping = false;
  const starting = start();
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
  await starting;

  async function start(): Promise<void> {
    for (const part of await open(running)) {
      if (stopping) return;
      running.push(part);
      await part.start?.();
    }
  }

  /** What has been started by then, in reverse. A second signal ends the process at once. */
  async function stop(signal: string): Promise<void> {
    if (stopping) process.exit(1);
    stopping = true;
    log.info({ event: 'stopping', signal });
    const until = performance.now() + shutdownTimeoutMs;
    await withLimit(starting, shutdownTimeoutMs).catch(() => {});
    // No part may use up the time of those after it: a hung push must not keep the answers of others from leaving.
    const share = shutdownTimeoutMs / 2;
    for (const part of running.toReversed()) await stopPart(part, Math.min(until, performance.now() + share), log);
    log.info({ event: 'stopped' });
    process.exit(0);
  }
}

/** What nobody caught never ends the process in silence. */
export function logCrashes(log: Log): void {
  process.on('unhandledRejection', (error) =>
    log.error({ event: 'unhandled_rejection', error: String(error), stack: (error as Error)?.stack }),
  );
  // Nobody knows what it left half done: what is open is repaired like after any other crash.
  process.on('uncaughtException', (error) => {
    log.fatal({ event: 'uncaught_exception', error: String(error), stack: error?.stack });
    process.exit(1);
  });
}

async function stopPart(part: Part, until: number, log: Log): Promise<void> {
  try {
    await withLimit(Promise.resolve(part.stop?.()), Math.max(MIN_STOP_MS, until - performance.now()));
  } catch (error) {
    log.warn({ event: 'stop_incomplete', error: (error as Error).message });
  }
}
