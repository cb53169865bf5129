/** How tasks are shown: a line each while they are worked on, a table when they are done. */
import type { Task } from './api.ts';
import { type Document, partsOf } from './expected.ts';
import { type Cell, fold, row, type Screen, widest } from './screen.ts';
import { taskOf } from './submit.ts';

const BAR_WIDTH = 16;
const STYLES = { Pending: 'dim', Processing: 'cyan', Success: 'green', Failed: 'red', Stopped: 'yellow' } as const;

/** One line a document, in the order given. */
export function progressLines(documents: Document[], tasks: Task[], width: number): string[] {
  const names = widest(documents.map(({ file }) => file));
  return documents.map((document) => {
    const task = taskOf(document, tasks);
    const status = task?.status ?? 'Pending';
    const cells: Cell[] = [
      { text: '' },
      { text: document.file },
      { text: status, style: STYLES[status] },
      ...(status === 'Processing' ? bar(task?.progress ?? null) : []),
    ];
    return row(cells, [0, names, 'Processing'.length, BAR_WIDTH, '100 %'.length], width);
  });
}

function bar(progress: Task['progress']): Cell[] {
  const percent = Math.round(progress?.percent ?? 0);
  const full = Math.round((percent / 100) * BAR_WIDTH);
  return [
    { text: '█'.repeat(full) + '░'.repeat(BAR_WIDTH - full), style: 'cyan' },
    { text: `${percent} %`, align: 'right' },
    { text: progress?.message ?? '' },
  ];
}

const HEADS = ['', 'Document', 'Outcome', 'Parts', 'Time', 'First words, or why it failed'];

/** Outcome, size, time from claim to end, and the first words or the whole failure. */
export function printTable(documents: Document[], tasks: Task[], { width, say }: Screen): void {
  const rows = documents.map(({ file }, at) => cellsOf(file, tasks[at]!));
  const widths = HEADS.slice(0, -1).map((head, at) => widest([head, ...rows.map((cells) => cells[at]!.text)]));
  const left = width - widths.reduce((sum, each) => sum + each + 2, 0);
  say(
    row(
      HEADS.map((text) => ({ text, style: 'bold' })),
      widths,
      width,
    ),
  );
  for (const [at, cells] of rows.entries()) {
    const last = cells.pop()!;
    const [first = '', ...others] = tasks[at]!.status === 'Success' ? [last.text] : fold(last.text, left);
    say(row([...cells, { ...last, text: first }], widths, width));
    for (const text of others) say(row([...cells.map(() => ({ text: '' })), { text }], widths, width));
  }
}

function cellsOf(file: string, { status, result, started_at, finished_at, status_msg }: Task): Cell[] {
  const parts = result ? partsOf(result) : [];
  const kind = result?.pages ? 'page' : 'section';
  const ms = started_at !== null && finished_at !== null ? finished_at - started_at : null;
  const firstWords = `${parts[0]?.heading ?? ''} ${parts[0]?.text ?? ''}`.slice(0, 500);
  return [
    { text: '' },
    { text: file },
    { text: status, style: STYLES[status] },
    { text: parts.length === 0 ? '-' : `${parts.length} ${kind}${parts.length === 1 ? '' : 's'}` },
    { text: ms === null ? '-' : `${(ms / 1000).toFixed(1)} s`, align: 'right' },
    { text: status === 'Success' ? firstWords : (status_msg ?? 'not done in time') },
  ];
}
