/** What a folder's expected.json says must come out of each document, and what did not. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import type { Part, Task } from './api.ts';

const DOCUMENT = z.object({
  file: z.string(),
  media_type: z.string(),
  task_id: z.string(),
  task_version: z.string(),
  outcome: z.enum(['success', 'failed']),
  pages: z.int().optional(),
  sections: z.int().optional(),
  phrases: z.object({ first: z.string(), middle: z.string(), last: z.string() }).optional(),
  failure_message_contains: z.string().optional(),
});
export type Document = z.output<typeof DOCUMENT>;

/** The documents of a folder. Throws an Error that says what is wrong with the folder. */
export function readDocuments(folder: string): Document[] {
  const path = join(folder, 'expected.json');
  try {
    return z
      .array(DOCUMENT)
      .min(1)
      .parse(JSON.parse(readFileSync(path, 'utf8')));
  } catch (cause) {
    const why = cause instanceof z.ZodError ? z.prettifyError(cause) : (cause as Error).message;
    throw new Error(`cannot read ${path}: ${why}`, { cause });
  }
}

/** One sentence for each expectation that `task` does not meet. */
export function unmetBy(document: Document, task: Task): string[] {
  const wanted = document.outcome === 'success' ? 'Success' : 'Failed';
  const said = task.status_msg === null ? '' : ` (${task.status_msg})`;
  if (task.status !== wanted) return [`${document.file}: expected ${wanted}, it is ${task.status}${said}`];
  return (wanted === 'Failed' ? unmetFailure : unmetResult)(document, task).map((what) => `${document.file}: ${what}`);
}

function unmetFailure({ failure_message_contains: part = '' }: Document, { status_msg }: Task): string[] {
  return status_msg?.includes(part) ? [] : [`expected a failure that says “${part}”, it says “${status_msg}”`];
}

function unmetResult(document: Document, { result }: Task): string[] {
  if (!result) return ['expected a result, there is none'];
  const unmet: string[] = [];
  if (result.media_type !== document.media_type)
    unmet.push(`expected ${document.media_type}, it is ${result.media_type}`);
  for (const kind of ['pages', 'sections'] as const)
    if (result[kind]?.length !== document[kind])
      unmet.push(`expected ${document[kind] ?? 'no'} ${kind}, there are ${result[kind]?.length ?? 'none'}`);
  const parts = partsOf(result);
  const { first = '', middle = '', last = '' } = document.phrases ?? {};
  const places = [
    ['first', parts[0], first],
    ['middle', parts[Math.floor(parts.length / 2)], middle],
    ['last', parts.at(-1), last],
  ] as const;
  for (const [place, part, phrase] of places)
    if (!holds(part, phrase))
      unmet.push(`expected “${phrase}” in its ${place} ${result.pages ? 'page' : 'section'}, it is not there`);
  return unmet;
}

export const partsOf = (result: { pages?: Part[]; sections?: Part[] }): Part[] => result.pages ?? result.sections ?? [];

/** Lines break anywhere, so white space does not count. */
const holds = (part: Part | undefined, phrase: string): boolean =>
  part !== undefined && dense(`${part.heading ?? ''}${part.text}`).includes(dense(phrase));

const dense = (text: string): string => text.replace(/\s+/g, '');
