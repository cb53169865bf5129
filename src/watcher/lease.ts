/**
 * Who runs a job now: a redlock lease in Redis, or a lease row in PostgreSQL when there is no Redis or it is away.
 * Leases only save work. Every job is correct when two run it at once, because each change is a guarded update.
 */
import Redlock from 'redlock';
import type { Db } from '../db.ts';
import type { Redis } from '../redis.ts';

export type Lease = {
  /** Runs `work` if no other instance holds the job; undefined when one does. */
  run<T>(job: string, work: () => Promise<T>): Promise<T | undefined>;
};

/** A holder that dies delays its jobs by at most this: below the 5 s of the contract, above a job's own budget. */
export const LEASE_MS = 4_500;

export function createPostgresLease({ db, instanceId }: { db: Db; instanceId: string }): Lease {
  return {
    async run(job, work) {
      const taken = await db.query('take_lease', [job, instanceId, LEASE_MS]);
      if (taken.length === 0) return undefined;
      try {
        return await work();
      } finally {
        await db.query('give_lease_back', [job, instanceId]).catch(() => {});
      }
    },
  };
}

/** `fallback` serves while Redis is away or does not answer. */
// `as never`: redlock's types know the ioredis of its time; what it calls (eval with keys and arguments) is the same.
export function createRedisLease({ redis, fallback }: { redis: Redis; fallback: Lease }): Lease {
  return {
    async run(job, work) {
      // One for each run: so an error that it reports is this run's.
      const redlock = new Redlock([redis.client as never], { retryCount: 0 });
      let answers = redis.connected();
      redlock.on('clientError', () => {
        answers = false;
      });
      const lock = answers ? await redlock.lock(`{docsched}:lease:${job}`, LEASE_MS).catch(() => undefined) : undefined;
      if (!answers) return fallback.run(job, work);
      if (!lock) return undefined;
      try {
        return await work();
      } finally {
        // Expired meanwhile, or Redis is away: it ends by itself.
        await lock.unlock().catch(() => {});
      }
    },
  };
}
