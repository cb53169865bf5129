/**
 * Slots in Redis: one sorted set a queue (attempt id by the server's time of the last touch, negative while the slot holds
 * a mark), and beside it what would cost too much to count each time: marks by queue, the total. Changed by Lua scripts
 * only. Each script first makes sure that the epoch is the caller's and that this very server process wrote it, which
 * costs it about 6 µs and makes a restart, restore or failover visible to the very next call.
 */
import type { Redis } from '../redis.ts';
import type { Backend, Slot } from './backend.ts';

const STORE = '{docsched}:store';
const QUEUES = '{docsched}:queues';
const RETRIES = '{docsched}:retries';
const WANTS = '{docsched}:wants';
const slotsOf = (queue: string): string => `{docsched}:slots:${queue}`;

/** How long a start waits for the first connection before it goes on without one. */
const FIRST_CONNECTION_MS = 3_000;

/** Redis is set up in a way that would lose slots; retrying does not help. */
export class UnfitRedisError extends Error {}

const unfit = (policy: string): string =>
  `Redis may evict slots: maxmemory-policy is '${policy}' and must be 'noeviction'`;

/**
 * For the start of the process: throws UnfitRedisError when slots could be evicted. A Redis that cannot be reached is
 * not refused: the limiter stays closed until it can, and looks at the policy then.
 */
export async function checkRedis(redis: Redis): Promise<void> {
  if (!redis.connected())
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, FIRST_CONNECTION_MS);
      redis.client.once('ready', () => {
        clearTimeout(timer);
        resolve();
      });
    });
  const memory = await redis.info('memory').catch(() => '');
  const policy = /^maxmemory_policy:(\S+)/m.exec(memory)?.[1] ?? 'noeviction';
  if (policy !== 'noeviction') throw new UnfitRedisError(unfit(policy));
}

export function createRedisBackend({ redis }: { redis: Redis }): Backend {
  return {
    name: 'redis',
    check: async () => {
      const [epoch, trusted, policy] = (await redis.script('limiter_check', [STORE], [])) as [
        string | null,
        number,
        string,
      ];
      if (policy !== 'noeviction') throw new UnfitRedisError(unfit(policy));
      return { epoch, valid: trusted === 1 };
    },
    acquire: async (epoch, queue, ids, { limit, retries, global, guaranteed }, wantTtlMs) => {
      const args = [limit, retries, global, guaranteed, wantTtlMs, ...ids];
      const answer = await onQueue<[string[], number]>('limiter_acquire', epoch, queue, args);
      return answer && { ids: answer[0], retries: answer[1] };
    },
    confirm: (epoch, queue, batch, { limit, retries, global }) => {
      const counts = [batch.retries.length, batch.fresh.length];
      const args = [limit, retries, global, ...counts, ...batch.retries, ...batch.fresh, ...batch.unused];
      return onQueue<string[]>('limiter_confirm', epoch, queue, args);
    },
    release: (epoch, queue, ids) => onQueue<number>('limiter_release', epoch, queue, ids),
    usage: async (epoch, queues) =>
      (await redis.script('limiter_usage', [STORE, ...queues.map(slotsOf)], [epoch])) as number[] | null,
    list: async (epoch) => {
      const answer = (await redis.script('limiter_list', [STORE, QUEUES], [epoch])) as (string | string[])[] | null;
      if (answer === null) return null;
      const [takenAt, ...pairs] = answer;
      const slots = new Map<string, Map<string, Slot>>();
      for (let i = 0; i < pairs.length; i += 2) slots.set(pairs[i] as string, slotsFrom(pairs[i + 1] as string[]));
      return { takenAt: Number(takenAt), slots };
    },
    repair: async (epoch, queue, cutoff, drop, { fresh, retries }) => {
      const args = [cutoff, drop.join(' '), retries.join(' '), fresh.join(' ')];
      const answer = await onQueue<[number, string[]]>('limiter_repair', epoch, queue, args);
      return answer && { dropped: answer[0], added: answer[1] };
    },
    rebuild: async (observed, epoch, open) => {
      const packed = [...open].flatMap(([queue, { fresh, retries }]) => [queue, retries.join(' '), fresh.join(' ')]);
      const keys = [STORE, QUEUES, RETRIES, WANTS];
      return (await redis.script('limiter_rebuild', keys, [observed ?? '', epoch, ...packed])) === 1;
    },
  };

  async function onQueue<T>(
    script: string,
    epoch: string,
    queue: string,
    args: readonly (string | number)[],
  ): Promise<T | null> {
    const keys = [STORE, slotsOf(queue), QUEUES, RETRIES, WANTS];
    return (await redis.script(script, keys, [epoch, queue, ...args])) as T | null;
  }
}

/** [id, touched_at, id, touched_at ..] as Redis answers WITHSCORES. */
function slotsFrom(flat: readonly string[]): Map<string, Slot> {
  const slots = new Map<string, Slot>();
  for (let i = 0; i < flat.length; i += 2) {
    const touchedAt = Number(flat[i + 1]);
    slots.set(flat[i]!, { touchedAt: Math.abs(touchedAt), retry: touchedAt < 0 });
  }
  return slots;
}
