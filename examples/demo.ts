/**
 * `npm run demo`: the whole system on this machine in under a minute, with nothing prepared. It starts the example
 * parser and docsched with a PostgreSQL of its own, submits real documents over HTTP, shows them being parsed, and holds
 * what came out against expected.json. What it started is stopped and what it wrote is removed, after Ctrl-C too.
 * Exit codes: 0 all as expected, 1 something not, 2 wrong arguments, 130 interrupted.
 */
import { mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs, styleText } from 'node:util';
import { type Api, createApi } from './demo/api.ts';
import { type Child, startChild } from './demo/children.ts';
import { type Document, readDocuments, unmetBy } from './demo/expected.ts';
import { stopPostgresOf } from './demo/postgres.ts';
import { printTable, progressLines } from './demo/report.ts';
import { createScreen, fold, type Screen } from './demo/screen.ts';
import { submitAll } from './demo/submit.ts';

const pathOf = (name: string) => fileURLToPath(new URL(name, import.meta.url));

/** Documents parsed at once: the queue's limit and the parser's slots. Few, so that documents have to wait. */
const AT_ONCE = 3;
/** Pause after each page or section, long enough to see them pass: docsched keeps a progress report a second. */
const PAGE_DELAY_MS = 500;
/** All documents must be done within this. */
const LIMIT_MS = 45_000;
const LOOK_EVERY_MS = 150;
/** How long a child may finish what it does: at the end there is nothing left, and after Ctrl-C nobody wants it. */
const GRACE_MS = 15_000;
const GRACE_INTERRUPTED_MS = 500;
/** As shells say it: 128 + SIGINT. */
const EXIT_INTERRUPTED = 130;
const EXIT_USAGE = 2;

const HELP = `Usage: npm run demo [-- --documents DIR]

Starts the example parser and docsched on free ports of this machine, docsched with a PostgreSQL of
its own in the temporary directory. Submits the documents of DIR, shows them being parsed, prints
what came out and checks it. Then stops all of it and removes the database.

  --documents DIR   folder with documents and an expected.json (default: examples/documents,
                    whose README.md describes the file)
  --help            this text

Exit code: 0 when every document came out as expected, 1 when not, 130 after Ctrl-C.
Environment: NO_COLOR=1 for plain text, TMPDIR for another temporary directory. DATABASE_URL and
REDIS_URL are not used.
`;

type Stage = { screen: Screen; folder: string; home: string; children: Child[]; stopping: AbortController };

/** Starts both programs; the service needs to know the parser, so the parser comes first. */
async function start({ screen, folder, home, children, stopping }: Stage): Promise<string> {
  const begun = performance.now();
  const launch = async (name: string, script: string, readyEvent: string, env: Record<string, string>) => {
    const child = startChild({
      name,
      script: pathOf(script),
      readyEvent,
      env: { PORT: '0', ...env },
      onDeath: (error) => stopping.abort(error),
    });
    children.push(child);
    const url = await within(stopping.signal, child.listening);
    const seconds = ((performance.now() - begun) / 1000).toFixed(1);
    screen.say(`  ${name.padEnd(8)}  ${url}  (pid ${child.pid}, ready after ${seconds} s)`);
    return url;
  };
  const parserUrl = await launch('parser', './parser/main.ts', 'parser_listening', {
    DOCUMENTS_DIR: folder,
    PARSER_SLOTS: String(AT_ONCE),
    PAGE_DELAY_MS: String(PAGE_DELAY_MS),
  });
  return launch('docsched', '../src/main.ts', 'listening', {
    DATA_DIR: home,
    PARSER_URL: `${parserUrl}/parse`,
    MAX_PROCESSING: String(AT_ONCE),
  });
}

/** Draws the progress until all documents are done or LIMIT_MS is over; returns the most that were parsed at once. */
async function follow(api: Api, documents: Document[], { screen, stopping }: Stage): Promise<number> {
  const until = performance.now() + LIMIT_MS;
  for (let most = 0; ; ) {
    const tasks = await api.tasks();
    screen.draw(progressLines(documents, tasks, screen.width));
    const running = tasks.filter(({ status }) => status === 'Processing').length;
    most = Math.max(most, running);
    const isDone = running === 0 && tasks.every(({ status }) => status !== 'Pending');
    if (isDone || performance.now() > until) return most;
    await sleep(LOOK_EVERY_MS, undefined, { signal: stopping.signal });
  }
}

