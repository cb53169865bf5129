/** What `npm run bench -- ...` understands. */
import { parseArgs } from 'node:util';

export type Options = {
  help: boolean;
  profile: boolean;
  quick: boolean;
  record: boolean;
  only: string[] | null;
  rounds: number | null;
  /** Minutes. */
  longTransaction: number | null;
  limiter: Limiter;
};

export type Limiter = (typeof LIMITERS)[number];
const LIMITERS = ['redis', 'postgres'] as const;

export const HELP = `npm run bench [-- options]

Runs docsched against job libraries side by side and writes bench/results/<time>.json and .svg. The first run installs
the peers (npm install in bench/). Needs redis-server or valkey-server; PostgreSQL is the embedded one. Keep the machine
quiet: only ratios taken in one run mean something.

  --quick         small rounds, under 3 minutes: shows that all of it works, its numbers prove nothing
  --only S2,S2c   these scenarios only
  --rounds 3      rounds of each contestant (default 5; 2 with --quick)
  --record        keep the run as bench/results/recorded.*, and write its tables into docs/performance.md and docs/scale.md
  --profile       no comparison: where docsched's time goes in S2 (CPU profile of the service, statements of PostgreSQL)
  --long-transaction 10   no comparison: S2 for 10 minutes while a transaction is held open, in turn with an undisturbed
                  service; --record writes it into docs/reliability.md
  --limiter postgres      for it: slots in PostgreSQL, not in Redis
  --help

  S1   durable single submits over HTTP                    S1b  against a route that stores nothing
  S2   whole life: submit, push, callback, Success         S2b  against BullMQ on Redis    S2c  against empty hops
  S2t  with tracing of every tenth task
  S3   claim and complete in batches, no HTTP              S4   batch routes against single ones
  S5   S2 over millions of rows                            S6   S2 under a long transaction
  S7   latency at a fifth of the peak                      S8   cost of a task, memory     S9   1, 2, 4 instances

A scenario fails unless every task reached Success exactly once. Exit codes: 0 all ran (targets may be missed: the table
says so), 1 a scenario failed, 78 wrong arguments.`;

/** Throws with one sentence. */
export function readOptions(given: string[], ids: readonly string[]): Options {
  const { values } = parseArgs({
    args: given,
    options: {
      quick: { type: 'boolean', default: false },
      record: { type: 'boolean', default: false },
      profile: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
      only: { type: 'string' },
      rounds: { type: 'string' },
      'long-transaction': { type: 'string' },
      limiter: { type: 'string', default: 'redis' },
    },
  });
  const { quick, record, profile, help } = values;
  const only = values.only?.split(',').map((id) => id.trim()) ?? null;
  const unknown = only?.find((id) => !ids.includes(id));
  if (unknown !== undefined) throw new Error(`--only: there is no scenario '${unknown}'; there are ${ids.join(', ')}`);
  const limiter = LIMITERS.find((name) => name === values.limiter);
  if (!limiter) throw new Error(`--limiter: expected ${LIMITERS.join(' or ')}, got '${values.limiter}'`);
  const count = (name: 'rounds' | 'long-transaction') => {
    const value = values[name] === undefined ? null : Number(values[name]);
    if (value !== null && !(Number.isInteger(value) && value > 0))
      throw new Error(`--${name}: expected a positive integer, got '${values[name]}'`);
    return value;
  };
  const [rounds, longTransaction] = [count('rounds'), count('long-transaction')];
  return { quick, record, profile, help, only, rounds, longTransaction, limiter };
}
