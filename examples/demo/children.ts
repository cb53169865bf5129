/**
 * A child process of the demo: the service or the parser. It has a process group of its own, so that Ctrl-C reaches the
 * demo alone and the demo stops its children: for them a second signal means to drop everything. It sees none of the
 * demo's own environment beside what every program needs, so a DATABASE_URL of the user's stays untouched.
 */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

export type Child = {
  name: string;
  pid: number;
  /** Base URL, once it listens. Rejects with its last log lines when it ends before or takes too long. */
  listening: Promise<string>;
  /** SIGTERM, a second one after `graceMs`, SIGKILL if even that does not help; true when it ended by itself with 0. */
  stop(graceMs: number): Promise<boolean>;
};

/** Making a database takes 3 s, and longer on a slow disk. */
const START_LIMIT_MS = 40_000;
const KILL_AFTER_MS = 10_000;
const LAST_LINES = 20;
const INHERITED = ['PATH', 'HOME', 'TMPDIR', 'TEMP', 'SystemRoot', 'LANG', 'TZ'];

/** `readyEvent` is the log line that carries the URL; `onDeath` hears of an end that was not asked for. */
export function startChild(options: {
  name: string;
  script: string;
  env: Record<string, string>;
  readyEvent: string;
  onDeath: (error: Error) => void;
}): Child {
  const { name, script, readyEvent, onDeath } = options;
  const inherited = INHERITED.flatMap((key) => (process.env[key] === undefined ? [] : [[key, process.env[key]]]));
  const child = spawn(process.execPath, [script], {
    detached: true,
    env: { ...Object.fromEntries(inherited), ...options.env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const lines: string[] = [];
  const listening = Promise.withResolvers<string>();
  const ended = Promise.withResolvers<number | null>();
  const killOnExit = () => child.kill('SIGTERM');
  let isStopping = false;

  const troubled = (what: string) => new Error(`${name} ${what}; its last lines:\n${lines.join('\n') || '(none)'}`);
  const timer = setTimeout(
    () => listening.reject(troubled(`did not listen within ${START_LIMIT_MS / 1000} s`)),
    START_LIMIT_MS,
  );
  const receive = (line: string) => {
    if (lines.push(line) > LAST_LINES) lines.shift();
    const event = parse(line);
    if (event.event === readyEvent) listening.resolve(String(event.url));
  };
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on('line', receive);
  child.once('error', (error) => receive(error.message));
  child.once('close', (code, signal) => {
    process.off('exit', killOnExit);
    const death = troubled(`ended with ${code ?? signal}`);
    listening.reject(death);
    ended.resolve(code);
    if (!isStopping) onDeath(death);
  });
  process.once('exit', killOnExit);
  listening.promise.catch(() => {}).finally(() => clearTimeout(timer));

  return { name, pid: child.pid ?? 0, listening: listening.promise, stop };

  async function stop(graceMs: number): Promise<boolean> {
    isStopping = true;
    // The service hears signals once its PostgreSQL is there; killed before, it would leave it behind half made.
    await listening.promise.catch(() => {});
    child.kill('SIGTERM');
    const second = setTimeout(() => child.kill('SIGTERM'), graceMs);
    const last = setTimeout(() => child.kill('SIGKILL'), graceMs + KILL_AFTER_MS);
    const code = await ended.promise;
    clearTimeout(second);
    clearTimeout(last);
    return code === 0;
  }
}

function parse(line: string): Record<string, unknown> {
  try {
    return Object(JSON.parse(line));
  } catch {
    return {};
  }
}
