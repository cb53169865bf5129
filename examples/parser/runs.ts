/**
 * All runs of this parser: the slots, the memory of attempts, the counters, and the way down.
 * An attempt is remembered after its end, so a push that docsched had to repeat never parses twice.
 */
import type { Logger } from 'pino';
import { createDeliver } from './deliver.ts';
import type { DocumentRef } from './document.ts';
import { failed, type Outcome } from './outcome.ts';
import type { Post } from './post.ts';
import type { Push } from './push.ts';
import { type Run, startRun } from './run.ts';
import type { Limits } from './settings.ts';

/** Ended attempts kept in mind. docsched repeats a push within seconds if at all, so this is generous. */
const REMEMBERED_MAX = 10_000;
/** Finished results that wait for docsched to come back, each up to RESULT_MAX_BYTES: beyond it no more work is taken. */
const UNDELIVERED_MAX = 32;
/** On the way down: first for parses to end by themselves, then for the last reports to be taken. */
const FINISH_MS = 10_000;
const LAST_REPORTS_MS = 3_000;

export type Acceptance = 'accepted' | 'repeated' | 'late' | 'busy' | 'stopping';

export type RunsDeps = { slots: number; limits: Limits; post: Post; log: Logger };

export type Runs = {
  /** True for a running attempt and for one that ended not long ago. */
  knows: (attemptId: string) => boolean;
  /** Decides and starts in one synchronous step, so two equal pushes cannot both start. */
  accept: (push: Push, document: DocumentRef, traceparent: string | undefined) => Acceptance;
  stats: () => Record<
    'active' | 'slots' | 'undelivered' | 'accepted' | 'rejected_busy' | 'completed' | 'failed' | 'cancelled',
    number
  >;
  /** Takes nothing more, lets parses finish, ends the rest as failed; returns how many reports could not be delivered. */
  stop: () => Promise<number>;
};

export function createRuns({ slots, limits, post, log }: RunsDeps): Runs {
  const cutOff = new AbortController();
  const deps = { limits, post, deliver: createDeliver({ post, signal: cutOff.signal }) };
  const unsettled = new Map<string, Run>();
  const parsing = new Set<string>();
  const ended = createMemory(REMEMBERED_MAX);
  const counts = { accepted: 0, rejected_busy: 0, completed: 0, failed: 0, cancelled: 0 };
  let isStopping = false;

  const knows = (attemptId: string) => unsettled.has(attemptId) || ended.has(attemptId);
  const undelivered = () => unsettled.size - parsing.size;

  function start(push: Push, document: DocumentRef, traceparent: string | undefined): void {
    const id = push.attempt_id;
    const runLog = log.child({ attempt: id.slice(0, 8), task_id: push.task_id, task_version: push.task_version });
    runLog.info({ event: 'push_accepted', document: document.name });
    const onParsed = (outcome: Outcome) => {
      parsing.delete(id);
      counts[COUNT_OF[outcome.kind]] += 1;
    };
    const run = startRun(deps, { push, traceparent, document, onParsed, log: runLog });
    parsing.add(id);
    unsettled.set(id, run);
    counts.accepted += 1;
    void run.settled.then(() => {
      unsettled.delete(id);
      ended.add(id);
    });
  }

  return {
    knows,
    accept(push, document, traceparent) {
      if (knows(push.attempt_id)) return 'repeated';
      if (isStopping) return 'stopping';
      if (push.deadline <= Date.now()) return 'late';
      if (parsing.size >= slots || undelivered() >= UNDELIVERED_MAX) {
        counts.rejected_busy += 1;
        return 'busy';
      }
      start(push, document, traceparent);
      return 'accepted';
    },
    stats: () => ({ active: parsing.size, slots, undelivered: undelivered(), ...counts }),
    async stop() {
      isStopping = true;
      await within(FINISH_MS, allSettled(unsettled));
      for (const id of parsing) unsettled.get(id)!.end(SHUT_DOWN);
      await within(LAST_REPORTS_MS, allSettled(unsettled));
      const lost = unsettled.size;
      cutOff.abort();
      await allSettled(unsettled);
      return lost;
    },
  };
}

const COUNT_OF = { parsed: 'completed', failed: 'failed', cancelled: 'cancelled', abandoned: 'cancelled' } as const;

const SHUT_DOWN = failed('stopped', 'The parser was shut down before the document was done.');

const allSettled = (runs: Map<string, Run>) => Promise.all([...runs.values()].map((run) => run.settled));

/** Keeps the newest `max` ids. */
function createMemory(max: number) {
  const ids = new Set<string>();
  return {
    has: (id: string) => ids.has(id),
    add(id: string) {
      ids.add(id);
      if (ids.size > max) ids.delete(ids.values().next().value!);
    },
  };
}

async function within(limitMs: number, work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise((resolve) => {
    timer = setTimeout(resolve, limitMs);
  });
  await Promise.race([work, limit]);
  clearTimeout(timer);
}
