/** The tools of chaos runs do what the runs rely on. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../support/eventually.ts';
import { check } from './checker.ts';
import { keptRun, PLAN } from './evidence-world.ts';
import { startProxy } from './proxy.ts';
import { recorded } from './record.ts';
import { behaviourOf, fateOf, QUEUE_NAMES } from './script.ts';

/** A server that echoes, behind a proxy; what a client of it was told so far. */
async function echo(t: TestContext) {
  const server = createServer((socket) => socket.on('error', () => {}).pipe(socket));
  const port = await new Promise<number>((settle) => {
    server.listen(0, '127.0.0.1', () => settle((server.address() as { port: number }).port));
  });
  const proxy = await startProxy(port);
  const clients: Socket[] = [];
  t.after(async () => {
    for (const client of clients) client.destroy();
    await proxy.stop();
    server.close();
  });
  const open = () => {
    const client = connect(proxy.port, '127.0.0.1');
    clients.push(client);
    const told = { text: '', isReset: false };
    client.on('data', (chunk) => {
      told.text += chunk;
    });
    client.on('error', () => {
      told.isReset = true;
    });
    return { client, told };
  };
  return { proxy, open };
}

test('a half-open connection stays up and passes nothing, while new ones pass; thawed, everything arrives', async (t) => {
  const { proxy, open } = await echo(t);
  const { client, told } = open();
  client.write('a');
  await eventually(() => told.text === 'a');
  assert.equal(proxy.freeze(), 1);
  client.write('b');
  const other = open();
  other.client.write('c');
  await eventually(() => other.told.text === 'c');
  await sleep(100); // That nothing comes can only be seen by waiting.
  assert.deepEqual(told, { text: 'a', isReset: false });
  proxy.thaw();
  await eventually(() => told.text === 'ab');
});

test('half-open connections can be reset, and only those are', async (t) => {
  const { proxy, open } = await echo(t);
  const frozen = open();
  frozen.client.write('a');
  await eventually(() => frozen.told.text === 'a');
  proxy.freeze();
  const other = open();
  other.client.write('b');
  await eventually(() => other.told.text === 'b');
  proxy.reset();
  await eventually(() => frozen.told.isReset);
  other.client.write('c');
  await eventually(() => other.told.text === 'bc');
});

test('a proxy stops with connections half-open whose client has gone', async (t) => {
  const { proxy, open } = await echo(t);
  const { client, told } = open();
  client.write('a');
  await eventually(() => told.text === 'a');
  proxy.freeze();
  client.destroy();
  await sleep(50); // For the proxy to be told, if it were.
  await proxy.stop();
});

test('docs/reliability.md has a place for the run of each limiter', async () => {
  const document = readFileSync(new URL('../../docs/reliability.md', import.meta.url), 'utf8');
  const verdict = await check(keptRun(), PLAN);
  for (const limiter of ['redis', 'postgres'] as const) {
    const command = 'the command';
    const run = {
      minutes: 1,
      seed: 7,
      limiter,
      record: true,
      command,
      startedAt: new Date(0),
      verdict,
      stores: 'stores',
    };
    const once = recorded(document, run);
    assert.match(once, /`the command`, begun 1970-01-01 00:00 UTC: 40 tasks, 1 faults, 0 promises broken\./);
    assert.equal(recorded(once, run), once, 'a new run takes the place of the one before');
  }
});

test('scripts doom few tasks, let all others succeed in the end, and are the same for the same seed', () => {
  for (const queue of QUEUE_NAMES) {
    const keys = Array.from({ length: 2_000 }, (_, n) => ({ queue, taskId: String(n), version: '5' }));
    const doomed = keys.filter((key) => fateOf(1, key) === 'doomed');
    assert.ok(doomed.length > 0 && doomed.length < 40, `${queue}: ${doomed.length}`);
    for (const key of keys) {
      const ends = [1, 2, 3, 4].map((attempt) => behaviourOf(1, key, attempt));
      assert.deepEqual(
        ends,
        [1, 2, 3, 4].map((attempt) => behaviourOf(1, key, attempt)),
      );
      assert.equal(['ok', 'done'].includes(ends[3]!), fateOf(1, key) === 'well');
    }
  }
});
