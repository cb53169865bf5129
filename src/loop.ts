/**
 * The one timer loop. Runs `runOnce` again `intervalMs` after it ended; a round that fails is logged and the next comes
 * all the same; a round that does not end within its limit is given up on, and counts as failed. Readiness reads the
 * age of the last success.
 */
import type { Log } from './log.ts';

export type Loop = {
  start(): void;
  /** No further round; resolves when the one under way has ended. */
  stop(): Promise<void>;
  /** Age of the last round that succeeded, ms; null before the first. */
  lastOkAgeMs(): number | null;
  /** Why the last round failed; null when it did not. */
  trouble(): string | null;
};

export type LoopDeps = {
  name: string;
  intervalMs: number;
  log: Log;
  runOnce: () => Promise<unknown>;
};

/** Above the 32 s after which a database call gives up by itself. */
const ROUND_LIMIT_MS = 40_000;

export function createLoop({ name, intervalMs, log, runOnce }: LoopDeps): Loop {
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<void> = Promise.resolve();
  let stopped = false;
  let lastOk: number | null = null;
  let trouble: string | null = null;

  return {
    start: () => schedule(Math.random() * intervalMs),
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
    lastOkAgeMs: () => (lastOk === null ? null : Math.round(performance.now() - lastOk)),
    trouble: () => trouble,
  };

  function schedule(delayMs: number): void {
    timer = setTimeout(() => {
      running = round().finally(() => {
        if (!stopped) schedule(intervalMs);
      });
    }, delayMs);
  }

  async function round(): Promise<void> {
    try {
      await withLimit(runOnce(), ROUND_LIMIT_MS);
      lastOk = performance.now();
      if (trouble !== null) log.info({ event: 'loop_recovered', loop: name });
      trouble = null;
    } catch (error) {
      const { message } = error as Error;
      if (trouble === null) log.warn({ event: 'loop_failed', loop: name, error: message });
      trouble = message;
    }
  }
}

/** Rejects when `work` has not ended in time; the work itself is left to its own time-outs. */
export async function withLimit<T>(work: Promise<T>, limitMs: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${limitMs} ms`)), limitMs);
  });
  try {
    return await Promise.race([work, limit]);
  } finally {
    clearTimeout(timer);
  }
}
