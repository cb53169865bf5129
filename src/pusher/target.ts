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
  /** A push claimed at `claimedAt` (ms, PostgreSQL's clock) showed it broken; `error` says how. */
  broken(url: string, claimedAt: string, error: string): Promise<void>;
  /** It asked for patience. */
  busy(url: string, claimedAt: string, forMs: number): Promise<void>;
  /** It gave a clear answer. */
  answered(url: string, claimedAt: string): void;
  /** One sentence while it is broken as far as this instance knows; else null. */
  trouble(): string | null;
  stop(): void;
};

export type TargetDeps = { db: Db; wake: () => void; log: Log };

type Slowed = { failures: number; wait_ms: number };

const BASE_MS = 1_000;
const MAX_MS = 60_000;
/** The timer may run a little ahead of PostgreSQL's clock: then the claim only says how much is left. */
const MIN_WAIT_MS = 20;

export function createTarget({ db, wake, log }: TargetDeps): Target {
  let failing = false;
  let trouble: string | null = null;
  let timer: NodeJS.Timeout | undefined;
  return {
    seen(waitMs, failingNow) {
      failing ||= failingNow;
      if (waitMs !== null) wakeIn(waitMs);
    },
    async broken(url, claimedAt, error) {
      failing = true;
      const slowed = await slow(url, claimedAt, 1, 0);
      if (!slowed) return;
      const { failures, wait_ms } = slowed;
      trouble = `${shown(url)} is left alone for up to ${Math.ceil(wait_ms / 1000)} s at a time: ${error} (${failures} failures)`;
      log.warn({ event: 'target_broken', target: shown(url), error, failures, next_try_ms: wait_ms });
    },
    async busy(url, claimedAt, forMs) {
      await slow(url, claimedAt, 0, Math.min(forMs, MAX_MS));
    },
    answered,
    trouble: () => trouble,
    stop: () => clearTimeout(timer),
  };

  function wakeIn(ms: number): void {
    clearTimeout(timer);
    timer = setTimeout(wake, Math.min(Math.max(ms, MIN_WAIT_MS), MAX_MS));
  }

  /** Should it fail, the next push finds out the same. */
  async function slow(url: string, claimedAt: string, failures: 0 | 1, busyMs: number): Promise<Slowed | undefined> {
    try {
      const params = [url, claimedAt, BASE_MS, MAX_MS, failures, busyMs];
      const [slowed] = await db.query<Slowed>('slow_target', params);
      if (slowed) wakeIn(slowed.wait_ms);
      return slowed;
    } catch (error) {
      log.warn({ event: 'slow_target_failed', error: (error as Error).message });
      return undefined;
    }
  }

  function answered(url: string, claimedAt: string): void {
    if (!failing) return;
    failing = false;
    if (trouble !== null) log.info({ event: 'target_recovered', target: shown(url) });
    trouble = null;
    db.query('clear_target', [url, claimedAt]).then(wake, (error) => {
      failing = true;
      log.warn({ event: 'clear_target_failed', error: error.message });
    });
  }
}

/** Without its query, which may hold a secret. */
const shown = (url: string): string => new URL(url).origin + new URL(url).pathname;
