/**
 * A TCP proxy between an instance and one of its stores. It knows a message by what stands in it, and can hold it, cut
 * the connection there, or leave every connection half-open: nothing passes and nobody is told.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { loadScripts } from '../../src/schema.ts';

/** Whether a piece of what the client sends is the message looked for. */
export type Matches = (sent: Buffer) => boolean;
export type Side = 'request' | 'response';
export type TestProxy = Awaited<ReturnType<typeof startProxy>>;

type Wanted = { matches: Matches; side: Side; then: 'hold' | 'cut'; reached: () => void };
type Pair = { client: Socket; upstream: Socket; isHalfOpen: boolean };

const REACHED_TIMEOUT_MS = 15_000;

/** schema/queries/<name>.sql: the Bind message of a prepared statement holds its name between two zero bytes. */
export const statement = (name: string): Matches => {
  const marker = `\0${name}\0`;
  return (sent) => sent.includes(marker);
};

/** schema/scripts/<name>.lua, once it is loaded. */
export const script = (name: string): Matches => {
  const marker = createHash('sha1').update(loadScripts()[name]!).digest('hex');
  return (sent) => sent.includes(marker);
};

export async function startProxy(t: TestContext, url: string) {
  const target = new URL(url);
  const wanted: Wanted[] = [];
  let releases: (() => void)[] = [];
  const pairs = new Set<Pair>();

  const server = createServer((client) => pump(client, connect(Number(target.port), target.hostname)));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const { client, upstream } of pairs) for (const socket of [client, upstream]) socket.destroy();
    server.close();
  });

  function pump(client: Socket, upstream: Socket): void {
    const pair: Pair = { client, upstream, isHalfOpen: false };
    pairs.add(pair);
    for (const socket of [client, upstream]) {
      socket.on('error', () => {});
      socket.on('close', () => {
        if (pair.isHalfOpen) return;
        pairs.delete(pair);
        client.destroy();
        upstream.destroy();
      });
    }
    let held: { to: Socket; chunks: Buffer[] } | undefined;
    let answering: Wanted | undefined;
    const act = (one: Wanted, to: Socket, chunk: Buffer) => {
      if (one.then === 'cut') client.resetAndDestroy();
      else {
        const mine = { to, chunks: [chunk] };
        held = mine;
        releases.push(() => {
          held = undefined;
          for (const late of mine.chunks) to.write(late);
        });
      }
      one.reached();
    };
    client.on('data', (chunk: Buffer) => {
      if (pair.isHalfOpen) return;
      if (held?.to === upstream) return void held.chunks.push(chunk);
      const index = wanted.findIndex(({ matches }) => matches(chunk));
      const [found] = index < 0 ? [] : wanted.splice(index, 1);
      if (!found) return void upstream.write(chunk);
      if (found.side === 'request') return act(found, upstream, chunk);
      answering = found;
      upstream.write(chunk);
    });
    upstream.on('data', (chunk: Buffer) => {
      if (pair.isHalfOpen) return;
      if (held?.to === client) return void held.chunks.push(chunk);
      if (!answering) return void client.write(chunk);
      const found = answering;
      answering = undefined;
      act(found, client, chunk);
    });
  }

  const { port } = server.address() as AddressInfo;
  const proxied = new URL(url);
  proxied.host = `127.0.0.1:${port}`;
  return {
    url: proxied.href,
    /** Resolves at the next such message; what is held goes on at `release`. */
    at: (matches: Matches, side: Side, then: 'hold' | 'cut', onReached: () => void = () => {}) =>
      new Promise<void>((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`no such ${side}: ${matches}`)), REACHED_TIMEOUT_MS);
        const reached = () => {
          clearTimeout(timer);
          onReached();
          resolve();
        };
        wanted.push({ matches, side, then, reached });
      }),
    /** Lets go of all that is held. */
    release: () => {
      const all = releases;
      releases = [];
      for (const release of all) release();
    },
    /** From now on nothing passes over the connections there are, in either direction. New ones are all right. */
    leaveHalfOpen: (): number => {
      const all = [...pairs].filter((pair) => !pair.isHalfOpen);
      for (const pair of all) pair.isHalfOpen = true;
      return all.length;
    },
  };
}
