/** A run as Markdown: what was reached, then every scenario's medians and spread. */
import type { Line, Outcome, Target } from '../scenarios/scenario.ts';
import type { Run } from './run.ts';

export function runHeader({ startedAt, durationS, quick, machine, versions, settings }: Run): string {
  const listed = (values: Record<string, string>) =>
    Object.entries(values)
      .map(([name, value]) => `${name} ${value}`)
      .join(', ');
  return [
    `Run of ${startedAt.slice(0, 10)}${quick ? ' (--quick: its numbers prove nothing)' : ''}, ${Math.round(durationS / 60)} minutes,`,
    `on ${machine.cores} cores (${machine.cpu}), ${machine.memoryGb} GB, ${machine.system}, shared by everything that takes part.`,
    `${listed(versions)}.`,
    `PostgreSQL: ${listed(settings)}.`,
  ].join('\n');
}

export function targetTable({ outcomes, failures }: Run): string {
  const rows = outcomes.flatMap((outcome) => outcome.targets.map((target) => targetRow(outcome, target)));
  const failed = failures.map(
    ({ ids, error }) => `| ${ids.join(', ')} | did not complete: ${error.split('\n')[0]} | | | | |`,
  );
  return [
    '| # | ratio of medians | measured | rounds | wanted | |',
    '|---|---|---|---|---|---|',
    ...rows,
    ...failed,
  ].join('\n');
}

function targetRow({ title }: Outcome, { id, of, ratio, spread, wanted, reached }: Target): string {
  const sign = wanted.at === 'least' ? '>=' : '<=';
  const rounds = `${spread[0].toFixed(2)} .. ${spread[1].toFixed(2)}`;
  return `| ${id} | ${title}: ${of} | **${ratio.toFixed(2)}** | ${rounds} | ${sign} ${wanted.value} | ${reached ? 'reached' : '**missed**'} |`;
}

export const outcomeTable = ({ id, title, lines, notes }: Outcome): string =>
  [
    `**${id}. ${title}**`,
    '',
    '| | | median | lowest | highest | rounds |',
    '|---|---|---|---|---|---|',
    ...lines.map(lineRow),
    ...notes.map((note) => `\n${note}`),
  ].join('\n');

const lineRow = ({ contestant, measure, unit, summary }: Line): string =>
  `| ${contestant} | ${measure}, ${unit} | ${shown(summary.median)} | ${shown(summary.min)} | ${shown(summary.max)} | ${summary.values.length} |`;

/** Three significant digits are all that such a run can tell. */
export function shown(value: number): string {
  if (value === 0) return '0';
  if (Math.abs(value) >= 1000) return Math.round(Number(value.toPrecision(3))).toLocaleString('en-US');
  return String(Number(value.toPrecision(3)));
}
