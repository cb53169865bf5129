/** How long faults were felt: from their end to when something was pushed and something was settled again. Pure. */
import { appliedTries, type SeenAttempt } from './attempts.ts';
import type { FaultLine } from './evidence.ts';

/** ms; null when nothing followed. */
export type Recovery = { medianMs: number | null; maxMs: number | null };

export function recoveries(faults: readonly FaultLine[], attempts: readonly SeenAttempt[]): Recovery {
  const { pushes, settles } = timesOf(attempts);
  const lasted = faults
    .map(({ to }) => Math.max(firstAfter(pushes, to), firstAfter(settles, to)) - to)
    .filter(Number.isFinite)
    .toSorted((a, b) => a - b);
  return { medianMs: lasted[Math.floor((lasted.length - 1) / 2)] ?? null, maxMs: lasted.at(-1) ?? null };
}

/** Once a list of attempts. */
const known = new WeakMap<readonly SeenAttempt[], { pushes: Float64Array; settles: Float64Array }>();

function timesOf(attempts: readonly SeenAttempt[]) {
  const found = known.get(attempts);
  if (found) return found;
  const times = {
    pushes: Float64Array.from(attempts, ({ from }) => from).sort(),
    settles: Float64Array.from(attempts.flatMap((one) => appliedTries(one).map(({ saidAt }) => saidAt))).sort(),
  };
  known.set(attempts, times);
  return times;
}

function firstAfter(sorted: Float64Array, at: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! > at) high = middle;
    else low = middle + 1;
  }
  return sorted[low] ?? Number.POSITIVE_INFINITY;
}
