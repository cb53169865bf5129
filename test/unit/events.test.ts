/** An event stream whose client does not read, at its end. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import type { Db } from '../../src/db.ts';
import { createEventRoutes } from '../../src/events.ts';
import type { Queues } from '../../src/queues.ts';
import { PENDING, SUCCESS, type TaskRow } from '../../src/task.ts';
import type { Tell, Waiter } from '../../src/waiter.ts';

const BEAT_MS = 15_000;
/** Below node's high-water mark: what is written last may stay in its buffer without a drain to wait for. */
const MESSAGE = 'x'.repeat(4_000);

test('a stream that has ended, and not yet left, is not written to any more', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const row = (status: number, update_at: number) =>
    ({ status, update_at: String(update_at), status_msg: MESSAGE }) as TaskRow;
  let tell: Tell | undefined;
  const follow: Waiter['follow'] = (_key, _since, told) => {
    tell = told;
    return () => {};
  };
  const events = createEventRoutes({
    db: { query: async () => [row(PENDING, 0)] } as unknown as Db,
    queues: { get: () => ({}) } as unknown as Queues,
    waiter: { follow } as unknown as Waiter,
  });
  const server = createServer(express().use(events.router)).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  events.start();
  t.after(events.stop);

  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  t.after(() => client.destroy());
  client.pause();
  const asked = once(server, 'request') as Promise<[unknown, ServerResponse]>;
  client.write('GET /v1/tasks/1/versions/1/events HTTP/1.1\r\nhost: a\r\n\r\n');
  const [, res] = await asked;
  let failed: Error | undefined;
  res.on('error', (error) => {
    failed = error;
  });
  while (tell === undefined) await sleep(5);
  for (let i = 1; res.writableLength === 0; i++) {
    tell(row(PENDING, i));
    await new Promise((resolve) => setImmediate(resolve));
  }
  tell(row(SUCCESS, 1_000_000));
  assert.deepEqual([res.writableEnded, res.writableFinished], [true, false]);
  t.mock.timers.tick(BEAT_MS);
  await sleep(20);
  assert.equal(failed, undefined);
});
