/**
 * The service as a child process, to be stopped, killed and frozen like a real one. It gets the environment given and
 * nothing else of the tests' own. No child outlives the test process, unless that one is killed by SIGKILL.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** A JSON line of the log as an object; empty for any other line. */
export type Event = Record<string, unknown>;
export type Exit = { code: number | null; signal: NodeJS.Signals | null };
export type RunningService = {
  /** Base URL from the `listening` event; empty until then, and with `ready: false`. */
  readonly url: string;
  pid: number;
  /** What it wrote to stdout and stderr: the last MAX_LINES lines. */
  lines: readonly string[];
  /** The first line, written already or still to come, that `matches` accepts. */
  waitForLine(matches: (event: Event, line: string) => boolean, timeoutMs?: number): Promise<Event>;
  exited: Promise<Exit>;
  /** SIGTERM and wait; `ms` from signal to exit. SIGKILL after 30 s. */
  stop(): Promise<Exit & { ms: number }>;
  /** SIGKILL and wait. */
  kill(): Promise<Exit>;
  pause(): void;
  resume(): void;
};

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const MAX_LINES = 10_000;
const READY_TIMEOUT_MS = 30_000;
const STOP_TIMEOUT_MS = 30_000;

const children = new Set<ChildProcess>();
let watching = false;

/** Kills the child when this process exits, be it by one of the usual signals. */
export function endWithThisProcess(child: ChildProcess): void {
  exitOnSignals();
  children.add(child);
  child.once('exit', () => children.delete(child));
}

/** Turns the usual signals into an exit, so that `exit` hooks run. */
export function exitOnSignals(): void {
  if (watching) return;
  watching = true;
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1));
  process.once('exit', () => {
    for (const child of children) child.kill('SIGKILL');
  });
}

/**
 * `ready: false` returns at once, for a service that is expected not to start. `nodeArgs` stand before src/main.ts. `root`:
 * another version's directory.
 */
export async function startService(options: {
  env: Record<string, string>;
  ready?: boolean;
  nodeArgs?: string[];
  root?: string;
}): Promise<RunningService> {
  const { PATH = '', TMPDIR = '/tmp' } = process.env;
  const child = spawn(process.execPath, [...(options.nodeArgs ?? []), 'src/main.ts'], {
    cwd: options.root ?? ROOT,
    env: { PATH, TMPDIR, PORT: '0', ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  endWithThisProcess(child);
  const service = watch(child);
  if (options.ready === false) return service;
  try {
    await service.waitForLine((event) => event.event === 'listening', READY_TIMEOUT_MS);
  } catch (error) {
    await service.kill();
    throw error;
  }
  return service;
}

function watch(child: ChildProcess): RunningService {
  const { lines, waitForLine, close } = readLines(child);
  const exited = new Promise<Exit>((settle) =>
    child.once('close', (code, signal) => {
      close(`ended with ${code ?? signal}`);
      settle({ code, signal });
    }),
  );
  let url = '';
  waitForLine((event) => event.event === 'listening', Number.POSITIVE_INFINITY).then(
    (event) => {
      url = String(event.url);
    },
    () => {},
  );
  const end = async (signal: NodeJS.Signals) => {
    const startedAt = performance.now();
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS);
    child.kill(signal);
    const exit = await exited;
    clearTimeout(timer);
    return { ...exit, ms: performance.now() - startedAt };
  };
  return {
    get url() {
      return url;
    },
    pid: child.pid!,
    lines,
    waitForLine,
    exited,
    stop: () => end('SIGTERM'),
    kill: () => end('SIGKILL'),
    pause: () => void child.kill('SIGSTOP'),
    resume: () => void child.kill('SIGCONT'),
  };
}

type Waiting = {
  matches: (event: Event, line: string) => boolean;
  settle(event: Event): void;
  giveUp(why: string): void;
};

function readLines(child: ChildProcess) {
  const lines: string[] = [];
  const waiting = new Set<Waiting>();
  let closedBecause: string | undefined;
  const receive = (line: string) => {
    lines.push(line);
    if (lines.length > MAX_LINES) lines.shift();
    const event = parse(line);
    for (const waiter of waiting) if (waiter.matches(event, line)) waiter.settle(event);
  };
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream! }).on('line', receive);

  const waitForLine: RunningService['waitForLine'] = (matches, timeoutMs = 10_000) =>
    new Promise((resolve, reject) => {
      const end = (settle: () => void) => {
        clearTimeout(timer);
        waiting.delete(waiter);
        settle();
      };
      const waiter: Waiting = {
        matches,
        settle: (event) => end(() => resolve(event)),
        giveUp: (why) =>
          end(() => reject(new Error(`no such line from the service (${why}):\n${lines.slice(-30).join('\n')}`))),
      };
      const timer = Number.isFinite(timeoutMs)
        ? setTimeout(() => waiter.giveUp(`${timeoutMs} ms`), timeoutMs)
        : undefined;
      waiting.add(waiter);
      const seen = lines.find((line) => matches(parse(line), line));
      if (seen !== undefined) waiter.settle(parse(seen));
      else if (closedBecause) waiter.giveUp(closedBecause);
    });
  const close = (why: string) => {
    closedBecause = why;
    for (const waiter of waiting) waiter.giveUp(why);
  };
  return { lines, waitForLine, close };
}

function parse(line: string): Event {
  if (!line.startsWith('{')) return {};
  try {
    return JSON.parse(line);
  } catch {
    return {};
  }
}