/** The demo itself; returns what was not as expected. */
async function play(documents: Document[], stage: Stage): Promise<string[]> {
  const { screen, stopping } = stage;
  const title = (text: string) => screen.say(`\n${styleText('bold', text)}`);
  title('Starting');
  const api = createApi(await start(stage), stopping.signal);
  title(`Submitting ${documents.length} documents; at most ${AT_ONCE} are parsed at once`);
  const begun = performance.now();
  const submitted = await submitAll({ api, documents, atOnce: AT_ONCE, say: screen.say, signal: stopping.signal });
  title('Parsing');
  const most = await follow(api, documents, stage);
  screen.end();
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  title(`Done in ${seconds} s`);
  const tasks = await Promise.all(documents.map((document) => api.task(document.task_id, document.task_version)));
  printTable(documents, tasks, screen);
  return [
    ...submitted.unmet,
    ...submitted.unmetOrder(tasks),
    ...(most > AT_ONCE ? [`expected at most ${AT_ONCE} documents parsed at once, there were ${most}`] : []),
    ...documents.flatMap((document, at) => unmetBy(document, tasks[at]!)),
  ];
}

async function run({ documents, folder }: Given): Promise<number> {
  const stopping = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    process.on(signal, () => stopping.abort(new Interrupted(`Interrupted by ${signal}`)));
  // Whoever reads along may leave, as `| head` does.
  process.stdout.on('error', (error) => stopping.abort(error));
  const home = mkdtempSync(join(tmpdir(), 'docsched-demo-'));
  const stage: Stage = { screen: createScreen(process.stdout), folder, home, children: [], stopping };
  try {
    const unmet = await play(documents, stage);
    await stop(stage, unmet);
    await remove(home);
    return conclude(documents, unmet, stage.screen);
  } catch (error) {
    stage.screen.end();
    // A child that dies breaks its connections a moment before its end is known.
    await sleep(200);
    const cause = stopping.signal.aborted ? stopping.signal.reason : error;
    explain(cause);
    stopping.abort(cause);
    await stop(stage, []);
    await remove(home);
    return cause instanceof Interrupted ? EXIT_INTERRUPTED : 1;
  }
}

async function remove(home: string): Promise<void> {
  await stopPostgresOf(home);
  rmSync(home, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
}

/** Returns the exit code. */
function explain(error: Error): number {
  console.error(`\n${error.message}${error.cause instanceof Error ? `: ${error.cause.message}` : ''}`);
  return 1;
}

class Interrupted extends Error {}

async function stop({ screen, children, stopping }: Stage, unmet: string[]): Promise<void> {
  const graceMs = stopping.signal.aborted ? GRACE_INTERRUPTED_MS : GRACE_MS;
  if (stopping.signal.aborted) screen.say('Stopping what was started.');
  const areWell = await Promise.all(children.map((child) => child.stop(child.name === 'parser' ? graceMs : GRACE_MS)));
  for (const [at, isWell] of areWell.entries())
    if (!isWell) unmet.push(`${children[at]!.name} did not stop gracefully`);
}

function conclude(documents: Document[], unmet: string[], screen: Screen): number {
  if (unmet.length > 0) {
    screen.say(`\n${styleText(['bold', 'red'], 'Not as expected:')}`);
    for (const line of unmet) screen.say(`  ${line}`);
    return 1;
  }
  const failed = documents.filter(({ outcome }) => outcome === 'failed').length;
  const wasEdited = new Set(documents.map(({ task_id }) => task_id)).size < documents.length;
  const shown = [
    `${documents.length} documents were stored in PostgreSQL, pushed to the parser as its ${AT_ONCE} slots became free, and settled`,
    "by the parser's callbacks.",
    failed > 0 ? `${failed} had to fail and say why.` : '',
    wasEdited ? 'A new version overtook the older one that still waited.' : '',
    'Both programs are stopped and their database is removed.',
    'Next: `npm start` serves the API on http://127.0.0.1:8080 and keeps its data in .docsched; set PARSER_URL to your',
    'parser. README.md tells the rest, examples/parser/README.md how to write a parser.',
  ];
  screen.say(`\n${styleText(['bold', 'green'], 'All as expected.')}`);
  for (const line of fold(shown.join(' '), Math.min(screen.width, 100))) screen.say(line);
  return 0;
}

/** `work`, unless the signal aborts first. */
function within<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  if (signal.aborted) reject(signal.reason);
  return Promise.race([work, promise]);
}

type Given = { folder: string; documents: Document[] };

function readArguments(): Given | number {
  try {
    const { values } = parseArgs({ options: { documents: { type: 'string' }, help: { type: 'boolean' } } });
    if (values.help) {
      process.stdout.write(HELP);
      return 0;
    }
    const folder = realpathSync(values.documents ?? pathOf('./documents'));
    return { folder, documents: readDocuments(folder) };
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${HELP}`);
    return EXIT_USAGE;
  }
}

const read = readArguments();
process.exitCode = typeof read === 'number' ? read : await run(read).catch(explain);
