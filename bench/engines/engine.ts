/**
 * S3: what a library claims and completes without any HTTP, in its best batch mode, the work being nothing. Each engine
 * is a process of its own (engine-app.ts).
 */
export type Engine = {
  /** Stores tasks, as fast as the library stores many at once. Not measured. */
  fill(ids: { firstId: number; count: number }): Promise<void>;
  /** Resolves when `count` tasks have been claimed and completed. */
  drain(count: number): Promise<void>;
  /** Tasks not finished, and tasks that failed. */
  counts(): Promise<{ open: number; failed: number }>;
  stop(): Promise<void>;
};

export type EngineDeps = { databaseUrl: string; redisUrl: string };

export const FILL_BATCH = 1_000;
