/** What a scenario is handed, what it hands back, and how rounds are interleaved. */
import type { Contestant, StartContestant } from '../contestants/contestant.ts';
import { type Summary, summarise } from '../report/stats.ts';
import type { Sizes } from '../sizes.ts';
import type { World } from '../world/world.ts';
import type { LifeRound } from './life.ts';

/** One line of a scenario's table: a contestant and what was measured of it. */
export type Line = { contestant: string; measure: string; unit: string; summary: Summary };

export type Target = {
  id: string;
  /** What the ratio is of, e.g. `docsched / best PostgreSQL peer (pg-boss)`. */
  of: string;
  ratio: number;
  /** Of the rounds taken one by one: the lowest and highest ratio. */
  spread: [number, number];
  wanted: { at: 'least' | 'most'; value: number };
  reached: boolean;
};

export type Outcome = { id: string; title: string; lines: Line[]; targets: Target[]; notes: string[] };

export type Context = {
  world: World;
  sizes: Sizes;
  /** Progress, one line. */
  say(text: string): void;
  /** S2's rounds, run when they were not yet: docsched and what the wanted scenarios need. */
  lives(): Promise<Lives>;
};

/** `commitsATask`: transactions over all rounds of a contestant, read-only ones too. */
export type Lives = { rounds: Map<LifeName, LifeRound[]>; commitsATask: Map<LifeName, number> };

export const LIFE_NAMES = [
  'docsched',
  'docsched-traced',
  'pg-boss',
  'graphile-worker',
  'bullmq-postgres',
  'bullmq-redis',
  'empty-express',
  'empty-http',
] as const;
export type LifeName = (typeof LIFE_NAMES)[number];
export const POSTGRES_PEERS = ['pg-boss', 'graphile-worker', 'bullmq-postgres'] as const satisfies LifeName[];

export type Scenario = {
  /** Those of its parts that can be chosen with --only. */
  ids: string[];
  /** Whose S2 rounds it reads, apart from docsched's. */
  needs?(wanted: ReadonlySet<string>): readonly LifeName[];
  /** `wanted`: which of its ids. */
  run(context: Context, wanted: ReadonlySet<string>): Promise<Outcome[]>;
};

/** A B A B: what disturbs the machine meanwhile disturbs all. */
export async function interleave<Key extends string, Round>(
  rounds: number,
  keys: readonly Key[],
  run: (key: Key, round: number) => Promise<Round>,
): Promise<Map<Key, Round[]>> {
  const results = new Map<Key, Round[]>(keys.map((key) => [key, []]));
  for (let round = 0; round < rounds; round++) for (const key of keys) results.get(key)!.push(await run(key, round));
  return results;
}

/** Starts all, runs `work`, and ends all whatever happened. */
export async function withContestants<Key extends string, T>(
  { world }: Pick<Context, 'world'>,
  starts: readonly (readonly [Key, StartContestant, { parserUrl?: string }])[],
  work: (contestants: Map<Key, Contestant>) => Promise<T>,
): Promise<T> {
  const contestants = new Map<Key, Contestant>();
  let result: T;
  try {
    for (const [key, start, options] of starts) contestants.set(key, await start(world, options));
    result = await work(contestants);
  } catch (error) {
    // What went wrong first is what counts.
    await endAll(contestants.values()).catch(() => {});
    throw error;
  }
  await endAll(contestants.values());
  return result;
}

/** Stops all and drops what they stored. */
export async function endAll(contestants: Iterable<Contestant>): Promise<void> {
  for (const contestant of contestants) {
    await contestant.stop();
    await contestant.remove();
  }
}

export const line = (contestant: string, measure: string, unit: string, values: readonly number[]): Line => ({
  contestant,
  measure,
  unit,
  summary: summarise(values),
});

/** Ratio of medians; the spread is that of the rounds, each with its neighbour. */
export function target(
  id: string,
  of: string,
  ours: readonly number[],
  theirs: readonly number[],
  wanted: Target['wanted'],
): Target {
  const ratio = summarise(ours).median / summarise(theirs).median;
  const each = ours.map((value, i) => value / (theirs[i] ?? Number.NaN)).filter(Number.isFinite);
  const reached = wanted.at === 'least' ? ratio >= wanted.value : ratio <= wanted.value;
  return { id, of, ratio, spread: [Math.min(...each), Math.max(...each)], wanted, reached };
}

/** The one with the best median: the highest, or with `lowest` the lowest. */
export function best<Key extends string>(
  values: ReadonlyMap<Key, readonly number[]>,
  among: readonly Key[],
  lowest = false,
): Key {
  const medians = among.map((key) => ({ key, median: summarise(values.get(key)!).median * (lowest ? -1 : 1) }));
  return medians.reduce((a, b) => (b.median > a.median ? b : a)).key;
}

export const mapValues = <K, A, B>(map: ReadonlyMap<K, A>, change: (value: A) => B): Map<K, B> =>
  new Map([...map].map(([key, value]) => [key, change(value)]));
