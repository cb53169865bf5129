/** The rules of the house: who may import whom, one door to each library, sizes, statements that exist and are used. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const COMPONENTS = ['inserter', 'pusher', 'receiver', 'watcher', 'limiter', 'trigger'];
/** The files through which a library is used. */
const DOORS: Record<string, string[]> = {
  pg: ['db.ts', 'schema.ts'],
  ioredis: ['redis.ts'],
  express: [
    'http.ts',
    'health.ts',
    'tasks.ts',
    'events.ts',
    'queue-routes.ts',
    'inserter/route.ts',
    'receiver/route.ts',
  ],
  redlock: ['watcher/lease.ts'],
  'node-cron': ['watcher/watcher.ts', 'config.ts'],
  undici: ['pusher/parser-client.ts'],
  pino: ['log.ts'],
  'prom-client': ['metrics.ts'],
  'node-pg-migrate': ['schema.ts'],
  '@opentelemetry/api': ['trace.ts', 'log.ts'],
};
const MAX_LINES = 300;

type Import = { file: string; target: string; typeOnly: boolean };

const walk = (folder: string, extension: string): string[] =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith(extension))
    .map((name) => name.replaceAll('\\', '/'))
    .toSorted();
const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const sources = walk('src', '.ts');

function importsOf(file: string): Import[] {
  const statements = read(`src/${file}`).matchAll(/^import ([^;]*?)from '([^']+)';/gms);
  return [...statements].map(([, clause = '', target = '']) => ({
    file,
    target: target.startsWith('.') ? normalize(join(dirname(file), target)) : target,
    typeOnly: clause.startsWith('type ') || isAllTypes(clause),
  }));
}

/** `{ type A, type B }` */
const isAllTypes = (clause: string): boolean =>
  /^\{[^}]*\}\s*$/.test(clause) &&
  clause
    .replace(/[{}]/g, '')
    .split(',')
    .every((name) => /^\s*(type .*)?\s*$/.test(name));

const componentOf = (file: string): string | undefined => COMPONENTS.find((name) => file.startsWith(`${name}/`));
const imports = sources.flatMap(importsOf);

test('components never import values of each other', () => {
  const wrong = imports.filter(({ file, target, typeOnly }) => {
    const [from, to] = [componentOf(file), componentOf(target)];
    return !typeOnly && from !== undefined && to !== undefined && from !== to;
  });
  assert.deepEqual(wrong, []);
});

test('root files never import values of a component, main.ts aside', () => {
  const wrong = imports.filter(
    ({ file, target, typeOnly }) => !typeOnly && file !== 'main.ts' && !componentOf(file) && componentOf(target),
  );
  assert.deepEqual(wrong, []);
});

test('each library has its doors', () => {
  const wrong = imports.filter(
    ({ file, target, typeOnly }) => !typeOnly && target in DOORS && !DOORS[target]!.includes(file),
  );
  assert.deepEqual(wrong, []);
});

test('only config.ts and telemetry.ts read the environment', () => {
  const readers = sources.filter((file) => /process\.env/.test(read(`src/${file}`)));
  assert.deepEqual(
    readers.filter((file) => !['main.ts', 'telemetry.ts'].includes(file)),
    [],
  );
});

test('no source file is longer than the house allows', () => {
  const long = sources.filter((file) => read(`src/${file}`).split('\n').length > MAX_LINES);
  assert.deepEqual(long, []);
});

test('every statement and script is used, and every one used exists', () => {
  const code = sources.map((file) => read(`src/${file}`)).join('\n');
  const stored = [
    ...walk('schema/queries', '.sql').map((name) => name.slice(0, -4)),
    ...walk('schema/scripts', '.lua').map((name) => name.slice(0, -4)),
  ];
  assert.deepEqual(
    stored.filter((name) => !code.includes(`'${name}'`)),
    [],
  );
  const used = [...code.matchAll(/\.(?:query|script)(?:<[^(]*>)?\(\s*'([a-z_]+)'/g)].map(([, name]) => name!);
  assert.deepEqual(
    used.filter((name) => !stored.includes(name)),
    [],
  );
});

test('every statement says what it is for', () => {
  for (const name of walk('schema/queries', '.sql')) assert.match(read(`schema/queries/${name}`), /^-- \S/, name);
});

test('no test is skipped, focused or left to do', () => {
  const mark = /\b(?:it|test|describe)\.(?:only|skip|todo)\b/;
  const files = walk('test', '.test.ts');
  assert.ok(files.length > 5);
  assert.deepEqual(
    files.filter((file) => mark.test(read(`test/${file}`))),
    [],
  );
});

test('the lock file names no registry host', () => {
  assert.doesNotMatch(read('package-lock.json'), /"resolved"/);
});
