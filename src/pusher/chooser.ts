/**
 * Which levels the next claims serve: start-time fair queueing over the priority levels, so that a level with weight w
 * gets w of every sum-of-weights turns, evenly spread, and the turns of an empty level go to the others by weight.
 *
 * A level's next task stands at `start`, the one after it one `stride` (1 / weight) further on; the claim takes what
 * stands lowest. Deterministic but for the phase, which is random so that several instances do not move in step.
 * Bound (SPEC section 3): with backlogs at 80 and 20 only, each instance serves the second every fifth turn; eight
 * interleaved instances delay that by at most one turn each, so any 200 consecutive claims hold at least 40 - 8 = 16%.
 */

/** Weight 0: behind every task of every other level. Far beyond any position a round can reach. */
const LAST = 1e9;

/** `j`-th task of `levels[i]` stands at `starts[i] + j * strides[i]` (j from 1). Arrays run in step, level 1 first. */
export type Line = { levels: number[]; starts: number[]; strides: number[] };

export type Chooser = {
  /** The line for the next claim. `weights[i]` is the weight (0 or more) of level i + 1. */
  line(weights: readonly number[]): Line;
  /** Moves on by what was claimed: the levels of the claimed tasks, in any order. */
  record(claimedLevels: readonly number[]): void;
};

/** `random` in [0, 1) sets the phase. */
export function createChooser(random: () => number): Chooser {
  let starts: number[] = [];
  let strides: number[] = [];

  return {
    line(weights) {
      const next = weights.map(strideOf);
      // First use, or the weights changed: begin anew with a random phase.
      if (next.some((stride, i) => stride !== strides[i])) {
        strides = next;
        starts = next.map((stride) => (stride === LAST ? LAST : -stride * random()));
      }
      return { levels: weights.map((_, i) => i + 1), starts, strides };
    },
    record(claimedLevels) {
      starts = advance(starts, strides, claimedLevels);
    },
  };
}

const strideOf = (weight: number): number => (weight > 0 ? 1 / weight : LAST);

/**
 * Starts after tasks of these levels were taken, counted from the furthest position reached. A level that had nothing
 * to offer does not save up turns: it may be at most one stride ahead.
 */
export function advance(
  starts: readonly number[],
  strides: readonly number[],
  claimedLevels: readonly number[],
): number[] {
  const after = [...starts];
  for (const level of claimedLevels) if (strides[level - 1] !== LAST) after[level - 1]! += strides[level - 1]!;
  const reached = Math.max(
    ...claimedLevels.map((level) => after[level - 1]!).filter((position) => position < LAST / 2),
  );
  if (!Number.isFinite(reached)) return after;
  return after.map((start, i) => (strides[i] === LAST ? LAST : Math.max(start - reached, -strides[i]!)));
}
