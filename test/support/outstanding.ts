/**
 * How many attempts a parser has on its hands, over time. An attempt counts from the moment its push has been read;
 * it stops counting when it is refused, when its deadline (as last told) passes, and at its callback, where two
 * readings are kept: `surely` ends when the callback is sent, `atMost` when an answer says that it was settled. docsched
 * commits and frees the slot in between, so `surely.max` may never exceed the limit, while `atMost.max` may for an
 * instant, or for long when the answer was lost.
 */

/** [performance.now() of a change, number from then on] */
type Change = readonly [atMs: number, level: number];
export type Level = {
  readonly now: number;
  readonly max: number;
  /** Share (0..1) of the time between `fromMs` and `toMs` (performance.now()) spent at `level` or above it. */
  shareAtLeast(level: number, fromMs?: number, toMs?: number): number;
  mean(fromMs?: number, toMs?: number): number;
};
export type Outstanding = ReturnType<typeof trackOutstanding>;

type Open = { deadline: number; callbackSent: boolean };

export function trackOutstanding() {
  const open = new Map<string, Open>();
  const surely = createLevel();
  const atMost = createLevel();

  const remove = (attemptId: string) => {
    const attempt = open.get(attemptId);
    if (!attempt) return;
    open.delete(attemptId);
    atMost.add(-1);
    if (!attempt.callbackSent) surely.add(-1);
  };
  /** Deadlines are few and far away, and this is a test: looking at all open attempts is cheap up to some thousands. */
  let nextDeadline = Number.POSITIVE_INFINITY;
  const expire = () => {
    const now = Date.now();
    if (now <= nextDeadline) return;
    nextDeadline = Number.POSITIVE_INFINITY;
    for (const [attemptId, { deadline }] of open)
      if (deadline < now) remove(attemptId);
      else nextDeadline = Math.min(nextDeadline, deadline);
  };
  return {
    surely: surely.read,
    atMost: atMost.read,
    /** Ids now outstanding, deadlines considered. */
    attemptIds: (): string[] => {
      expire();
      return [...open.keys()];
    },
    /** A push was read. The same attempt pushed twice counts once. `deadline`: ms since the epoch. */
    add: (attemptId: string, deadline: number) => {
      expire();
      if (open.has(attemptId)) return;
      open.set(attemptId, { deadline, callbackSent: false });
      nextDeadline = Math.min(nextDeadline, deadline);
      surely.add(1);
      atMost.add(1);
    },
    /** A progress answer told another deadline. */
    extend: (attemptId: string, deadline: number) => {
      const attempt = open.get(attemptId);
      if (attempt) attempt.deadline = deadline;
      nextDeadline = Math.min(nextDeadline, deadline);
    },
    callbackSent: (attemptId: string) => {
      const attempt = open.get(attemptId);
      if (!attempt || attempt.callbackSent) return;
      attempt.callbackSent = true;
      surely.add(-1);
    },
    /** The callback was certainly not accepted: the attempt is outstanding as before. */
    callbackRefused: (attemptId: string) => {
      const attempt = open.get(attemptId);
      if (!attempt?.callbackSent) return;
      attempt.callbackSent = false;
      surely.add(1);
    },
    remove,
  };
}

function createLevel() {
  const changes: Change[] = [];
  let now = 0;
  let max = 0;
  /** Time spent at each level within the window. */
  const spent = (fromMs: number, toMs: number): Map<number, number> => {
    const times = new Map<number, number>();
    changes.forEach(([atMs, level], index) => {
      const endMs = changes[index + 1]?.[0] ?? performance.now();
      const ms = Math.min(endMs, toMs) - Math.max(atMs, fromMs);
      if (ms > 0) times.set(level, (times.get(level) ?? 0) + ms);
    });
    return times;
  };
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
  const read: Level = {
    get now() {
      return now;
    },
    get max() {
      return max;
    },
    shareAtLeast: (level, fromMs = 0, toMs = performance.now()) => {
      const times = [...spent(fromMs, toMs)];
      return sum(times.filter(([at]) => at >= level).map(([, ms]) => ms)) / (sum(times.map(([, ms]) => ms)) || 1);
    },
    mean: (fromMs = 0, toMs = performance.now()) => {
      const times = [...spent(fromMs, toMs)];
      return sum(times.map(([at, ms]) => at * ms)) / (sum(times.map(([, ms]) => ms)) || 1);
    },
  };
  const add = (by: number) => {
    now += by;
    max = Math.max(max, now);
    changes.push([performance.now(), now]);
  };
  return { read, add };
}
