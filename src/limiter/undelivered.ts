/**
 * Releases that the store could not take, kept until it is back. Bounded: what does not fit, and what dies with the
 * process, is left to reconciliation, which finds slots without an open attempt by itself.
 */

/** About a megabyte; far above what one instance has in flight. */
const MAX_IDS = 10_000;

export type Undelivered = {
  add(queue: string, ids: readonly string[]): void;
  /** Everything kept, by queue; nothing is kept afterwards. */
  takeAll(): [queue: string, ids: string[]][];
  /** Number of ids kept. */
  count(): number;
};

export function createUndelivered(): Undelivered {
  const kept = new Map<string, Set<string>>();
  const count = (): number => [...kept.values()].reduce((sum, ids) => sum + ids.size, 0);
  return {
    add: (queue, ids) => {
      const room = MAX_IDS - count();
      const ofQueue = kept.get(queue) ?? new Set();
      for (const id of ids.slice(0, room)) ofQueue.add(id);
      kept.set(queue, ofQueue);
    },
    takeAll: () => {
      const taken = [...kept].map(([queue, ids]): [string, string[]] => [queue, [...ids]]);
      kept.clear();
      return taken;
    },
    count,
  };
}
