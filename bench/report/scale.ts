/** S10: what a load needs, worked out from the measured cost of a task. docs/scale.md explains each step. */
import type { Line } from '../scenarios/scenario.ts';
import type { Run } from './run.ts';
import { shown } from './table.ts';

const LOADS = [100, 1_000, 10_000, 100_000];
/** A core is planned to be this busy: the rest is for peaks, vacuum and failover. */
const BUSY = 0.6;
const DAY_S = 86_400;
/** What one primary is taken to bear: cores, and WAL that its disk and its replicas keep up with. */
const PRIMARY_CORES = 32;
const PRIMARY_WAL_BYTES_S = 200e6;

/** Of one task. CPU in microseconds. */
type Cost = { serviceUs: number; postgresUs: number; redisUs: number; walBytes: number; storedBytes: number };

/** null when the run lacks the scenarios it needs (S4, S5, S8). */
export function scaleTables({ outcomes }: Run): Record<string, string> | null {
  const lines = (id: string) => outcomes.find((outcome) => outcome.id === id)?.lines;
  const [s4, s5, s8] = [lines('S4'), lines('S5'), lines('S8')];
  if (!s4 || !s5 || !s8) return null;
  const storedBytes = median(s5, /filled/, 'stored size');
  const single = costOf(s8, /^docsched$/, storedBytes);
  const batch = costOf(s4, /batch$/, storedBytes);
  return { costs: costTable(single, batch), single: loadTable(single), batch: loadTable(batch) };
}

function median(lines: Line[], contestant: RegExp, measure: string): number {
  const found = lines.find((line) => contestant.test(line.contestant) && line.measure === measure);
  if (!found) throw new Error(`the run has no '${measure}' of ${contestant}`);
  return found.summary.median;
}

const costOf = (lines: Line[], contestant: RegExp, storedBytes: number): Cost => ({
  serviceUs: median(lines, contestant, 'service CPU'),
  postgresUs: median(lines, contestant, 'PostgreSQL CPU'),
  redisUs: median(lines, contestant, 'Redis CPU'),
  walBytes: median(lines, contestant, 'WAL'),
  storedBytes,
});

const costTable = (single: Cost, batch: Cost): string =>
  [
    '| a task | single calls | batches of 100 |',
    '|---|---|---|',
    `| service CPU | ${shown(single.serviceUs)} us | ${shown(batch.serviceUs)} us |`,
    `| PostgreSQL CPU | ${shown(single.postgresUs)} us | ${shown(batch.postgresUs)} us |`,
    `| Redis CPU | ${shown(single.redisUs)} us | ${shown(batch.redisUs)} us |`,
    `| WAL | ${shown(single.walBytes)} bytes | ${shown(batch.walBytes)} bytes |`,
    `| stored (row, attempt, version floor, indexes) | ${shown(single.storedBytes)} bytes | ${shown(batch.storedBytes)} bytes |`,
  ].join('\n');

const loadTable = (cost: Cost): string =>
  [
    '| tasks/s | tasks a day | instances | PostgreSQL cores | Redis cores | WAL | stored a day | installations |',
    '|---|---|---|---|---|---|---|---|',
    ...LOADS.map((load) => loadRow(load, cost)),
  ].join('\n');

function loadRow(load: number, { serviceUs, postgresUs, redisUs, walBytes, storedBytes }: Cost): string {
  const cores = (us: number) => (load * us) / 1e6 / BUSY;
  const megabytes = (bytes: number) => `${shown(bytes / 1e6)} MB`;
  const cells = [
    shown(load),
    `${shown((load * DAY_S) / 1e6)} M`,
    String(Math.max(2, Math.ceil(cores(serviceUs)))),
    shown(cores(postgresUs)),
    shown(cores(redisUs)),
    `${megabytes(load * walBytes)}/s`,
    `${shown((load * DAY_S * storedBytes) / 1e9)} GB`,
    // Redis runs its scripts on one core.
    String(
      Math.ceil(Math.max(cores(postgresUs) / PRIMARY_CORES, cores(redisUs), (load * walBytes) / PRIMARY_WAL_BYTES_S)),
    ),
  ];
  return `| ${cells.join(' | ')} |`;
}
