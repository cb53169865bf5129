/**
 * Which levels the next claims serve: start-time fair queueing over the priority levels, so that a level with weight w
 * gets w of every sum-of-weights turns, evenly spread, and the turns of an empty level go to the others by weight.
 *
 * A level's next task stands at `start`, the one after it one `stride` (1 / weight) further on; the claim takes what
 * stands lowest. Deterministic but for the phase, which is random so that several instances do not move in step.
 * Bound: with backlogs at 80 and 20 only, each instance serves the second every fifth turn; eight
 * interleaved instances delay that by at most one turn each, so any 200 consecutive claims hold at least 40 - 8 = 16%.
 *
 * In a level new tasks and retries stand in lanes of their own and take the level's turns in turn.
 *
 * Where retries may hold every slot (a limit of 1) the lanes alternate over all levels. A lane's turn is then given out in
 * two ways, one after the other: by the positions of the levels, which keep the levels' shares of all claims, and by
 * positions that count the lane's own claims alone. By the first only, a lane would never serve a level that the other
 * lane serves more than its share; by the second only, a level that one lane has nothing for would lose half its share.
 */

/** Weight 0: behind every task of every other level. Far beyond any position a round can reach. */
const LAST = 1e9;

/** Where lanes take turns over all levels a level's turn may fall on the other lane, and must not be lost by that. */
const AHEAD_ACROSS = 2;

/** `j`-th task of `levels[i]` stands at `starts[i] + j * strides[i]` (j from 1). Arrays run in step, level 1 first. */
export type Line = {
  levels: number[];
  starts: number[];
  /** For retries; the same but across levels. */
  retryStarts: number[];
  strides: number[];
  /** In `levels[i]` a retry, if there is any, takes the next turn. */
  retryFirst: boolean[];
  /** Over all levels; null when the lanes take turns inside each level only. */
  retryTurn: boolean | null;
};

export type Chooser = {
  /** The line for the next claim. `weights[i]` is the weight (0 or more) of level i + 1. */
  line(weights: readonly number[], acrossLevels: boolean): Line;
  /** Moves on by what was claimed, in the order of the line. */
  record(claimed: readonly { level: number; retry: boolean }[]): void;
};

/** Positions that count the lane's own claims alone, and whether they give out its next turn. */
type Lane = { retry: boolean; starts: number[]; byOwn: boolean };

/** `random` in [0, 1) sets the phase. */
export function createChooser(random: () => number): Chooser {
  let starts: number[] = [];
  let strides: number[] = [];
  let retryFirst: boolean[] = [];
  let retryTurn = false;
  let ahead = 1;
  let lanes: [fresh: Lane, retries: Lane] = [newLane(false, []), newLane(true, [])];

  return {
    line(weights, acrossLevels) {
      const next = weights.map(strideOf);
      // First use, or the weights changed: begin anew with a random phase.
      if (next.some((stride, i) => stride !== strides[i])) {
        strides = next;
        starts = next.map((stride) => (stride === LAST ? LAST : -stride * random()));
        retryFirst = next.map(() => false);
        lanes = [newLane(false, starts), newLane(true, starts)];
      }
      ahead = acrossLevels ? AHEAD_ACROSS : 1;
      const [fresh, retries] = lanes.map((lane) => (acrossLevels && lane.byOwn ? lane.starts : starts));
      return {
        levels: weights.map((_, i) => i + 1),
        starts: fresh!,
        retryStarts: retries!,
        strides,
        retryFirst: [...retryFirst],
        retryTurn: acrossLevels ? retryTurn : null,
      };
    },
    record(claimed) {
      starts = advance(starts, strides, levelsOf(claimed), ahead);
      for (const lane of lanes) {
        const own = claimed.filter(({ retry }) => retry === lane.retry);
        lane.starts = advance(lane.starts, strides, levelsOf(own));
        if (own.length > 0) lane.byOwn = !lane.byOwn;
      }
      for (const { level, retry } of claimed) {
        retryFirst[level - 1] = !retry;
        retryTurn = !retry;
      }
    },
  };
}

const newLane = (retry: boolean, starts: number[]): Lane => ({ retry, starts, byOwn: false });

const levelsOf = (claimed: readonly { level: number }[]): number[] => claimed.map(({ level }) => level);

const strideOf = (weight: number): number => (weight > 0 ? 1 / weight : LAST);

/**
 * Starts after tasks of these levels were taken, counted from the furthest position reached. A level that had nothing
 * to offer does not save up turns: it may be at most `ahead` strides ahead.
 */
export function advance(
  starts: readonly number[],
  strides: readonly number[],
  claimedLevels: readonly number[],
  ahead = 1,
): number[] {
  const after = [...starts];
  for (const level of claimedLevels) if (strides[level - 1] !== LAST) after[level - 1]! += strides[level - 1]!;
  const reached = Math.max(
    0,
    ...claimedLevels.map((level) => after[level - 1]!).filter((position) => position < LAST / 2),
  );
  return after.map((start, i) => (strides[i] === LAST ? LAST : Math.max(start - reached, -ahead * strides[i]!)));
}
