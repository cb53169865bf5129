/**
 * What a limiter store must be able to do. Two exist, redis.ts and postgres.ts; opening, rebuilding and reconciling
 * are written once above them. Each call is atomic and one round trip. Calls that name an epoch change nothing and
 * answer null (LOST) unless the store holds exactly that epoch and its data was never lost since.
 */

/** Open attempts' ids by queue. */
export type OpenAttempts = ReadonlyMap<string, readonly string[]>;

/** All slots by queue: attempt id -> when it was acquired, confirmed or added (ms, the store's clock). */
export type Slots = ReadonlyMap<string, ReadonlyMap<string, number>>;

export type Backend = {
  readonly name: 'redis' | 'postgres';
  /** The epoch as written in the store (null: none); valid is false when its data must count as lost. */
  check(): Promise<{ epoch: string | null; valid: boolean }>;
  /** The granted ids, in order. Held ids are granted; others while the value is below limit. */
  acquire(epoch: string, queue: string, ids: readonly string[], limit: number): Promise<string[] | null>;
  /** The lost ids. Releases `unused` first. */
  confirm(
    epoch: string,
    queue: string,
    claimed: readonly string[],
    unused: readonly string[],
    limit: number,
  ): Promise<string[] | null>;
  /** How many slots it gave back. */
  release(epoch: string, queue: string, ids: readonly string[]): Promise<number | null>;
  /** Values in the order asked. */
  usage(epoch: string, queues: readonly string[]): Promise<number[] | null>;
  /** All slots, and the store's time when they were read. */
  list(epoch: string): Promise<{ takenAt: number; slots: Slots } | null>;
  /** Drops what is still not younger than `cutoff`, adds what is still missing. Answers what it really did. */
  repair(
    epoch: string,
    queue: string,
    cutoff: number,
    drop: readonly string[],
    add: readonly string[],
  ): Promise<{ dropped: number; added: string[] } | null>;
  /** Replaces all slots and the epoch, if the store still holds the epoch `observed`. */
  rebuild(observed: string | null, epoch: string, open: OpenAttempts): Promise<boolean>;
};
