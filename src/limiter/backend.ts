/**
 * What a limiter store must be able to do. Two exist, redis.ts and postgres.ts; opening, rebuilding and reconciling
 * are written once above them. Each call is atomic and one round trip. Calls that name an epoch change nothing and
 * answer null (LOST) unless the store holds exactly that epoch and its data was never lost since.
 */
import type { Limits } from '../queues.ts';

/** Ids by what they stand for: a task's first try (or one that counts as none), or a retry, whose slot holds a mark. */
export type Lanes = { fresh: readonly string[]; retries: readonly string[] };

/** Open attempts' ids by queue. */
export type OpenAttempts = ReadonlyMap<string, Lanes>;

/** touchedAt: when it was acquired, confirmed or added (ms, the store's clock). retry: it holds a mark. */
export type Slot = { touchedAt: number; retry: boolean };
/** All slots by queue and attempt id. */
export type Slots = ReadonlyMap<string, ReadonlyMap<string, Slot>>;

/** ids: the slots granted, in the order asked. retries: how many of them, whichever, may be used for retries. */
export type Granted = { ids: string[]; retries: number };

export type Backend = {
  readonly name: 'redis' | 'postgres';
  /** The epoch as written in the store (null: none); valid is false when its data must count as lost. */
  check(): Promise<{ epoch: string | null; valid: boolean }>;
  /**
   * Held ids are granted; others while there is room (limiter.ts). As many of those as the share allows get a mark, the
   * first ones. What it comes short of under a global limit is wanted for `wantTtlMs`.
   */
  acquire(
    epoch: string,
    queue: string,
    ids: readonly string[],
    limits: Limits,
    wantTtlMs: number,
  ): Promise<Granted | null>;
  /** The lost ids. Releases `unused` first, and ends the want when there are any. */
  confirm(
    epoch: string,
    queue: string,
    batch: Lanes & { unused: readonly string[] },
    limits: Limits,
  ): Promise<string[] | null>;
  /** How many slots it gave back. */
  release(epoch: string, queue: string, ids: readonly string[]): Promise<number | null>;
  /** Values in the order asked. */
  usage(epoch: string, queues: readonly string[]): Promise<number[] | null>;
  /** All slots, and the store's time when they were read. */
  list(epoch: string): Promise<{ takenAt: number; slots: Slots } | null>;
  /**
   * Drops what is still not younger than `cutoff`; adds what of `hold` is still missing, and sets or takes the marks of
   * the rest of it. Answers what it really dropped and added.
   */
  repair(
    epoch: string,
    queue: string,
    cutoff: number,
    drop: readonly string[],
    hold: Lanes,
  ): Promise<{ dropped: number; added: string[] } | null>;
  /** Replaces all slots, forgets all wants, and sets the epoch, if the store still holds the epoch `observed`. */
  rebuild(observed: string | null, epoch: string, open: OpenAttempts): Promise<boolean>;
};
