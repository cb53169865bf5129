/** Writes a recorded run into the documents, between `<!-- name -->` and `<!-- /name -->`. The words around are ours. */
import { readFileSync, writeFileSync } from 'node:fs';
import type { Run } from './run.ts';
import { scaleTables } from './scale.ts';
import { outcomeTable, runHeader, targetTable } from './table.ts';

const DOCS = new URL('../../docs/', import.meta.url);

export function writeDocuments(run: Run): void {
  const outcomes = run.outcomes.map(outcomeTable).join('\n\n');
  writeParts('performance.md', { run: runHeader(run), targets: targetTable(run), outcomes });
  const scale = scaleTables(run);
  if (scale) writeParts('scale.md', scale);
}

/** Replaces parts of a document in docs/, by their names. */
export function writeParts(name: string, parts: Record<string, string>): void {
  const path = new URL(name, DOCS);
  let document = readFileSync(path, 'utf8');
  for (const [part, content] of Object.entries(parts)) {
    const [from, to] = [`<!-- ${part} -->`, `<!-- /${part} -->`];
    if (!document.includes(from) || !document.includes(to)) throw new Error(`docs/${name} has no ${from} ... ${to}`);
    const [before] = document.split(from);
    const after = document.slice(document.indexOf(to));
    document = `${before}${from}\n\n${content}\n\n${after}`;
  }
  writeFileSync(path, document);
}
