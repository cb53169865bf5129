/** Writes the figures of a run into docs/reliability.md, between the marks of its limiter. */
import { readFileSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { fileURLToPath } from 'node:url';
import type { Arguments } from './arguments.ts';
import type { Verdict } from './checker.ts';
import { tableOf, whole } from './report.ts';

const FILE = fileURLToPath(new URL('../../docs/reliability.md', import.meta.url));
const GIB = 2 ** 30;

export type Run = Arguments & { command: string; startedAt: Date; verdict: Verdict; stores: string };

export function record(run: Run): void {
  writeFileSync(FILE, recorded(readFileSync(FILE, 'utf8'), run));
}

/** The document with this run in the place of the one before. Throws when there is no place for it. */
export function recorded(document: string, { command, limiter, startedAt, verdict, stores }: Run): string {
  const [begin, end] = [`<!-- chaos ${limiter} -->`, `<!-- /chaos ${limiter} -->`];
  const [from, to] = [document.indexOf(begin), document.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`docs/reliability.md has no place between '${begin}' and '${end}'`);
  const faults = verdict.faults.reduce((sum, { fired }) => sum + fired, 0);
  const text = [
    begin,
    '',
    `\`${command}\`, begun ${startedAt.toISOString().slice(0, 16).replace('T', ' ')} UTC: ${whole(verdict.tasks.accepted)} tasks, ` +
      `${whole(faults)} faults, ${whole(verdict.breaches.length)} promises broken.`,
    `Machine: ${machine()}, ${stores}.`,
    '',
    '```text',
    tableOf(verdict),
    '```',
    '',
    '',
  ].join('\n');
  return document.slice(0, from) + text + document.slice(to);
}

function machine(): string {
  const [core] = cpus();
  return `${cpus().length} cores (${core?.model.trim()}), ${Math.round(totalmem() / GIB)} GiB, node ${process.versions.node}`;
}
