/**
 * Runs one parse in a thread of its own with a heap limit and a time limit. Whatever the document does in there
 * (an endless loop, a memory bomb, a crash), this side gets an outcome, and the thread is gone when it does.
 */
import { Worker } from 'node:worker_threads';
import type { DocumentRef, WorkerInput, WorkerMessage } from './document.ts';
import { failed, type Outcome } from './outcome.ts';
import type { Limits } from './settings.ts';

export type Part = Extract<WorkerMessage, { kind: 'part' }>;

export type Isolated = {
  /** Never rejects. Settles after the thread has ended. */
  outcome: Promise<Outcome>;
  /** Ends the thread; `outcome` is the one given, unless the parse ended first. */
  end: (outcome: Outcome) => void;
};

export function parseIsolated(document: DocumentRef, limits: Limits, onPart: (part: Part) => void): Isolated {
  const ended = Promise.withResolvers<Outcome>();
  const worker = new Worker(new URL('./worker.ts', import.meta.url), {
    workerData: { document, limits } satisfies WorkerInput,
    resourceLimits: { maxOldGenerationSizeMb: limits.memoryMb },
  });
  worker.on('message', (message: WorkerMessage) => {
    if (message.kind === 'part') onPart(message);
    else ended.resolve(message.outcome);
  });
  worker.on('error', (error) => ended.resolve(crashed(error, document.name, limits.memoryMb)));
  worker.on('exit', () =>
    ended.resolve(failed('parser_fault', `The thread parsing ${document.name} ended without a result.`)),
  );
  const timeout = setTimeout(() => ended.resolve(tookTooLong(document.name, limits.timeoutMs)), limits.timeoutMs);
  const outcome = ended.promise.then(async (value) => {
    clearTimeout(timeout);
    await worker.terminate();
    return value;
  });
  return { outcome, end: ended.resolve };
}

function crashed(error: unknown, name: string, memoryMb: number): Outcome {
  const code = (error as { code?: unknown } | null)?.code;
  return code === 'ERR_WORKER_OUT_OF_MEMORY'
    ? failed('out_of_memory', `${name} needs more than the ${memoryMb} MB of memory a parse may use.`)
    : failed('parser_fault', `The parser failed on ${name}: ${String(error)}`);
}

const tookTooLong = (name: string, timeoutMs: number) =>
  failed('timed_out', `${name} was not parsed within ${timeoutMs} ms.`);
