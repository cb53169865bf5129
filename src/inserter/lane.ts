/**
 * Where submits wait whose task another transaction holds, apart from all others. They hold no connection meanwhile: all
 * of them are tried again together, in one statement every 5 to 100 ms, each task less often the longer it is held. While
 * a task's submits wait here its later ones join them, so that their order holds and nobody else pays for it.
 * Crash: whatever waits here was not answered.
 */
import type { Submit, SubmitOutcome } from './inserter.ts';

export type Lane = {
  /** Whether submits of this one's task wait here. */
  holds(submit: Submit): boolean;
  /** The outcome once the task is free; `locked` when it is held for too long, or too many wait here. Never rejects. */
  wait(submit: Submit, arrivedAtMs: number): Promise<SubmitOutcome>;
  /** Resolves when nothing waits here. */
  idle(): Promise<void>;
};

export type LaneDeps = {
  /** Stores what it can in one commit, without waiting for any task; outcomes in order. */
  run: (submits: Submit[]) => Promise<SubmitOutcome[]>;
  keyOf: (submit: Submit) => string;
};

/** outcome: `locked` until it is decided. */
type Waiting = {
  task: Task;
  submit: Submit;
  giveUpAt: number;
  outcome: SubmitOutcome;
  resolve: (outcome: SubmitOutcome) => void;
};
/** Submits of one task, in order of arrival. */
type Task = { key: string; waiting: Waiting[]; tries: number; dueAt: number };

/** Most holders are commits on their way, over in a few ms; the others are somebody's long transactions. */
const FIRST_PAUSE_MS = 5;
const MAX_PAUSE_MS = 100;
/** With the last pause 2 s. */
export const GIVE_UP_AFTER_MS = 1_900;
/** Of a try. Beyond this many of one task the statement, which decides them one after another, only gets longer. */
const MAX_ROWS_A_TASK = 16;
const MAX_ROWS = 256;
const MAX_BYTES = 16 * 1024 * 1024;
/** Waiting beyond this is refused at once: memory stays bounded. */
const MAX_WAITING_ROWS = 5_000;
const MAX_WAITING_BYTES = 128 * 1024 * 1024;

const LOCKED: SubmitOutcome = { outcome: 'locked' };
const isLocked = ({ outcome }: Waiting): boolean => outcome.outcome === 'locked';

export function createLane({ run, keyOf }: LaneDeps): Lane {
  /** In the order in which they are tried. */
  const tasks = new Map<string, Task>();
  let rows = 0;
  let bytes = 0;
  let running = false;
  let timer: NodeJS.Timeout | undefined;
  let timerAt = Number.POSITIVE_INFINITY;
  const idleListeners: (() => void)[] = [];

  return { holds: (submit) => tasks.has(keyOf(submit)), wait, idle };

  function wait(submit: Submit, arrivedAtMs: number): Promise<SubmitOutcome> {
    if (rows >= MAX_WAITING_ROWS || bytes + submit.payload.length > MAX_WAITING_BYTES) return Promise.resolve(LOCKED);
    return new Promise((resolve) => {
      const key = keyOf(submit);
      const task = tasks.get(key) ?? { key, waiting: [], tries: 0, dueAt: performance.now() + FIRST_PAUSE_MS };
      tasks.set(key, task);
      task.waiting.push({ task, submit, giveUpAt: arrivedAtMs + GIVE_UP_AFTER_MS, outcome: LOCKED, resolve });
      rows += 1;
      bytes += submit.payload.length;
      schedule(task.dueAt);
    });
  }

  function schedule(at: number): void {
    if (running || at >= timerAt) return;
    clearTimeout(timer);
    timerAt = at;
    timer = setTimeout(tryDue, Math.max(0, at - performance.now()));
  }

  async function tryDue(): Promise<void> {
    timerAt = Number.POSITIVE_INFINITY;
    running = true;
    const due = takeDue(performance.now());
    const submits = due.map(({ submit }) => submit);
    const outcomes = await run(submits).catch((error) => submits.map(() => ({ outcome: 'failed' as const, error })));
    for (const [index, one] of due.entries()) one.outcome = outcomes[index]!;
    const now = performance.now();
    for (const task of new Set(due.map(({ task }) => task))) putOff(task, now);
    for (const task of [...tasks.values()]) answer(task, now);
    running = false;
    if (tasks.size > 0) schedule(Math.min(...[...tasks.values()].map(({ dueAt }) => dueAt)));
    else for (const listener of idleListeners.splice(0)) listener();
  }

  /** What may go into one statement; of each task the first ones. Those due within the same moment go together. */
  function takeDue(now: number): Waiting[] {
    const due: Waiting[] = [];
    let dueBytes = 0;
    for (const task of tasks.values()) {
      if (task.dueAt > now + FIRST_PAUSE_MS) continue;
      for (const one of task.waiting.slice(0, MAX_ROWS_A_TASK)) {
        const size = one.submit.payload.length;
        if (due.length === MAX_ROWS || (due.length > 0 && dueBytes + size > MAX_BYTES)) break;
        due.push(one);
        dueBytes += size;
      }
    }
    return due;
  }

  /** To the end of the line; a task that is still held for longer each time. */
  function putOff(task: Task, now: number): void {
    const isHeld = isLocked(task.waiting[0]!);
    task.tries = isHeld ? task.tries + 1 : 0;
    task.dueAt = isHeld ? now + Math.min(FIRST_PAUSE_MS * 2 ** task.tries, MAX_PAUSE_MS) : now;
    tasks.delete(task.key);
    tasks.set(task.key, task);
  }

  /** Answers what was decided, and what waited for too long. */
  function answer(task: Task, now: number): void {
    task.waiting = task.waiting.filter((one) => {
      if (isLocked(one) && now < one.giveUpAt) return true;
      rows -= 1;
      bytes -= one.submit.payload.length;
      one.resolve(one.outcome);
      return false;
    });
    if (task.waiting.length === 0) tasks.delete(task.key);
  }

  function idle(): Promise<void> {
    if (tasks.size === 0) return Promise.resolve();
    return new Promise((resolve) => idleListeners.push(resolve));
  }
}
