/**
 * A TCP proxy that can cut its connections half-open: they stay up, and nothing passes any more. New connections pass
 * as before. Thawed, what was held back arrives late; or the frozen connections are reset.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export type Way = {
  port: number;
  /** Where new connections lead from now on. */
  leadTo(port: number): void;
  /** Connections up now. */
  count(): number;
  /** Freezes all connections there are; returns how many. */
  freeze(): number;
  /** What was held back passes now. */
  thaw(): void;
  /** Resets the frozen connections. */
  reset(): void;
  stop(): Promise<void>;
};

type Pair = { client: Socket; upstream: Socket; frozen: boolean };

export async function startProxy(upstreamPort: number): Promise<Way> {
  let leadsTo = upstreamPort;
  const pairs = new Set<Pair>();
  const server = createServer({ noDelay: true }, (client) => {
    const upstream = connect({ port: leadsTo, host: '127.0.0.1', noDelay: true });
    const pair: Pair = { client, upstream, frozen: false };
    pairs.add(pair);
    join(pair, client, upstream);
    join(pair, upstream, client);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const frozen = () => [...pairs].filter((pair) => pair.frozen);
  return {
    port: (server.address() as AddressInfo).port,
    leadTo: (port) => {
      leadsTo = port;
    },
    count: () => pairs.size,
    freeze: () => {
      for (const pair of pairs) {
        pair.frozen = true;
        pair.client.pause();
        pair.upstream.pause();
      }
      return pairs.size;
    },
    thaw: () => {
      for (const pair of frozen()) {
        pair.frozen = false;
        if (pair.client.destroyed || pair.upstream.destroyed) end(pair);
        for (const socket of [pair.client, pair.upstream]) socket.resume();
      }
    },
    reset: () => {
      for (const pair of frozen()) end(pair);
    },
    stop: async () => {
      const closed = new Promise((settle) => server.close(settle));
      for (const pair of pairs) end(pair);
      await closed;
    },
  };

  function join(pair: Pair, from: Socket, to: Socket): void {
    from.on('data', (chunk) => {
      if (!to.write(chunk)) from.pause();
    });
    to.on('drain', () => {
      if (!pair.frozen) from.resume();
    });
    from.on('end', () => to.end());
    from.on('error', () => {
      if (!pair.frozen) end(pair);
    });
    from.on('close', () => {
      // The other side of a frozen connection does not learn of it before the thaw.
      if (pair.frozen) return;
      pairs.delete(pair);
      to.destroy();
    });
  }

  function end(pair: Pair): void {
    pairs.delete(pair);
    pair.frozen = false;
    for (const socket of [pair.client, pair.upstream]) if (!socket.destroyed) socket.resetAndDestroy();
  }
}
