/** How many of many spans of time lie over each other. Pure. */

export type Span = readonly [from: number, to: number];

/** Calls `step` with each level and how long it held. */
function sweep(spans: readonly Span[], step: (level: number, from: number, to: number) => void): void {
  const real = spans.filter(([from, to]) => to > from);
  const starts = Float64Array.from(real, ([from]) => from).sort();
  const ends = Float64Array.from(real, ([, to]) => to).sort();
  let level = 0;
  let at = Number.NEGATIVE_INFINITY;
  for (let i = 0, k = 0; k < ends.length; ) {
    // An end comes before a beginning of the same moment: the one made room for the other.
    const isEnd = i >= starts.length || ends[k]! <= starts[i]!;
    const next = isEnd ? ends[k++]! : starts[i++]!;
    if (level > 0 && next > at) step(level, at, next);
    level += isEnd ? -1 : 1;
    at = next;
  }
}

/** The highest level and when it was reached first. */
export function highest(spans: readonly Span[]): { level: number; at: number } {
  let top = { level: 0, at: 0 };
  sweep(spans, (level, at) => {
    if (level > top.level) top = { level, at };
  });
  return top;
}

/** Share (0..1) of the windows' time at `level` or above. The windows do not overlap. Null when they have no time. */
export function shareAtLeast(spans: readonly Span[], level: number, windows: readonly Span[]): number | null {
  const total = windows.reduce((sum, [from, to]) => sum + to - from, 0);
  if (total <= 0) return null;
  let held = 0;
  sweep(spans, (now, from, to) => {
    if (now < level) return;
    for (const window of windows) held += Math.max(0, Math.min(to, window[1]) - Math.max(from, window[0]));
  });
  return held / total;
}

/** What remains of `whole` without `spans`. */
export function without(whole: Span, spans: readonly Span[]): Span[] {
  const rest: Span[] = [];
  let at = whole[0];
  for (const [from, to] of spans.toSorted((a, b) => a[0] - b[0])) {
    if (from > at) rest.push([at, Math.min(from, whole[1])]);
    at = Math.max(at, to);
  }
  if (at < whole[1]) rest.push([at, whole[1]]);
  return rest.filter(([from, to]) => to > from);
}
