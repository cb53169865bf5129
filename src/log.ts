/**
 * One JSON line per event on stdout (pino). `event` is stable and greppable, `msg` is for people.
 * Never logged: payloads, results, secrets, words of parsers, whole attempt ids. What is logged of tasks: journal.ts.
 */
import { type Logger, pino } from 'pino';

export type Log = Logger;

/** What a log line shows of an attempt id: the id is a capability, so only its first 8 characters. */
export const shortId = (attemptId: string): string => attemptId.slice(0, 8);

/** `level` is pino's: trace, debug, info, warn, error, fatal, silent. */
export function createLog(level: string): Log {
  return pino({
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
  });
}
