/** Holds calls of the service back, so that a test says which of them happens next. */
import { setImmediate as turn } from 'node:timers/promises';

export type Gates = ReturnType<typeof createGates>;

/** Turns of the event loop after which what can go on has gone on: a group commit waits for one. */
const CALM_TURNS = 4;

export function createGates() {
  const parked = new Map<string, (() => void)[]>();
  const running = new Set<Promise<unknown>>();

  return { through, at, isParked, pass, quiet, parkedNames: () => [...parked.keys()] };

  /** Runs at once; `quiet` waits for it. */
  function through<T>(run: () => Promise<T>): Promise<T> {
    const work = run();
    running.add(work);
    return work.finally(() => running.delete(work));
  }

  /** Runs when it is let pass. What it waits for by itself must go `through`, or to a gate. */
  function at<T>(name: string, run: () => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const list = parked.get(name) ?? [];
      list.push(() => void run().then(resolve, reject));
      parked.set(name, list);
    });
  }

  function isParked(name: string): boolean {
    return parked.has(name);
  }

  /** All that wait there go on; resolves when nothing moves any more. */
  async function pass(name: string): Promise<void> {
    const list = parked.get(name);
    if (!list) throw new Error(`nothing waits at '${name}', only at: ${[...parked.keys()].join(', ') || 'nothing'}`);
    parked.delete(name);
    for (const run of list) run();
    await quiet();
  }

  /** Nothing runs, and nothing is about to. */
  async function quiet(): Promise<void> {
    for (let calm = 0; calm < CALM_TURNS; calm++) {
      if (running.size > 0) {
        calm = 0;
        await Promise.allSettled([...running]);
      }
      await turn();
    }
  }
}
