/** What the documents say is what the code does: settings, error codes, routes, jobs, files. */
import assert from 'node:assert/strict';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { SETTINGS } from '../../src/config.ts';
import { ERROR_CODES } from '../../src/errors.ts';
import { openApiDocument } from '../../src/openapi.ts';
import { queueSettings, redriveRequest } from '../../src/queue-shape.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** Cells of every table row whose first cell is a bare word. */
const rows = (text: string): string[][] =>
  text
    .split('\n')
    .filter((line) => /^\| [A-Za-z_]+ \|/.test(line))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );

test('the settings table of the README is the one of config.ts', () => {
  const documented = rows(read('README.md')).filter(([name]) => /^[A-Z_]+$/.test(name!));
  const actual = Object.entries(SETTINGS).map(([name, [, fallback, meaning]]) => [
    name,
    fallback === null ? '' : `\`${fallback}\``,
    meaning,
  ]);
  assert.deepEqual(documented, actual);
});

test('docs/errors.md lists every error code with its status and title', () => {
  const documented = rows(read('docs/errors.md'))
    .filter(([, status]) => /^\d+$/.test(status!))
    .map((cells) => cells.slice(0, 3));
  const actual = Object.entries(ERROR_CODES).map(([code, [status, title]]) => [code, String(status), title]);
  assert.deepEqual(documented, actual);
});

test('docs/queues.md lists every setting of a queue, and every member of a redrive', () => {
  const { properties, required: _ } = z.toJSONSchema(queueSettings, { io: 'input', unrepresentable: 'any' });
  const members = (of: unknown): string[] => Object.keys((of as { properties?: object } | undefined)?.properties ?? {});
  const object = (of: unknown) => (of as { anyOf?: unknown[] }).anyOf?.[0] as { items?: unknown } | undefined;
  const names = Object.entries(properties!).flatMap(([name, of]) => {
    if (name === 'queue') return [];
    if (name === 'targets') return [name, ...members(object(of)?.items).map((member) => `targets[].${member}`)];
    const own = name === 'priority_weights' ? [] : members(object(of));
    return own.length === 0 ? [name] : own.map((member) => `${name}.${member}`);
  });
  const documented = [...read('docs/queues.md').matchAll(/^\| `([\w.[\]]+)` \|/gm)].map(([, name]) => name!);
  assert.deepEqual(
    documented.toSorted(),
    [...names, ...members(z.toJSONSchema(redriveRequest, { io: 'input' }))].toSorted(),
  );
});

test('the README names every route of /openapi.json', () => {
  const readme = read('README.md');
  const paths = Object.keys(openApiDocument().paths as object).map((path) => path.replace('{task_version}', '{v}'));
  const named = (path: string) => readme.includes(path) || readme.includes(`.../${path.split('/').at(-1)}`);
  assert.deepEqual(
    paths.filter((path) => !named(path)),
    [],
  );
});

test('every reason a statement gives is explained in docs/errors.md', () => {
  const explained = rows(read('docs/errors.md')).filter(([, state]) => /^(Failed|Stopped)$/.test(state!));
  const names = explained.map(([name]) => name).toSorted();
  const known = ['cancelled', 'in_doubt_expired', 'parser_failed', 'pending_expired', 'processing_expired', 'refused'];
  assert.deepEqual(names, [...known, 'result_too_large', 'retention', 'superseded', 'try_failed']);
});

test('docs/design.md names every job of the watcher', () => {
  const [, section = ''] = read('docs/design.md').split('\n## Jobs\n');
  const named = [...section.split('\n## ')[0]!.matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name!);
  const jobs = [...read('src/main.ts').matchAll(/name: '(\w+)',\s+schedule:/g)].map(([, name]) => name!);
  assert.ok(jobs.length > 0);
  assert.deepEqual(named.toSorted(), jobs.toSorted());
});

test('every file and folder that a document names is there, and every heading that it leads to', () => {
  const documents = ['README.md', ...globSync('{docs,deploy,examples}/**/*.md', { cwd: ROOT })];
  const headings = (path: string) =>
    [...read(path).matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
      heading!
        .toLowerCase()
        .replaceAll(' ', '-')
        .replace(/[^\w-]/g, ''),
    );
  const missing = documents.flatMap((document) => {
    const text = read(document);
    const named = [...text.matchAll(/`((?:src|schema|test|docs|examples|deploy|bench)\/[\w./-]+)`/g)].map(
      ([, path]) => path!,
    );
    const led = [...text.matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)/g)].map(([, path, heading]) => ({
      path: path ? join(dirname(document), path) : document,
      heading,
    }));
    return [...named.map((path) => ({ path, heading: undefined })), ...led]
      .filter(({ path, heading }) => !existsSync(join(ROOT, path)) || (heading && !headings(path).includes(heading)))
      .map(({ path, heading }) => `${document}: ${path}${heading ? `#${heading}` : ''}`);
  });
  assert.deepEqual(missing, []);
});
