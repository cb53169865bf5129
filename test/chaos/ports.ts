/**
 * Ports for servers that go down and come back: below those that the system gives to outgoing connections, or one of
 * these might sit on the port meanwhile.
 */
import { createServer } from 'node:net';

const FIRST = 10_240;
const LAST = 32_000;
const given = new Set<number>();

export async function lastingPort(): Promise<number> {
  for (;;) {
    const port = FIRST + Math.floor(Math.random() * (LAST - FIRST));
    if (given.has(port) || !(await isFree(port))) continue;
    given.add(port);
    return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((settle) => {
    const probe = createServer().once('error', () => settle(false));
    probe.listen(port, '127.0.0.1', () => probe.close(() => settle(true)));
  });
}
