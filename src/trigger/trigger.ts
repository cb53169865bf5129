/**
 * Wakes a round: when told to, and every `intervalMs` as the safety net. Wake-ups coalesce: never two rounds at once,
 * and a wake-up during a round means one more round after it, never none. A round is not given up on: each call in it
 * has a time-out of its own.
 */
import type { Log } from '../log.ts';

export type Trigger = {
  wake(): void;
  start(): void;
  /** No further round; resolves when the one under way has ended. */
  stop(): Promise<void>;
  /** Age of the last round that succeeded, ms; null before the first. */
  lastOkAgeMs(): number | null;
};

export type TriggerDeps = {
  name: string;
  intervalMs: number;
  log: Log;
  /** One round; true when there is more to do right away. */
  runOnce: () => Promise<boolean>;
  /** The safety net wakes a round, be there work or not. */
  onInterval?: () => void;
  /** After each round. */
  onRound?: (outcome: 'ok' | 'failed') => void;
};

/** A round that failed (a store is away) is tried again after this. */
const RETRY_MS = 250;

export function createTrigger({ name, intervalMs, log, runOnce, onInterval, onRound }: TriggerDeps): Trigger {
  let running: Promise<void> | undefined;
  let again = false;
  let started = false;
  let failing = false;
  let lastOk: number | null = null;
  let interval: NodeJS.Timeout | undefined;
  let retry: NodeJS.Timeout | undefined;

  return {
    wake,
    start() {
      started = true;
      interval = setInterval(() => {
        onInterval?.();
        wake();
      }, intervalMs);
      wake();
    },
    async stop() {
      started = false;
      clearInterval(interval);
      clearTimeout(retry);
      await running;
    },
    lastOkAgeMs: () => (lastOk === null ? null : Math.round(performance.now() - lastOk)),
  };

  function wake(): void {
    if (!started) return;
    again = true;
    running ??= rounds().finally(() => {
      running = undefined;
      // A wake-up between the last look at `again` and here must not be lost.
      if (again) wake();
    });
  }

  async function rounds(): Promise<void> {
    while (again && started) {
      again = false;
      try {
        if (await runOnce()) again = true;
        lastOk = performance.now();
        failing = false;
        onRound?.('ok');
      } catch (error) {
        onRound?.('failed');
        if (!failing) log.warn({ event: 'round_failed', loop: name, error: (error as Error).message });
        failing = true;
        clearTimeout(retry);
        retry = setTimeout(wake, RETRY_MS);
        return;
      }
    }
  }
}
