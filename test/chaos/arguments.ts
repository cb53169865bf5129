/** The command line of `npm run chaos`. */
import { parseArgs } from 'node:util';

export type Arguments = { minutes: number; seed: number; limiter: 'redis' | 'postgres'; record: boolean };

export const USAGE = `npm run chaos -- [--minutes M] [--seed S] [--limiter redis|postgres] [--record]

Runs three instances of docsched on a PostgreSQL and a Redis of its own, with three parsers and many submitters that
misbehave, and breaks all of them: each minute every kind of fault once. Then it waits until all work is done, and
judges by the logs of the submitters and parsers and by what the stores hold whether anything was lost, done twice or
done beyond a limit. Prints one table. Exit code: 0 all promises held, 1 one was broken (the logs are kept and
named), 78 wrong arguments.

  --minutes M   whole minutes under load, 1 by default; each kind of fault strikes M times
  --seed S      what is done to whom is drawn from it; drawn from the clock when it is not given, and printed
  --limiter L   redis (default) or postgres
  --record      writes the figures into docs/reliability.md
  --help        this text
`;

/** Throws with one line on what is wrong. */
export function readArguments(given: readonly string[]): Arguments | 'help' {
  const { values } = parseArgs({
    args: [...given],
    options: {
      minutes: { type: 'string', default: '1' },
      seed: { type: 'string', default: String(Date.now() % 1_000_000) },
      limiter: { type: 'string', default: 'redis' },
      record: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  if (values.help) return 'help';
  const { limiter, record } = values;
  if (limiter !== 'redis' && limiter !== 'postgres')
    throw new Error(`--limiter: expected redis or postgres, got '${limiter}'`);
  return { minutes: integer('minutes', values.minutes, 1), seed: integer('seed', values.seed, 0), limiter, record };
}

function integer(name: string, text: string, min: number): number {
  if (!/^\d+$/.test(text) || Number(text) < min)
    throw new Error(`--${name}: expected an integer from ${min} on, got '${text}'`);
  return Number(text);
}
