/**
 * The demo as users run it, and documents made at run time through the real service and the example parser.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, globSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, statSync } from 'node:fs';
import { copyFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { platform, tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createApi } from '../../examples/demo/api.ts';
import { startChild } from '../../examples/demo/children.ts';
import { type Document, partsOf } from '../../examples/demo/expected.ts';
import { makeDocx, makePdf } from '../support/documents.ts';
import { eventually } from '../support/eventually.ts';
import { freshDatabase } from '../support/postgres.ts';
import { endWithThisProcess, startService } from '../support/process.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const DOCUMENTS = join(ROOT, 'examples/documents');
const PARSER = join(ROOT, 'examples/parser/main.ts');
const expected: Document[] = JSON.parse(await readFile(join(DOCUMENTS, 'expected.json'), 'utf8'));

test('the demo parses all documents, shows each on the way and at the end, and leaves nothing', async (t) => {
  const before = listing(join(ROOT, 'examples'));
  const demo = startDemo(t);
  assert.equal(await demo.exited, 0, demo.output());
  const output = demo.output();
  for (const document of expected) assert.match(output, rowOf(document));
  assert.match(output, /^ {2}field-guide\.pdf +Processing +█+░* +\d+ % +page \d+ of 24$/m);
  assert.match(output, /^ {2}202 created +task 9007199254740993 version 1, priority [1-5], well-log-zh\.txt$/m);
  assert.match(output, /^ {2}202 refreshed .* contract-v2\.docx again, while it waits/m);
  assert.match(output, /^ {2}409 stale_version .* contract-v1\.docx again, too late/m);
  assert.match(output, /^ {2}200 existing .* again, while it is parsed/m);
  assert.ok(place(output, 'contract-v2.docx +Processing') < place(output, 'contract-v1.docx +Processing'));
  assert.match(output, /^All as expected\.$/m);
  assert.ok(!output.includes('\x1b'), 'no escape sequences without a terminal');
  await demo.assertNothingLeft();
  assert.deepEqual(listing(join(ROOT, 'examples')), before);
});

test('a document that is not as expected is named, and the demo fails', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'demo-documents-'));
  t.after(() => rm(folder, { recursive: true }));
  const named = (file: string) => expected.find((document) => document.file === file)!;
  const wrong = [
    { ...named('water-notice.pdf'), phrases: { first: 'the main', middle: 'not in the notice', last: 'wake you' } },
    { ...named('bakery-handbook.html'), sections: 8 },
    { ...named('kiln-photo.pdf'), failure_message_contains: 'a picture of a cat' },
    { ...named('well-log-zh.txt'), outcome: 'failed' },
  ];
  for (const { file } of wrong) await copyFile(join(DOCUMENTS, file), join(folder, file));
  await writeFile(join(folder, 'expected.json'), JSON.stringify(wrong));

  const demo = startDemo(t, '--documents', folder);
  assert.equal(await demo.exited, 1, demo.output());
  const [, unmet = ''] = demo.output().split('Not as expected:\n');
  assert.match(unmet, /^ {2}water-notice\.pdf: expected “not in the notice” in its middle page, it is not there$/m);
  assert.match(unmet, /^ {2}bakery-handbook\.html: expected 8 sections, there are 7$/m);
  assert.match(unmet, /^ {2}kiln-photo\.pdf: expected a failure that says “a picture of a cat”, it says “.*PNG image/m);
  assert.match(unmet, /^ {2}well-log-zh\.txt: expected Failed, it is Success/m);
  assert.equal(unmet.trim().split('\n').length, 4);
  await demo.assertNothingLeft();
});

test('an interrupted demo stops what it started', async (t) => {
  const demo = startDemo(t);
  await eventually(() => /Processing/.test(demo.output()), { timeoutMs: 40_000 });
  // The demo, the parser, the service and PostgreSQL: what assertNothingLeft would find.
  if (platform() === 'linux') assert.ok(demo.processes().length >= 4);
  demo.interrupt();
  assert.equal(await demo.exited, 130);
  assert.match(demo.output(), /^Interrupted by SIGINT$/m);
  await demo.assertNothingLeft();
});

test('a program that cannot start says why in its last lines', async () => {
  const child = startChild({
    name: 'docsched',
    script: join(ROOT, 'src/main.ts'),
    env: { PORT: 'eighty' },
    readyEvent: 'listening',
    onDeath: () => {},
  });
  await assert.rejects(child.listening, /docsched ended with 78; its last lines:\n.*PORT: expected integer/s);
});

test('wrong arguments are explained', async (t) => {
  const demo = startDemo(t, '--documents', join(ROOT, 'no-such-folder'));
  assert.equal(await demo.exited, 2);
  assert.match(demo.output(), /no-such-folder'\n\nUsage: npm run demo/);
});

test('words of a PDF and a DOCX made just now come back in the result of their task', async (t) => {
  const database = await freshDatabase('demo');
  const parser = startChild({
    name: 'parser',
    script: PARSER,
    env: { PORT: '0' },
    readyEvent: 'parser_listening',
    onDeath: () => {},
  });
  t.after(() => parser.stop(1_000));
  const service = await startService({
    env: { DATABASE_URL: database.url, PARSER_URL: `${await parser.listening}/parse` },
  });
  t.after(() => service.stop());
  const api = createApi(service.url, AbortSignal.timeout(30_000));
  const words = Array.from({ length: 4 }, () => randomBytes(8).toString('hex'));
  const made = [
    { task_id: '9223372036854775807', name: 'made.pdf', bytes: await makePdf(words) },
    { task_id: '0', name: 'made.docx', bytes: await makeDocx(words) },
  ];
  for (const { task_id, name, bytes } of made) {
    const payload = { name, content_base64: bytes.toString('base64') };
    const answer = await api.submit({ task_id, task_version: '7', priority: 1, payload });
    assert.deepEqual([answer.status, answer.word], [202, 'created']);
  }
  for (const { task_id } of made) {
    const task = await api.task(task_id, '7', 20);
    assert.equal(task.status, 'Success', task.status_msg ?? '');
    const texts = partsOf(task.result!).map(({ text }) => text);
    assert.equal(texts.length, words.length);
    for (const [at, word] of words.entries()) assert.ok(texts[at]!.includes(word), `${word} is not in “${texts[at]}”`);
  }
});

/** Runs the demo without a terminal, in a temporary directory of its own. */
function startDemo(t: TestContext, ...args: string[]) {
  const temporary = mkdtempSync(join(tmpdir(), 'demo-'));
  // PostgreSQL, started by root, runs as another user and must be able to pass.
  chmodSync(temporary, 0o755);
  t.after(() => rmSync(temporary, { recursive: true, force: true }));
  const { PATH = '' } = process.env;
  const child = spawn(process.execPath, ['examples/demo.ts', ...args], {
    cwd: ROOT,
    env: { PATH, TMPDIR: temporary },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  endWithThisProcess(child);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (output += text));
  return {
    output: () => output,
    exited: once(child, 'close').then(([code]) => code as number | null),
    processes: () => processesOf(temporary),
    interrupt: () => void child.kill('SIGINT'),
    async assertNothingLeft() {
      const pids = [...output.matchAll(/\(pid (\d+)/g)].map(([, pid]) => Number(pid));
      assert.equal(pids.length, 2);
      assert.deepEqual(pids.filter(isAlive), []);
      assert.deepEqual(processesOf(temporary), []);
      assert.deepEqual(readdirSync(temporary), []);
    },
  };
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** Command lines of the processes that work in `folder` or have it in their environment: PostgreSQL, parsers, all. */
function processesOf(folder: string): string[] {
  if (platform() !== 'linux') return [];
  return globSync('/proc/[0-9]*').flatMap((path) => {
    try {
      const traces = readlinkSync(`${path}/cwd`) + readFileSync(`${path}/environ`, 'utf8');
      return traces.includes(folder) ? [readFileSync(`${path}/cmdline`, 'utf8').replaceAll('\0', ' ')] : [];
    } catch {
      return [];
    }
  });
}

/** The document's row in the final table. */
function rowOf({ file, outcome, pages, sections, failure_message_contains }: Document): RegExp {
  const name = RegExp.escape(file);
  if (outcome === 'failed') {
    // A long sentence goes on in the next line.
    const words = failure_message_contains!.split(' ').map((word) => RegExp.escape(word));
    return new RegExp(`^ {2}${name} +Failed +- +\\d+\\.\\d s {2}[^]*?${words.join('\\s+')}`, 'm');
  }
  const count = pages ?? sections!;
  const parts = `${count} ${pages === undefined ? 'section' : 'page'}${count === 1 ? '' : 's'}`;
  return new RegExp(`^ {2}${name} +Success +${parts} +\\d+\\.\\d s {2}\\S.{10}`, 'm');
}

const place = (output: string, pattern: string): number => output.search(new RegExp(pattern));

/** Every file below `folder` with its size and time of change. */
function listing(folder: string): string[] {
  return globSync('**', { cwd: folder })
    .sort()
    .map((name) => {
      const { size, mtimeMs } = statSync(join(folder, name));
      return `${name} ${size} ${mtimeMs}`;
    });
}
