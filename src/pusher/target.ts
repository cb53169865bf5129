/**
 * A target is left alone while it is broken (1 s, 2 s, 4 s ... 60 s) or busy (as long as it says, 60 s at most). The
 * record is in PostgreSQL, shared by all instances; the claim obeys it. While there are failures on record the claim
 * lets one push through each second; the first clear answer removes them.
 */
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';

export type Target = {
  /** What a claim saw: how long the target is left alone (ms, or null), and whether it has failures on record. */
  seen(waitMs: number | null, failing: boolean): void;
  /** A push claimed at `claimedAt` (ms, PostgreSQL's clock) showed it broken. */
  broken(url: string, claimedAt: string): Promise<void>;
  /** It asked for patience. */
  busy(url: string, claimedAt: string, forMs: number): Promise<void>;
  /** It gave a clear answer. */
  answered(url: string, claimedAt: string): void;
  stop(): void;
};

export type TargetDeps = { db: Db; wake: () => void; log: Log };

const BASE_MS = 1_000;
const MAX_MS = 60_000;
/** The timer may run a little ahead of PostgreSQL's clock: then the claim only says how much is left. */
const MIN_WAIT_MS = 20;

export function createTarget({ db, wake, log }: TargetDeps): Target {
  let failing = false;
  let timer: NodeJS.Timeout | undefined;
  return {
    seen(waitMs, failingNow) {
      failing ||= failingNow;
      if (waitMs !== null) wakeIn(waitMs);
    },
    broken(url, claimedAt) {
      failing = true;
      return slow(url, claimedAt, 1, 0);
    },
    busy: (url, claimedAt, forMs) => slow(url, claimedAt, 0, Math.min(forMs, MAX_MS)),
    answered,
    stop: () => clearTimeout(timer),
  };

  function wakeIn(ms: number): void {
    clearTimeout(timer);
    timer = setTimeout(wake, Math.min(Math.max(ms, MIN_WAIT_MS), MAX_MS));
  }

  /** Should it fail, the next push finds out the same. */
  async function slow(url: string, claimedAt: string, failures: 0 | 1, busyMs: number): Promise<void> {
    try {
      const params = [url, claimedAt, BASE_MS, MAX_MS, failures, busyMs];
      const [slowed] = await db.query<{ failures: number; wait_ms: number }>('slow_target', params);
      if (!slowed) return;
      if (failures > 0) log.warn({ event: 'target_broken', target: new URL(url).origin, failures: slowed.failures });
      wakeIn(slowed.wait_ms);
    } catch (error) {
      log.warn({ event: 'slow_target_failed', error: (error as Error).message });
    }
  }

  function answered(url: string, claimedAt: string): void {
    if (!failing) return;
    failing = false;
    db.query('clear_target', [url, claimedAt]).then(wake, (error) => {
      failing = true;
      log.warn({ event: 'clear_target_failed', error: error.message });
    });
  }
}
