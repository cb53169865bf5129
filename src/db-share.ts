/**
 * A part of the pool for those who can be told to come back: submits and reads. What closes attempts and pushes tasks
 * has the whole pool, so that however many submits come, callbacks find a connection, and slots come back.
 */
import type { Db, Row } from './db.ts';
import { AppError } from './errors.ts';

/** Connections that submits and reads never use: two settles, and one for all else. Of a small pool half. */
const RESERVED = 3;
/** Waiting beyond this is answered 503. */
const MAX_WAITING = 2_000;
/** As long as the pool itself lets wait for a connection. */
const MAX_WAIT_MS = 5_000;

type Waiting = { go: () => void };

/** What is left of a pool for submits and reads. */
export const apiShare = (poolMax: number): number => Math.max(Math.floor(poolMax / 2), poolMax - RESERVED);

/** At most `max` of the connections of `db` at once. */
export function createDbShare({ db, max }: { db: Db; max: number }): Db {
  const waiting = new Set<Waiting>();
  let running = 0;
  return { ...db, query };

  async function query<R extends Row>(name: string, params: readonly unknown[]): Promise<R[]> {
    if (running >= max) await turn();
    else running += 1;
    try {
      return await db.query<R>(name, params);
    } finally {
      const [next] = waiting;
      if (next) next.go();
      else running -= 1;
    }
  }

  /** Resolves with the place of one that is done. */
  function turn(): Promise<void> {
    if (waiting.size >= MAX_WAITING) return Promise.reject(overloaded());
    return new Promise((resolve, reject) => {
      const one: Waiting = {
        go: () => {
          clearTimeout(timer);
          waiting.delete(one);
          resolve();
        },
      };
      const timer = setTimeout(() => {
        waiting.delete(one);
        reject(overloaded());
      }, MAX_WAIT_MS);
      waiting.add(one);
    });
  }
}

const overloaded = () =>
  new AppError('overloaded', 'Too many requests are waiting for the database', { retryAfterS: 1 });
