/**
 * A job works in batches of BATCH rows (the LIMIT in its SQL) until there is no more, or its time is over: then the
 * next run goes on. So no run outlives its lease, and no statement holds many locks for long.
 */

/** Rows a statement; the same number stands as LIMIT in the SQL files, where the planner needs a constant. */
export const BATCH = 500;
const BUDGET_MS = 3_500;

/** When (performance.now()) a run that begins now must have ended. */
export const runUntil = (): number => performance.now() + BUDGET_MS;

/** `batch` for each queue in turn, while one of them finds full batches: a backlog of one uses up nobody's time. */
export async function drainInTurn(
  until: number,
  queues: readonly { queue: string }[],
  batch: (queue: string) => Promise<number>,
): Promise<number> {
  let total = 0;
  let names = queues.map(({ queue }) => queue);
  while (names.length > 0 && performance.now() <= until) {
    const full: string[] = [];
    for (const name of names) {
      const found = await batch(name);
      total += found;
      if (found === BATCH) full.push(name);
    }
    names = full;
  }
  return total;
}

/** Repeats `batch` (which returns how many rows it found) while it finds full batches; returns the sum. */
export async function drain(until: number, batch: () => Promise<number>): Promise<number> {
  let total = 0;
  for (;;) {
    const found = await batch();
    total += found;
    if (found < BATCH || performance.now() > until) return total;
  }
}
