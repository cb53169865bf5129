/** Attempts as the parsers saw them, put together from their logs. */
import type { Lines, ParserLine } from './evidence.ts';

export type Try = {
  report: number;
  turn: number;
  at: number;
  status: number;
  result: string;
  outcome: string;
  saidAt: number;
};
export type SeenAttempt = {
  id: string;
  queue: string;
  taskId: string;
  version: string;
  behaviour: string;
  instance: number;
  pushes: number;
  /** When its push had been read. */
  from: number;
  /** As last told. */
  deadline: number;
  refusedAt: number | null;
  /** The answer to the push held a result. */
  done: { at: number; status: number; result: string } | null;
  tries: Try[];
};

/** `troubles`: what the parsers themselves stumbled over. */
export async function gatherAttempts(lines: Lines<ParserLine>) {
  const attempts = new Map<string, SeenAttempt>();
  const troubles: string[] = [];
  for await (const line of lines) {
    if (line.e === 'trouble') {
      troubles.push(line.error);
      continue;
    }
    const known = attempts.get(line.a);
    if (line.e === 'push') {
      if (known) known.pushes += 1;
      else attempts.set(line.a, seen(line));
      continue;
    }
    if (!known) throw new Error(`the log speaks of attempt ${line.a} before its push`);
    note(known, line);
  }
  return { attempts, troubles };
}

const seen = (line: ParserLine & { e: 'push' }): SeenAttempt => ({
  id: line.a,
  queue: line.q,
  taskId: line.i,
  version: line.v,
  behaviour: line.b,
  instance: line.f,
  pushes: 1,
  from: line.t,
  deadline: line.d,
  refusedAt: null,
  done: null,
  tries: [],
});

function note(attempt: SeenAttempt, line: Exclude<ParserLine, { e: 'push' | 'trouble' }>): void {
  switch (line.e) {
    case 'refuse':
      attempt.refusedAt ??= line.t;
      return;
    case 'told':
      attempt.deadline = Math.max(attempt.deadline, line.d);
      return;
    case 'done':
      attempt.done = { at: line.t, status: line.c, result: line.r };
      return;
    case 'call':
      attempt.tries.push({
        report: line.k,
        turn: line.y,
        at: line.t,
        status: line.c,
        result: line.r,
        outcome: 'lost',
        saidAt: Number.POSITIVE_INFINITY,
      });
      return;
    case 'said': {
      const one = attempt.tries.find(({ report, turn }) => report === line.k && turn === line.y)!;
      one.outcome = line.o;
      one.saidAt = line.t;
      return;
    }
    default:
      line satisfies never;
  }
}

export const appliedTries = ({ tries }: SeenAttempt): Try[] => tries.filter(({ outcome }) => outcome === 'applied');

/**
 * When it certainly was outstanding no more: the latest moment that any reading of the log allows is never used, only the
 * earliest. A report that was applied ended it when it was sent; so may have done any that nobody knows the answer of,
 * unless a later one was applied.
 */
export function surelyUntil(attempt: SeenAttempt): number {
  const [applied] = appliedTries(attempt);
  const reported = applied?.at ?? attempt.tries[0]?.at ?? Number.POSITIVE_INFINITY;
  return Math.min(
    attempt.deadline,
    reported,
    attempt.refusedAt ?? Number.POSITIVE_INFINITY,
    attempt.done?.at ?? Number.POSITIVE_INFINITY,
  );
}

/** Until when the parser had to think so: until an answer told it otherwise. */
export function knownUntil(attempt: SeenAttempt): number {
  const told = attempt.tries.find(({ outcome }) => outcome !== 'lost')?.saidAt ?? Number.POSITIVE_INFINITY;
  return Math.min(
    attempt.deadline,
    told,
    attempt.refusedAt ?? Number.POSITIVE_INFINITY,
    attempt.done?.at ?? Number.POSITIVE_INFINITY,
  );
}
