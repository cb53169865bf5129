/**
 * The limiter's Redis: a primary and a replica that can take over, and a third server that only a misled instance uses.
 */
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { eventually } from '../support/eventually.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';
import { lastingPort } from './ports.ts';
import { startProxy } from './proxy.ts';
import { QUEUE_NAMES } from './script.ts';

export type RedisPair = Awaited<ReturnType<typeof startRedisPair>>;

export async function startRedisPair(directory: string) {
  const start = async (name: string) =>
    startRedis({ dir: join(directory, name), port: await lastingPort(), args: ['--repl-diskless-sync-delay', '0'] });
  let primary = await start('redis-a');
  let replica = await start('redis-b');
  const stranger = await start('redis-c');
  const link = await startProxy(primary.port);
  await follow(replica, link);
  return {
    primary: (): TestRedis => primary,
    stranger,
    /** What the primary does from now on does not reach the replica. */
    cutReplica: () => void link.freeze(),
    /** The primary dies, the replica takes its place, with what it had; the dead one can come back to follow it. */
    promote: async (): Promise<void> => {
      await primary.kill();
      link.reset();
      link.leadTo(replica.port);
      await ask(replica, (client) => client.call('REPLICAOF', 'NO', 'ONE'));
      [primary, replica] = [replica, primary];
    },
    /** The server that died in a promotion comes back, as the replica. */
    mend: async (): Promise<void> => {
      await replica.restart({ empty: true });
      await follow(replica, link);
    },
    ask: <T>(question: (client: Redis) => Promise<T>): Promise<T> => ask(primary, question),
    /** Attempt ids that hold a slot, of all queues. */
    slots: () =>
      ask(primary, async (client) =>
        (await Promise.all(QUEUE_NAMES.map((queue) => client.zrange(`{docsched}:slots:${queue}`, '0', '-1')))).flat(),
      ),
    stop: async (): Promise<void> => {
      for (const server of [primary, replica, stranger]) await server.stop();
      await link.stop();
    },
  };
}

async function ask<T>({ url }: TestRedis, question: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(url, { maxRetriesPerRequest: 1 });
  client.on('error', () => {});
  try {
    return await question(client);
  } finally {
    client.disconnect();
  }
}

async function follow(replica: TestRedis, primary: { port: number }): Promise<void> {
  await ask(replica, (client) => client.call('REPLICAOF', '127.0.0.1', String(primary.port)));
  await eventually(() =>
    ask(replica, async (client) => /master_link_status:up/.test(await client.info('replication'))),
  );
}
