/**
 * Where the line of a queue begins. Claimed tasks leave dead entries at the front of the index tasks_claim, and while a
 * transaction is held open anywhere in the server they cannot be vacuumed: a claim that begins at the first entry then
 * steps over all of them, half a second for a million. So a claim begins at a mark, level by level: the highest place
 * that was claimed a quarter of a second ago.
 *
 * What stands before its mark all the same (it is Pending again in its old place, its transaction committed late, another
 * instance held it) is found by a walk from the very beginning: when somebody says so (what was promoted, unblocked, or
 * submitted in SQL), while the last walk found something, and in any case as often as a twentieth of the time allows: ten
 * times a second as long as walks take milliseconds, every 20 s when one takes a second.
 *
 * Retries stand where they always stood, in lanes of their own that are always walked whole: they return in no order.
 */
/** Of level 1 to 5. */
export const BEGINNING: number[] = [0, 0, 0, 0, 0];
/** A submit is visible this long after its task got its place; one that takes longer is found by a walk. */
const SETTLED_MS = 250;
/** A walk that took t is followed by the next after this many times t, at most after half a minute. */
const REST = 20;
const MAX_REST_MS = 30_000;

export type Begin = {
  /** The first place to look at, of level 1 to 5. */
  places: number[];
  /** All zero: a walk. */
  full: boolean;
  /** How many walks had been asked for by then. */
  walks: number;
};

export type Front = {
  begin(): Begin;
  /** What a claim, or a look that took nothing, found from there in so many ms. */
  found(begin: Begin, tasks: readonly { level: number; place: string; retry: boolean }[], tookMs: number): void;
  /** The next claim is a walk. */
  walk(): void;
  /** Until the next walk, ms. */
  walkInMs(): number;
};

export function createFront(now: () => number = () => performance.now()): Front {
  let marks = BEGINNING;
  let nextMarks = BEGINNING;
  const highest = [...BEGINNING];
  let markedAt = now();
  let walkAt = 0;
  let walks = 0;

  return {
    begin() {
      if (now() - markedAt >= SETTLED_MS) {
        marks = nextMarks;
        nextMarks = [...highest];
        markedAt = now();
      }
      const full = now() >= walkAt;
      return { places: full ? BEGINNING : marks, full, walks };
    },
    found({ full, walks: asked }, tasks, tookMs) {
      let behind = false;
      for (const { level, place, retry } of tasks) {
        if (retry) continue;
        behind ||= Number(place) < marks[level - 1]!;
        highest[level - 1] = Math.max(highest[level - 1]!, Number(place));
      }
      if (full && asked === walks) walkAt = behind ? 0 : now() + Math.min(REST * tookMs, MAX_REST_MS);
    },
    walk() {
      walks += 1;
      walkAt = 0;
    },
    walkInMs: () => Math.max(0, walkAt - now()),
  };
}
