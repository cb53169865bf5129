/**
 * Group commit: single calls that arrive while others are on their way to PostgreSQL share one statement and one
 * commit. A call's promise settles only after the commit of its group, so an answer sent after it is durable.
 *
 * A group leaves as soon as a place is free: a lone call waits for nothing; under load, groups grow by themselves.
 * Two entries with the same key are never on their way at once: in one statement it could not be told which came first,
 * and in two the later one would wait for the earlier one's lock.
 * Crash: whatever was not committed was not answered.
 */
import { AppError } from './errors.ts';

export type GroupCommit<Entry, Result> = {
  /** Resolves after the commit of the entry's group. Rejects with `overloaded` when too much waits already. */
  add(entry: Entry): Promise<Result>;
  /** Entries waiting or on their way. */
  pending(): number;
  /** Resolves when nothing is waiting or on its way. */
  idle(): Promise<void>;
};

export type GroupCommitDeps<Entry, Result> = {
  /** Runs one group in one commit; answers in the order of the entries. */
  run: (entries: Entry[]) => Promise<Result[]>;
  /** Entries with equal keys go one after another. */
  keyOf: (entry: Entry) => string;
  /** Bytes an entry holds in memory, roughly. */
  sizeOf: (entry: Entry) => number;
};

/** Rows a group: beyond a few hundred a statement only gets longer, and with it everyone's wait. */
const MAX_ROWS = 256;
/** Bytes a group: keeps one statement's parameters far below PostgreSQL's 1 GB message limit. */
const MAX_BYTES = 16 * 1024 * 1024;
/** Groups on their way at once: one commits while the next is built. */
const MAX_IN_FLIGHT = 2;
/** Waiting beyond this is answered 503: memory stays bounded and callers learn to slow down. */
const MAX_WAITING_ROWS = 5_000;
const MAX_WAITING_BYTES = 128 * 1024 * 1024;

type Waiting<Entry, Result> = {
  entry: Entry;
  key: string;
  size: number;
  resolve: (result: Result) => void;
  reject: (error: unknown) => void;
};

export function createGroupCommit<Entry, Result>({
  run,
  keyOf,
  sizeOf,
}: GroupCommitDeps<Entry, Result>): GroupCommit<Entry, Result> {
  let waiting: Waiting<Entry, Result>[] = [];
  let waitingBytes = 0;
  /** Keys of the entries that were sent. */
  const onTheWay = new Set<string>();
  let inFlight = 0;
  let scheduled = false;
  let idleListeners: (() => void)[] = [];

  return { add, pending: () => waiting.length + onTheWay.size, idle };

  function add(entry: Entry): Promise<Result> {
    const size = sizeOf(entry);
    if (waiting.length >= MAX_WAITING_ROWS || (waiting.length > 0 && waitingBytes + size > MAX_WAITING_BYTES))
      return Promise.reject(
        new AppError('overloaded', 'Too many requests are waiting for the database', { retryAfterS: 1 }),
      );
    return new Promise((resolve, reject) => {
      waiting.push({ entry, key: keyOf(entry), size, resolve, reject });
      waitingBytes += size;
      schedule();
    });
  }

  /** The next turn of the event loop: what arrived in this one goes together. */
  function schedule(): void {
    if (scheduled || inFlight >= MAX_IN_FLIGHT) return;
    scheduled = true;
    setImmediate(() => {
      scheduled = false;
      while (inFlight < MAX_IN_FLIGHT) {
        const group = takeGroup();
        if (group.length === 0) break;
        void send(group);
      }
    });
  }

  function takeGroup(): Waiting<Entry, Result>[] {
    const keys = new Set(onTheWay);
    const group: Waiting<Entry, Result>[] = [];
    const rest: Waiting<Entry, Result>[] = [];
    let bytes = 0;
    for (const item of waiting) {
      const fits = group.length < MAX_ROWS && (bytes + item.size <= MAX_BYTES || group.length === 0);
      if (fits && !keys.has(item.key)) {
        group.push(item);
        bytes += item.size;
      } else rest.push(item);
      keys.add(item.key);
    }
    waiting = rest;
    waitingBytes -= bytes;
    return group;
  }

  async function send(group: Waiting<Entry, Result>[]): Promise<void> {
    inFlight += 1;
    for (const { key } of group) onTheWay.add(key);
    try {
      const results = await run(group.map((item) => item.entry));
      for (const [index, item] of group.entries()) item.resolve(results[index]!);
    } catch (error) {
      for (const item of group) item.reject(error);
    } finally {
      inFlight -= 1;
      for (const { key } of group) onTheWay.delete(key);
      if (waiting.length > 0) schedule();
      else if (inFlight === 0) {
        for (const listener of idleListeners) listener();
        idleListeners = [];
      }
    }
  }

  function idle(): Promise<void> {
    if (waiting.length === 0 && inFlight === 0) return Promise.resolve();
    return new Promise((resolve) => idleListeners.push(resolve));
  }
}
