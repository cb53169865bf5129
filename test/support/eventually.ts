/** Waits for something that must become true: runs `fn` until it neither throws nor returns something falsy. */
import { setTimeout as sleep } from 'node:timers/promises';

/** Resolves with the first truthy value, or with undefined once a `fn` that returns nothing stops throwing. */
export async function eventually<T>(
  fn: () => T | Promise<T>,
  { timeoutMs = 10_000, everyMs = 20 }: { timeoutMs?: number; everyMs?: number } = {},
): Promise<T> {
  const giveUpAt = performance.now() + timeoutMs;
  for (;;) {
    const overdue = performance.now() >= giveUpAt;
    try {
      const value = await fn();
      if (value === undefined || value) return value;
      if (overdue) throw new Error(`still ${String(value)} after ${timeoutMs} ms: ${fn}`);
    } catch (error) {
      if (overdue) throw error;
    }
    await sleep(everyMs);
  }
}
