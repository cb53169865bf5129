/** A system under comparison, running, and how it is judged. All take submits on POST /v1/tasks. */
import type { Postgres } from '../world/postgres.ts';

export type Ids = { firstId: number; count: number };

export type Contestant = {
  name: string;
  /** Base URLs of its processes. */
  urls: string[];
  pids: number[];
  /** Throws unless every task of `ids` has reached Success once and nothing is left open. */
  verify(ids: Ids): Promise<void>;
  /** Tasks stored and not finished, for the scenarios without a parser; null when it stores nothing. */
  countOpen(): Promise<number | null>;
  /** Transactions of its database; null when it has none. Complete only after `stop`. */
  commits(): Promise<number>;
  stop(): Promise<void>;
  /** Drops what it stored. After `stop`. */
  remove(): Promise<void>;
};

export type Stores = { postgres: Postgres; redisUrl: string };

/** `parserUrl` absent: tasks are only stored. */
export type StartContestant = (stores: Stores, options: { parserUrl?: string }) => Promise<Contestant>;

const SETTLE_LIMIT_MS = 10_000;
const LOOK_EVERY_MS = 20;

/** Looks again until `look` finds nothing wrong: what was applied last may still be on its way to the store. */
export async function untilRight(look: () => Promise<string | null>): Promise<void> {
  const giveUpAt = performance.now() + SETTLE_LIMIT_MS;
  for (;;) {
    const wrong = await look();
    if (wrong === null) return;
    if (performance.now() > giveUpAt) throw new Error(wrong);
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
}

let databases = 0;
export const newDatabaseName = (contestant: string): string =>
  `bench_${contestant.replaceAll(/[^a-z]/g, '_')}_${++databases}`;
