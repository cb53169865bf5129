/**
 * Clients that wait for a task to finish (`?wait=`), and those that follow one (events.ts). One look a quarter of a second
 * serves all of them together: each task is asked for once, however many are there for it, and answered only when there
 * is news. What this instance finishes itself is told at once. Nothing is kept for those who leave.
 *
 * Looks go one after another, and each tells only those who were there when it began. So nobody is told an older state
 * after a newer one.
 */
import type { Db } from './db.ts';
import type { Log } from './log.ts';
import { createLoop, type Loop } from './loop.ts';
import { keyText, SUCCESS, type TaskKey, type TaskRow } from './task.ts';

export type Waiter = {
  /** Resolves when the task is Success, Failed, Stopped or gone, after `timeoutMs`, or when the signal aborts. */
  wait(key: TaskKey, timeoutMs: number, signal: AbortSignal): Promise<void>;
  /**
   * Calls `tell` with the task whenever it is another than at `revision` (its update_at) or than told last; with null
   * when it is gone. States in between may be passed over, the newest never is. Returns what ends it.
   */
  follow(key: TaskKey, revision: string, tell: Tell): () => void;
  /** Tasks that are known to have finished. */
  finished(keys: TaskKey[]): void;
  start(): void;
  stop(): Promise<void>;
};

export type Tell = (row: TaskRow | null) => void;
type Follower = { revision: string; tell: Tell };
type Watched = { key: TaskKey; waiting: Set<() => void>; followers: Set<Follower> };
/** `n` counts the keys from 1. */
type NewsRow = { n: number } & (TaskRow | { status: null });

const LOOK_EVERY_MS = 250;
/** Tasks a statement. */
const MAX_KEYS = 5_000;
/** No task has it. */
const NO_REVISION = '-1';

/** With the age of the last look. */
export function createWaiter({ db, log }: { db: Db; log: Log }): Waiter & Pick<Loop, 'lastOkAgeMs' | 'trouble'> {
  const watched = new Map<string, Watched>();
  /** Followed, and finished here: looked at before their turn. */
  const soon = new Set<Watched>();
  let turn: Promise<unknown> = Promise.resolve();
  const lookAtAll = () => inTurn(() => look([...watched.values()]));
  const loop = createLoop({ name: 'waiter', intervalMs: LOOK_EVERY_MS, log, runOnce: lookAtAll });
  const { start, lastOkAgeMs, trouble } = loop;
  return { wait, follow, finished, start, stop, lastOkAgeMs, trouble };

  function wait(key: TaskKey, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      const entry = watch(key);
      const done = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', done);
        entry.waiting.delete(done);
        unwatch(entry);
        resolve();
      };
      const timer = setTimeout(done, timeoutMs);
      signal.addEventListener('abort', done);
      entry.waiting.add(done);
    });
  }

  function follow(key: TaskKey, revision: string, tell: Tell): () => void {
    const entry = watch(key);
    const follower = { revision, tell };
    entry.followers.add(follower);
    return () => {
      entry.followers.delete(follower);
      unwatch(entry);
    };
  }

  function watch(key: TaskKey): Watched {
    const text = keyText(key);
    const entry = watched.get(text) ?? { key, waiting: new Set(), followers: new Set() };
    watched.set(text, entry);
    return entry;
  }

  function unwatch(entry: Watched): void {
    const text = keyText(entry.key);
    const left = entry.waiting.size + entry.followers.size;
    if (left === 0 && watched.get(text) === entry) watched.delete(text);
  }

  function finished(keys: TaskKey[]): void {
    for (const key of keys) {
      const entry = watched.get(keyText(key));
      if (!entry) continue;
      for (const done of entry.waiting) done();
      if (entry.followers.size > 0) lookSoon(entry);
    }
  }

  function lookSoon(entry: Watched): void {
    soon.add(entry);
    if (soon.size > 1) return;
    const lookAtThese = () => {
      const entries = [...soon];
      soon.clear();
      return look(entries);
    };
    // Should it fail, the loop's next look makes up for it, and says so when it fails too.
    inTurn(lookAtThese).catch(() => {});
  }

  function inTurn<T>(work: () => Promise<T>): Promise<T> {
    const mine = turn.then(work);
    turn = mine.catch(() => {});
    return mine;
  }

  async function look(entries: Watched[]): Promise<void> {
    for (let i = 0; i < entries.length; i += MAX_KEYS) await lookAt(entries.slice(i, i + MAX_KEYS));
  }

  async function lookAt(entries: Watched[]): Promise<void> {
    const here = entries.map(({ waiting, followers }) => ({ waiting: [...waiting], followers: [...followers] }));
    const rows = await db.query<NewsRow>('find_changed', [
      entries.map(({ key }) => key.queue),
      entries.map(({ key }) => key.taskId),
      entries.map(({ key }) => key.taskVersion),
      here.map(({ waiting }) => waiting.length > 0),
      here.map(({ followers }) => knownRevision(followers)),
    ]);
    for (const { n, ...row } of rows) {
      const { waiting, followers } = here[n - 1]!;
      if (row.status === null || row.status >= SUCCESS) for (const done of waiting) done();
      for (const follower of followers) if (entries[n - 1]!.followers.has(follower)) bring(follower, row);
    }
  }

  /** Nobody is left waiting. */
  async function stop(): Promise<void> {
    await loop.stop();
    for (const { waiting } of [...watched.values()]) for (const done of waiting) done();
  }
}

/** What all of them know; when they differ, one that makes the task be answered whatever it is. */
function knownRevision(followers: Follower[]): string | null {
  const revision = followers[0]?.revision ?? null;
  return followers.every((follower) => follower.revision === revision) ? revision : NO_REVISION;
}

function bring(follower: Follower, row: TaskRow | { status: null }): void {
  if (row.status === null) follower.tell(null);
  else if (row.update_at !== follower.revision) {
    follower.revision = row.update_at;
    follower.tell(row);
  }
}
