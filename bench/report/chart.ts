/** A run as one SVG: a panel a scenario, a bar a contestant, whiskers from the lowest to the highest round. */
import type { Line, Outcome } from '../scenarios/scenario.ts';
import type { Run } from './run.ts';
import { shown } from './table.ts';

const WIDTH = 860;
const LABELS = 250;
const BAR = 16;
const ROW = 24;
const HEAD = 44;
const GAP = 18;
const MARGIN = 16;
const OURS = '#1f6feb';
const THEIRS = '#9aa4b2';
const INK = '#1f2328';
/** The others are in the tables only. */
const CHARTED = new Set([
  'stored',
  'whole lives',
  'claimed and completed',
  'accepted to push, p99',
  'WAL',
  'all CPU',
  'CPU',
  'resident memory',
]);
const FONT = 'font-family="system-ui, sans-serif"';

export function drawChart(run: Run): string {
  let y = MARGIN;
  const panels = run.outcomes
    .flatMap((outcome) => panelsOf(outcome))
    .map((panel) => {
      const drawn = drawPanel(panel, y);
      y += HEAD + panel.lines.length * ROW + GAP;
      return drawn;
    });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${y}" viewBox="0 0 ${WIDTH} ${y}" role="img">`,
    `<title>docsched and its peers, run of ${run.startedAt.slice(0, 10)}</title>`,
    `<rect width="${WIDTH}" height="${y}" fill="#ffffff"/>`,
    ...panels,
    '</svg>',
  ].join('\n');
}

type Panel = { title: string; unit: string; lines: Line[] };

/** One panel a measure: bars of different units do not share an axis. */
function panelsOf({ id, title, lines }: Outcome): Panel[] {
  const charted = lines.filter(({ measure }) => CHARTED.has(measure));
  const measures = [...Map.groupBy(charted, (line) => `${line.measure}, ${line.unit}`)];
  return measures.map(([measure, group]) => ({
    title: measures.length === 1 ? `${id}  ${title}` : `${id}  ${title}: ${group[0]!.measure}`,
    unit: measure.slice(measure.lastIndexOf(', ') + 2),
    lines: group,
  }));
}

function drawPanel({ title, unit, lines }: Panel, top: number): string {
  const most = Math.max(...lines.map(({ summary }) => summary.max), Number.MIN_VALUE);
  const scale = (value: number) => (value / most) * (WIDTH - LABELS - MARGIN * 2 - 90);
  const heading = text(MARGIN, top + 16, `${title} (${unit})`, 'font-weight="600" font-size="14"');
  return [heading, ...lines.map((line, i) => drawBar(line, top + HEAD + i * ROW - 12, scale))].join('\n');
}

function drawBar({ contestant, summary }: Line, y: number, scale: (value: number) => number): string {
  const { median, min, max } = summary;
  const from = MARGIN + LABELS;
  const middle = y + BAR / 2;
  const [left, right] = [from + scale(min), from + scale(max)];
  const fill = /^(docsched|\d+ instances)/.test(contestant) ? OURS : THEIRS;
  return [
    text(from - 8, middle + 4, contestant, 'font-size="12" text-anchor="end"'),
    `<rect x="${from}" y="${y}" width="${scale(median).toFixed(1)}" height="${BAR}" fill="${fill}"/>`,
    `<path d="M${left.toFixed(1)} ${middle}H${right.toFixed(1)}M${left.toFixed(1)} ${middle - 4}v8M${right.toFixed(1)} ${middle - 4}v8" stroke="${INK}" fill="none"/>`,
    text(right + 8, middle + 4, shown(median), 'font-size="12"'),
  ].join('\n');
}

const text = (x: number, y: number, content: string, style: string): string =>
  `<text x="${x.toFixed(1)}" y="${y}" fill="${INK}" ${FONT} ${style}>${escaped(content)}</text>`;

const escaped = (content: string): string =>
  content.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
