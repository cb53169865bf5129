/**
 * Slots in Redis: one sorted set a queue (attempt id by the server's time of the last touch), changed by Lua scripts
 * only. Each script first makes sure that the epoch is the caller's and that this very server process wrote it, which
 * costs it about 6 µs and makes a restart, restore or failover visible to the very next call.
 */
import type { Redis } from '../redis.ts';
import type { Backend } from './backend.ts';

const LIMITER = '{docsched}:limiter';
const QUEUES = '{docsched}:queues';
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
      const [epoch, trusted, policy] = (await redis.script('limiter_check', [LIMITER], [])) as [
        string | null,
        number,
        string,
      ];
      if (policy !== 'noeviction') throw new UnfitRedisError(unfit(policy));
      return { epoch, valid: trusted === 1 };
    },
    acquire: (epoch, queue, ids, limit) => onQueue('limiter_acquire', queue, [epoch, queue, limit, ...ids]),
    confirm: (epoch, queue, claimed, unused, limit) =>
      onQueue('limiter_confirm', queue, [epoch, queue, limit, claimed.length, ...claimed, ...unused]),
    release: async (epoch, queue, ids) =>
      (await redis.script('limiter_release', [LIMITER, slotsOf(queue)], [epoch, ...ids])) as number | null,
    usage: async (epoch, queues) =>
      (await redis.script('limiter_usage', [LIMITER, ...queues.map(slotsOf)], [epoch])) as number[] | null,
    list: async (epoch) => {
      const answer = (await redis.script('limiter_list', [LIMITER, QUEUES], [epoch])) as (string | string[])[] | null;
      if (answer === null) return null;
      const [takenAt, ...pairs] = answer;
      const slots = new Map<string, Map<string, number>>();
      for (let i = 0; i < pairs.length; i += 2) slots.set(pairs[i] as string, touchedAt(pairs[i + 1] as string[]));
      return { takenAt: Number(takenAt), slots };
    },
    repair: async (epoch, queue, cutoff, drop, add) => {
      const answer = await onQueue<[number, string[]]>('limiter_repair', queue, [
        epoch,
        queue,
        cutoff,
        drop.join(' '),
        add.join(' '),
      ]);
      return answer && { dropped: answer[0], added: answer[1] };
    },
    rebuild: async (observed, epoch, open) => {
      const packed = [...open].flatMap(([queue, ids]) => [queue, ids.join(' ')]);
      return (await redis.script('limiter_rebuild', [LIMITER, QUEUES], [observed ?? '', epoch, ...packed])) === 1;
    },
  };

  async function onQueue<T = string[]>(script: string, queue: string, args: (string | number)[]): Promise<T | null> {
    return (await redis.script(script, [LIMITER, slotsOf(queue), QUEUES], args)) as T | null;
  }
}

/** [id, score, id, score ..] as Redis answers WITHSCORES. */
function touchedAt(flat: readonly string[]): Map<string, number> {
  const slots = new Map<string, number>();
  for (let i = 0; i < flat.length; i += 2) slots.set(flat[i]!, Number(flat[i + 1]));
  return slots;
}
