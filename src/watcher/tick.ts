/**
 * When a job is due, by the wall clock, which may be stepped at any time and by any amount: by NTP, by hand, by a machine
 * that slept. So it is looked at once a second at least, by the monotonic clock. However many ticks were passed over, the
 * job is due once; and when the clock went back, its next tick is sought anew instead of waited for.
 */
export type Tick = {
  start(): void;
  stop(): void;
  /** ms since the epoch. */
  nextAt(): number;
};

const LOOK_EVERY_MS = 1_000;

/** `next`: the first tick after now, ms since the epoch. */
export function createTick({ next, onDue }: { next: () => number; onDue: () => void }): Tick {
  let timer: NodeJS.Timeout | undefined;
  let dueAt = 0;
  let lookedAt = 0;

  return {
    start() {
      dueAt = next();
      lookedAt = Date.now();
      wait();
    },
    stop: () => clearTimeout(timer),
    nextAt: () => dueAt,
  };

  function wait(): void {
    timer = setTimeout(look, Math.min(Math.max(1, dueAt - Date.now()), LOOK_EVERY_MS));
  }

  function look(): void {
    const now = Date.now();
    const isDue = now >= dueAt;
    if (isDue || now < lookedAt) dueAt = next();
    lookedAt = now;
    wait();
    if (isDue) onDue();
  }
}
