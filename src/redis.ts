/**
 * The only door to ioredis. Scripts (schema/scripts/*.lua) are registered by name; all their keys share the hash
 * tag `{docsched}`, so they also run on a cluster. Commands fail fast while the connection is away: whoever calls
 * decides what degraded means.
 */
import { Redis as Client } from 'ioredis';
import type { Log } from './log.ts';

export type Redis = {
  /** Runs schema/scripts/<name>.lua. Rejects within commandTimeout when Redis does not answer. */
  script(name: string, keys: readonly string[], args: readonly (string | number)[]): Promise<unknown>;
  /** Text of INFO <section>. */
  info(section: string): Promise<string>;
  /** For redlock, which speaks ioredis itself. */
  readonly client: Client;
  connected(): boolean;
  close(): void;
};

export type RedisDeps = { url: string; scripts: Record<string, string>; log: Log };

/** A script over a few hundred slots takes about a millisecond; half-open connections must not hold a round for long. */
const COMMAND_TIMEOUT_MS = 2_000;
/** A connection over which no answer comes for this long is half-open, or Redis is stuck: it is made anew. */
const SOCKET_TIMEOUT_MS = 3_000;

export function createRedis({ url, scripts, log }: RedisDeps): Redis {
  const client = new Client(url, {
    connectTimeout: 2_000,
    commandTimeout: COMMAND_TIMEOUT_MS,
    socketTimeout: SOCKET_TIMEOUT_MS,
    maxRetriesPerRequest: 0,
    enableOfflineQueue: false,
    keepAlive: 5_000,
    retryStrategy: (times) => Math.min(50 * 2 ** Math.min(times, 5), 1_000),
  });
  for (const [name, lua] of Object.entries(scripts)) client.defineCommand(name, { lua });
  let reported = false;
  let lastError = 'not connected yet';
  client.on('error', (error) => {
    lastError = error.message;
    if (!reported) log.warn({ event: 'redis_connection_error', error: error.message });
    reported = true;
  });
  client.on('ready', () => {
    if (reported) log.info({ event: 'redis_connected' });
    reported = false;
  });
  const commands = client as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
  return {
    script: async (name, keys, args) => {
      // ioredis would only say that its stream is not writeable.
      if (client.status !== 'ready') throw new Error(`no connection to Redis: ${lastError}`);
      return await commands[name]!.call(client, keys.length, ...keys, ...args);
    },
    info: (section) => client.info(section),
    client,
    connected: () => client.status === 'ready',
    close: () => client.disconnect(),
  };
}
