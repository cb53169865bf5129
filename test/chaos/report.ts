/** What a run ends with: one table. */
import type { Verdict } from './checker.ts';
import type { Breach } from './evidence.ts';

/** Breaches shown of each rule. */
const SHOWN = 5;

export function tableOf(verdict: Verdict): string {
  const { tasks, attempts, queues, faults, successShare } = verdict;
  const rows: (readonly string[])[] = [
    ['tasks accepted', whole(tasks.accepted)],
    ['  Success / Failed / Stopped', [tasks.success, tasks.failed, tasks.stopped].map(whole).join(' / ')],
    ['  of those that could succeed', percent(successShare)],
    ['older versions refused', whole(tasks.stale)],
    ['attempts pushed', whole(attempts.pushed)],
    ['callbacks applied / duplicate', `${whole(attempts.applied)} / ${whole(attempts.duplicates)}`],
    ['parsers that broke the contract', `${whole(attempts.traitors)} times (not judged)`],
    [],
    ['queue', 'limit', 'most outstanding', 'time at the limit'],
    ...queues.map(({ queue, limit, most, atLimit }) => [
      `  ${queue}`,
      String(limit),
      String(most),
      atLimit === null ? 'no time without faults' : percent(atLimit),
    ]),
    [],
    ['fault', 'struck', 'in its gap', 'recovered: median', 'longest'],
    ...faults.map(({ kind, fired, hits, recovery }) => [
      `  ${kind}`,
      String(fired),
      String(hits),
      milliseconds(recovery.medianMs),
      milliseconds(recovery.maxMs),
    ]),
    [],
    ['promises broken', whole(verdict.breaches.length)],
  ];
  return `${align(rows)}${verdict.breaches.length === 0 ? '' : `\n${listOf(verdict.breaches)}`}`;
}

export const whole = (count: number): string => count.toLocaleString('en-US');
export const percent = (share: number): string => `${(share * 100).toFixed(1)}%`;
export const milliseconds = (ms: number | null): string => (ms === null ? 'not seen' : `${whole(Math.round(ms))} ms`);

function align(rows: readonly (readonly string[])[]): string {
  const widths = [0, 1, 2, 3].map((column) => Math.max(...rows.map((row) => (row[column] ?? '').length)));
  return rows
    .map((row) =>
      row
        .map((cell, column) => (column === row.length - 1 ? cell : cell.padEnd(widths[column] ?? 0)))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

function listOf(breaches: readonly Breach[]): string {
  return [...Map.groupBy(breaches, ({ rule }) => rule)]
    .map(([rule, all]) => {
      const shown = all.slice(0, SHOWN).map(({ what }) => `    ${what}`);
      const more = all.length > SHOWN ? [`    and ${all.length - SHOWN} more`] : [];
      return [`  ${rule}: ${all.length}`, ...shown, ...more].join('\n');
    })
    .join('\n');
}
