/**
 * A process of the benchmark (load generator, stub parser, a contestant's application) and the questions put to it. Both
 * ends are here: `startChild` for the one that starts it, `answerRequests` for the process itself. A child whose starter
 * is gone ends by itself.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { endWithThisProcess } from '../../test/support/process.ts';

export type Child = {
  pid: number;
  /** What the process said it is, once ready. */
  ready: Record<string, unknown>;
  /** Runs one of the handlers given to `answerRequests`; rejects with its error, or when the process ends. */
  ask<T>(name: string, argument?: unknown): Promise<T>;
  /** SIGTERM and wait. */
  stop(): Promise<void>;
};

type Request = { id: number; name: string; argument: unknown };
type Answer = { id: number; value?: unknown; error?: string };
type Waiting = { resolve(value: unknown): void; reject(error: Error): void };

const STOP_TIMEOUT_MS = 15_000;

/** `file` is relative to bench/. Resolves when the process called `answerRequests`. */
export async function startChild(file: string, env: Record<string, string>, nodeArgs: string[] = []): Promise<Child> {
  const path = fileURLToPath(new URL(`../${file}`, import.meta.url));
  const { PATH = '', TMPDIR = '/tmp' } = process.env;
  const child = fork(path, [], {
    env: { PATH, TMPDIR, NODE_ENV: 'production', ...env },
    execArgv: nodeArgs,
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    serialization: 'advanced',
  });
  endWithThisProcess(child);
  const waiting = new Map<number, Waiting>();
  child.once('exit', (code, signal) => {
    for (const { reject } of waiting.values()) reject(new Error(`${file} ended with ${code ?? signal}`));
  });
  const ready = await firstWord(child, file);
  child.on('message', ({ id, value, error }: Answer) => {
    const waiter = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) waiter?.resolve(value);
    else waiter?.reject(new Error(`${file}: ${error}`));
  });
  let asked = 0;
  return {
    pid: child.pid!,
    ready,
    ask: <T>(name: string, argument?: unknown) =>
      new Promise<T>((resolve, reject) => {
        const id = ++asked;
        waiting.set(id, { resolve: resolve as Waiting['resolve'], reject });
        child.send({ id, name, argument } satisfies Request);
      }),
    stop: () => endChild(child),
  };
}

async function firstWord(child: ChildProcess, file: string): Promise<Record<string, unknown>> {
  return new Promise((resolve, reject) => {
    child.once('message', (said) => resolve(said as Record<string, unknown>));
    child.once('exit', (code, signal) => reject(new Error(`${file} did not start: ${code ?? signal}`)));
  });
}

async function endChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, 'exit');
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS);
  child.kill('SIGTERM');
  await exited;
  clearTimeout(timer);
}

type Handlers = Record<string, (argument: never) => unknown>;

/** The child's side. `stop` runs on SIGTERM before the process exits. */
export function answerRequests(handlers: Handlers, ready: object = {}, stop: () => unknown = () => {}): void {
  process.on('message', async ({ id, name, argument }: Request) => {
    try {
      process.send!({ id, value: await handlers[name]!(argument as never) } satisfies Answer);
    } catch (error) {
      process.send!({ id, error: (error as Error).stack ?? String(error) } satisfies Answer);
    }
  });
  process.once('disconnect', () => process.exit(1));
  process.once('SIGTERM', async () => {
    await stop();
    process.exit(0);
  });
  process.send!(ready);
}
