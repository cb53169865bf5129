/**
 * Clients that wait for a task to finish (`?wait=`). One look a quarter of a second serves all of them together,
 * however many there are; what this instance settles itself is known at once. Nothing is kept for those who leave.
 */
import type { Db } from './db.ts';
import type { Log } from './log.ts';
import { createLoop } from './loop.ts';
import { type KeyRow, keyOf, keyText, type TaskKey } from './task.ts';

export type Waiter = {
  /** Resolves when the task is Success, Failed, Stopped or gone, after `timeoutMs`, or when the signal aborts. */
  wait(key: TaskKey, timeoutMs: number, signal: AbortSignal): Promise<void>;
  /** Tasks that are known to have finished. */
  finished(keys: TaskKey[]): void;
  start(): void;
  stop(): Promise<void>;
};

const LOOK_EVERY_MS = 250;

export function createWaiter({ db, log }: { db: Db; log: Log }): Waiter {
  const waiting = new Map<string, { key: TaskKey; listeners: Set<() => void> }>();
  const loop = createLoop({ name: 'waiter', intervalMs: LOOK_EVERY_MS, log, runOnce: look });
  return { wait, finished, start: loop.start, stop };

  function wait(key: TaskKey, timeoutMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const text = keyText(key);
      const entry = waiting.get(text) ?? { key, listeners: new Set() };
      const done = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', done);
        entry.listeners.delete(done);
        if (entry.listeners.size === 0) waiting.delete(text);
        resolve();
      };
      const timer = setTimeout(done, timeoutMs);
      signal.addEventListener('abort', done);
      entry.listeners.add(done);
      waiting.set(text, entry);
    });
  }

  function finished(keys: TaskKey[]): void {
    for (const key of keys) for (const listener of waiting.get(keyText(key))?.listeners ?? []) listener();
  }

  async function look(): Promise<void> {
    if (waiting.size === 0) return;
    const keys = [...waiting.values()].map((entry) => entry.key);
    const rows = await db.query<KeyRow>('find_finished', [
      keys.map((key) => key.queue),
      keys.map((key) => key.taskId),
      keys.map((key) => key.taskVersion),
    ]);
    finished(rows.map(keyOf));
  }

  async function stop(): Promise<void> {
    await loop.stop();
    finished([...waiting.values()].map((entry) => entry.key));
  }
}
