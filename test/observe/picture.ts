/** Draws what Prometheus answered for the panels of a dashboard, as plain SVG: small line charts, three in a row. */
export type Line = { name: string; points: [atS: number, value: number][] };
export type Drawn = { title: string; unit: string; lines: Line[] };

const PANEL = { width: 380, height: 210 };
const PLOT = { left: 52, top: 30, width: 316, height: 110 };
const COLUMNS = 3;
const MAX_LEGENDS = 6;
const COLORS = ['#3b73b9', '#d9822b', '#5a9e4b', '#b0413e', '#7d5ba6', '#4aa5a8', '#8a6d3b', '#c2578b'];

const escapeXml = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');

function short(value: number, unit: string): string {
  if (unit === 'bytes') return `${(value / 1048576).toFixed(0)} MiB`;
  if (unit === 'percentunit') return `${(value * 100).toFixed(0)}%`;
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 1 ? 1 : 3;
  return `${value.toFixed(digits)}${unit === 's' ? ' s' : unit === 'ops' ? '/s' : ''}`;
}

const peak = ({ points }: Line): number => Math.max(...points.map(([, value]) => value).filter(Number.isFinite));

function drawPanel({ title, unit, lines: all }: Drawn, index: number): string {
  // The largest first: they get the colours that are used once, and the legends.
  const lines = all.toSorted((a, b) => peak(b) - peak(a));
  const points = lines.flatMap((line) => line.points).filter(([, value]) => Number.isFinite(value));
  const times = points.map(([at]) => at);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const values = points.map(([, value]) => value);
  const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const x = (at: number) => PLOT.left + ((at - from) / Math.max(to - from, 1)) * PLOT.width;
  const y = (value: number) => PLOT.top + PLOT.height * (1 - (value - low) / (high - low));
  const curves = lines.map(({ points }, i) => {
    const path = points
      .filter(([, value]) => Number.isFinite(value))
      .map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`);
    return `<polyline fill="none" stroke="${COLORS[i % COLORS.length]}" stroke-width="1.3" points="${path.join(' ')}"/>`;
  });
  const legends = lines.slice(0, MAX_LEGENDS).map(({ name }, i) => {
    const [left, top] = [PLOT.left + (i % 3) * 108, PLOT.top + PLOT.height + 22 + Math.floor(i / 3) * 16];
    return `<text x="${left}" y="${top}" fill="${COLORS[i % COLORS.length]}">${escapeXml(name.slice(0, 17))}</text>`;
  });
  const [left, top] = [(index % COLUMNS) * PANEL.width, 40 + Math.floor(index / COLUMNS) * PANEL.height];
  return `<g transform="translate(${left},${top})">
<text x="10" y="18" font-size="13" fill="#222">${escapeXml(title)}</text>
<path d="M${PLOT.left} ${PLOT.top}v${PLOT.height}h${PLOT.width}" fill="none" stroke="#bbb"/>
<text x="${PLOT.left - 5}" y="${PLOT.top + 8}" text-anchor="end" fill="#666">${short(high, unit)}</text>
<text x="${PLOT.left - 5}" y="${PLOT.top + PLOT.height}" text-anchor="end" fill="#666">${short(low, unit)}</text>
${curves.join('\n')}
${legends.join('\n')}
</g>`;
}

export function renderDashboard(title: string, panels: readonly Drawn[]): string {
  const [width, height] = [COLUMNS * PANEL.width, 40 + Math.ceil(panels.length / COLUMNS) * PANEL.height];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="10">
<rect width="100%" height="100%" fill="#fff"/>
<text x="10" y="26" font-size="17" fill="#222">${escapeXml(title)}</text>
${panels.map(drawPanel).join('\n')}
</svg>
`;
}
