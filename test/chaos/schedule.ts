/**
 * Rounds of a minute: every kind of fault once, in an order drawn from the seed, those of instances beside those of
 * stores; then quiet until the minute is over, so that there is time without faults to be judged.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Chance, createChance } from './chance.ts';
import type { FaultLine } from './evidence.ts';
import type { Fault, Strike } from './faults.ts';
import { now } from './journal.ts';

const ROUND_MS = 60_000;
/** Longer than the aftermath of a fault. */
const QUIET_MS = 9_000;
const APART_MS: Record<Fault['lane'], [number, number]> = { instance: [300, 900], store: [1_500, 4_000] };
/** A fault that does not come to its end is one of the run itself. */
const STRIKE_LIMIT_MS = 120_000;

export async function runFaults(
  faults: readonly Fault[],
  { seed, rounds, onStrike }: { seed: number; rounds: number; onStrike: (line: FaultLine) => void },
): Promise<void> {
  for (let round = 1; round <= rounds; round++) {
    const until = now() + ROUND_MS;
    await Promise.all(
      (['instance', 'store'] as const).map((lane) => runLane(lane, createChance(seed, `round ${round} ${lane}`))),
    );
    await sleep(Math.max(QUIET_MS, until - now()));
  }

  async function runLane(lane: Fault['lane'], chance: Chance): Promise<void> {
    for (const fault of chance.shuffle(faults.filter((one) => one.lane === lane))) {
      await sleep(chance.between(...APART_MS[lane]));
      const since = now();
      onStrike({ e: 'fault', kind: fault.kind, since, ...(await withinLimit(fault)), t: now() });
    }
  }
}

async function withinLimit({ kind, strike }: Fault): Promise<Strike> {
  const timer = new AbortController();
  const late = sleep(STRIKE_LIMIT_MS, null, { signal: timer.signal }).catch(() => null);
  const struck = await Promise.race([strike(), late]);
  timer.abort();
  if (struck === null) throw new Error(`the fault '${kind}' did not come to its end`);
  return struck;
}
