/**
 * The service's own texts with one place changed: statements, functions, scripts, or TypeScript, which is changed while
 * it is imported. The place must be there exactly once; else whoever moved it is asked to look at the mutant again.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { registerHooks } from 'node:module';
import { loadScripts, loadStatements } from '../../src/schema.ts';
import type { Texts } from './ground.ts';
import { loadParts } from './parts.ts';

export type Change = {
  /** Path beginnings under the repository, among whose files the place is looked for. */
  in: string;
  find: string;
  replace: string;
};

const ROOT = new URL('../../', import.meta.url);
/** Changed sources that were not imported yet, by their URLs, each with a query of its own, which all they import gets too. */
const sources = new Map<string, string>();
let mutants = 0;
let hooked = false;

/** What the ground of the mutant stands on. */
export async function mutate(change: Change): Promise<Texts> {
  const { path, text } = changed(change);
  const name = path.slice(path.lastIndexOf('/') + 1, path.lastIndexOf('.'));
  if (path.startsWith('schema/functions/')) return { functions: [text] };
  if (path.startsWith('schema/queries/')) return { statements: { ...loadStatements(), [name]: text } };
  if (path.startsWith('schema/scripts/')) return { scripts: { ...loadScripts(), [name]: text } };
  const suffix = `?mutant=${++mutants}`;
  sources.set(new URL(path, ROOT).href + suffix, text);
  hook();
  const parts = await loadParts(suffix);
  assert.equal(sources.size, 0, `${path} is no part of the service here`);
  return { parts };
}

/** The one file that has the place, and its changed text. */
export function changed({ in: where, find, replace }: Change): { path: string; text: string } {
  const folder = where.slice(0, where.lastIndexOf('/'));
  const paths = readdirSync(new URL(folder, ROOT), { recursive: true, encoding: 'utf8' })
    .map((name) => `${folder}/${name}`)
    .filter((path) => path.startsWith(where) && /\.(sql|lua|ts)$/.test(path));
  const found = paths.flatMap((path) => {
    const parts = readFileSync(new URL(path, ROOT), 'utf8').split(find);
    return Array.from({ length: parts.length - 1 }, () => ({ path, text: parts.join(replace) }));
  });
  assert.equal(found.length, 1, `the anchor moved: '${find}' is in ${where} ${found.length} times, not once`);
  return found[0]!;
}

/** A module of src that a mutant imports is the mutant's own, too. */
function hook(): void {
  if (hooked) return;
  hooked = true;
  registerHooks({
    resolve(specifier, context, next) {
      const resolved = next(specifier, context);
      const query = /\?mutant=\d+$/.exec(context.parentURL ?? '')?.[0];
      return query && resolved.url.startsWith(`${ROOT.href}src/`) && !resolved.url.endsWith(query)
        ? { ...resolved, url: resolved.url + query }
        : resolved;
    },
    load(url, context, next) {
      const source = sources.get(url);
      if (source === undefined) return next(url, context);
      sources.delete(url);
      return { format: 'module-typescript', source, shortCircuit: true };
    },
  });
}
