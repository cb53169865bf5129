/**
 * What one instance knows of the breakers of its targets: a copy of their records, as old as the last look, and the
 * samples of the pushes that it sent itself. In memory only; targets.ts reads and writes the records.
 */
import { CircuitState, CountBreaker } from 'cockatiel';
import type { Target } from '../queues.ts';
import type { TargetState } from './targets.ts';

/** A target that may not take all, as a statement saw it. */
export type TargetRecord = {
  url: string;
  /** In a row; 0 when it is busy or ramping. */
  failures: number;
  /** Left alone for this long from then, ms. */
  wait_ms: number;
  /** When it failed or was busy last, ms on PostgreSQL's clock. */
  failed_at: number | string;
  error: string | null;
};

/** A push: where it went, and when it was claimed (ms on PostgreSQL's clock). */
type Pushed = { target: Target; started_at: string };
/** `until`: left alone until then; `at`: when this was so. Both performance.now(). */
type Known = { failures: number; until: number; failedAt: number; error: string | null; at: number };

export type Circuits = {
  /**
   * `records` of those of `urls` that may not take all, as of `at` (performance.now() before the statement was sent: what
   * was learned later is newer). Answers which are no longer broken.
   */
  learn(at: number, urls: readonly string[], records: readonly TargetRecord[]): string[];
  /** Forgets all others. */
  keep(urls: readonly string[]): void;
  /** Whether all targets take all. */
  allClosed(): boolean;
  stateOf(url: string): TargetState;
  /** What broke it. */
  errorOf(url: string): string | null;
  /** How much longer it is left alone, ms; 0 when it is not, null when it takes all. */
  waitMs(url: string): number | null;
  /** It was claimed before the failure on record: its answer tells nothing new. */
  isOld(push: Pushed): boolean;
  /** A clear answer; true when it shows that a broken target is back. */
  passed(push: Pushed): boolean;
  /** A failure; true when the target is to be left alone. */
  failed(push: Pushed): boolean;
};

/**
 * More than half of the last 50 pushes failed, of 10 at least. By count, not by time: parsers answer in milliseconds or
 * in minutes. Half: below that the documents may be to blame, and a parser that fails every second push still does half of
 * the work. 10: a handful of bad documents after a start says nothing.
 */
const BREAKER = { threshold: 0.5, size: 50, minimumNumberOfCalls: 10 };

export function createCircuits(): Circuits {
  /** Those that do not take all. */
  const known = new Map<string, Known>();
  const breakers = new Map<string, CountBreaker>();

  return {
    learn: (at, urls, records) => {
      const byUrl = new Map(records.map((record) => [record.url, record]));
      return urls.filter((url) => learnOne(at, url, byUrl.get(url)));
    },
    keep(urls) {
      for (const url of known.keys()) if (!urls.includes(url)) known.delete(url);
      for (const url of breakers.keys()) if (!urls.includes(url)) breakers.delete(url);
    },
    allClosed: () => known.size === 0,
    stateOf,
    errorOf: (url) => known.get(url)?.error ?? null,
    waitMs(url) {
      const target = known.get(url);
      return target ? Math.max(0, target.until - performance.now()) : null;
    },
    isOld,
    passed(push) {
      const { url } = push.target;
      if (isOld(push)) return false;
      breakerOf(url).success(CircuitState.Closed);
      const target = known.get(url);
      if (!target || target.failures === 0) return false;
      known.set(url, { ...target, failures: 0, until: 0, error: null, at: performance.now() });
      breakers.delete(url);
      return true;
    },
    failed(push) {
      if (isOld(push)) return false;
      const broken = (known.get(push.target.url)?.failures ?? 0) > 0;
      return breakerOf(push.target.url).failure(broken ? CircuitState.HalfOpen : CircuitState.Closed);
    },
  };

  /** Whether it is no longer broken. */
  function learnOne(at: number, url: string, record: TargetRecord | undefined): boolean {
    const before = known.get(url);
    if (before && before.at > at) return false;
    if (record) {
      const { failures, error } = record;
      const now = performance.now();
      known.set(url, { failures, error, until: now + record.wait_ms, failedAt: Number(record.failed_at), at: now });
    } else known.delete(url);
    if (!before || before.failures === 0 || record?.failures) return false;
    breakers.delete(url);
    return true;
  }

  function stateOf(url: string): TargetState {
    const target = known.get(url);
    if (!target) return { url, state: 'closed', failures: 0 };
    const { failures, until } = target;
    const state = until > performance.now() ? 'open' : failures > 0 ? 'half_open' : 'ramping';
    return { url, state, failures };
  }

  function isOld({ target, started_at }: Pushed): boolean {
    return Number(started_at) < (known.get(target.url)?.failedAt ?? 0);
  }

  function breakerOf(url: string): CountBreaker {
    const breaker = breakers.get(url) ?? new CountBreaker(BREAKER);
    breakers.set(url, breaker);
    return breaker;
  }
}
