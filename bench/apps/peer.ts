/**
 * What a job library has to do in the comparison. Each adapter beside this file sets its library up as the library's own
 * documents recommend for speed; docs/performance.md lists the settings.
 */
import type { Task } from '../load/wire.ts';

export type Counts = {
  /** Jobs not finished yet, in whatever state. */
  open: number;
  failed: number;
};

export type Peer = {
  /** Resolves when the job is as durable as the library makes it. */
  add(task: Task): Promise<void>;
  /** Begins to work: at most CONCURRENCY tasks at a time; a task is complete when its promise resolves. */
  work(parse: (task: Task) => Promise<unknown>): Promise<void>;
  counts(): Promise<Counts>;
  stop(): Promise<void>;
};

/** From the environment, as any application would read it. */
export type PeerDeps = { databaseUrl: string; redisUrl: string; fault: (error: unknown) => void };

/** docsched's limit in the same scenarios. */
export const CONCURRENCY = 256;
