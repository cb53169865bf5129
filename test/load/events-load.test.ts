/** Many streams, slow ones and silent ones, over HTTP; the routes in this process, so that it can count what they ask for. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Db } from '../../src/db.ts';
import { createEventRoutes } from '../../src/events.ts';
import { createServer } from '../../src/http.ts';
import { createJournal } from '../../src/journal.ts';
import type { TaskRow } from '../../src/task.ts';
import { createTaskRoutes } from '../../src/tasks.ts';
import { createWaiter, type Tell, type Waiter } from '../../src/waiter.ts';
import { openStream } from '../support/event-stream.ts';
import { eventually } from '../support/eventually.ts';
import { createWorld, type World } from '../support/world.ts';

const CLIENTS = 600;
const TASKS = 100;
const LOOK_MS = 250;

let world: World;
before(async () => {
  world = await createWorld('events');
});
after(() => world.end());

/** The routes over `waiter`, on a port of their own. `statements`: names of those run so far. */
async function serve(t: { after(fn: () => unknown): void }, waiterOver: (db: Db) => Waiter) {
  const statements: string[] = [];
  const db: Db = {
    ...world.db,
    query: (name, params) => {
      statements.push(name);
      return world.db.query(name, params);
    },
  };
  const queues = await world.queues();
  const waiter = waiterOver(db);
  const events = createEventRoutes({ db, queues, waiter });
  const journal = createJournal(world.log);
  const tasks = createTaskRoutes({ db, queues, waiter, onRetried: () => {}, onFreed: () => {}, journal });
  const server = createServer({ routers: [tasks, events.router], log: world.log });
  const port = await server.listen('127.0.0.1', 0);
  waiter.start();
  events.start();
  t.after(async () => {
    events.stop();
    await waiter.stop();
    await server.close();
  });
  return { url: `http://127.0.0.1:${port}`, port, statements, waiter, events };
}

const pathOf = (i: number) => `/v1/tasks/${1 + (i % TASKS)}/versions/1`;

test('hundreds of streams and waiting clients cost four statements a second, and all are told of the end', async (t) => {
  await world.fill('default', 5, TASKS);
  const { url, statements } = await serve(t, (db) => createWaiter({ db, log: world.log }));
  const streams = await Promise.all(
    Array.from({ length: CLIENTS / 2 }, (_, i) => openStream(`${url}${pathOf(i)}/events`)),
  );
  await Promise.all(streams.map((stream) => stream.next()));
  const waits = Array.from({ length: CLIENTS / 2 }, async (_, i) => {
    const { status } = (await (await fetch(`${url}${pathOf(i)}?wait=60`)).json()) as { status: string };
    return status;
  });
  await eventually(() => statements.filter((name) => name === 'get_task').length === CLIENTS / 2);
  await sleep(LOOK_MS); // Until they wait.

  statements.length = 0;
  await sleep(8 * LOOK_MS);
  assert.deepEqual([...new Set(statements)], ['find_changed']);
  assert.ok(statements.length <= 9, `${statements.length} statements`);

  await world.sql.query(`UPDATE task_scheduler_tasks
    SET status = 3, reason = 'refused', finished_at = docsched_now(), update_at = update_at + 1`);
  for (const status of await Promise.all(waits)) assert.equal(status, 'Failed');
  for (const stream of streams) {
    assert.equal(await stream.ended, undefined);
    assert.deepEqual(
      stream.events.map(({ task }) => task.status),
      ['Pending', 'Failed'],
    );
  }
  await sleep(2 * LOOK_MS);
  statements.length = 0;
  await sleep(3 * LOOK_MS);
  assert.deepEqual(statements, [], 'nobody is left');
  await world.sql.query('DELETE FROM task_scheduler_tasks');
});

test('streams that are broken off are forgotten', async (t) => {
  await world.fill('default', 5, TASKS);
  const { url, statements } = await serve(t, (db) => createWaiter({ db, log: world.log }));
  const streams = await Promise.all(Array.from({ length: 50 }, (_, i) => openStream(`${url}${pathOf(i)}/events`)));
  await Promise.all(streams.map((stream) => stream.next()));
  for (const stream of streams) stream.close();
  await sleep(2 * LOOK_MS);
  statements.length = 0;
  await sleep(3 * LOOK_MS);
  assert.deepEqual(statements, []);
  await world.sql.query('DELETE FROM task_scheduler_tasks');
});

/** A waiter that tells what the test says. */
function toldBy(followers: Set<Tell>): Waiter {
  const nothing = async () => {};
  const follow = (_key: unknown, _revision: string, tell: Tell) => {
    followers.add(tell);
    return () => followers.delete(tell);
  };
  return { wait: nothing, follow, finished: () => {}, start: () => {}, stop: nothing };
}

test('a client that does not read gets the newest state when it reads again, not all that it missed', async (t) => {
  const CHANGES = 200_000;
  await world.fill('default', 5, 1);
  const followers = new Set<Tell>();
  const { port } = await serve(t, () => toldBy(followers));
  const socket = connect(port, '127.0.0.1');
  t.after(() => socket.destroy());
  socket.write('GET /v1/tasks/1/versions/1/events HTTP/1.1\r\nHost: test\r\n\r\n');
  await once(socket, 'data');
  socket.pause();

  const [tell] = followers;
  const row = (await world.db.query<TaskRow>('get_task', ['default', 1, 1, false]))[0]!;
  const before = process.memoryUsage().rss;
  for (let i = 1; i <= CHANGES; i++) {
    tell!({ ...row, update_at: String(i), status: i === CHANGES ? 3 : 0 });
    if (i % 1_000 === 0) await sleep(0);
  }
  const grown = process.memoryUsage().rss - before;
  assert.ok(grown < 60_000_000, `${grown} bytes more in memory; all that was told would be 130 MB`);

  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  socket.resume();
  await once(socket, 'end');
  const ids = [...text.matchAll(/^id: (\d+)$/gm)].map(([, id]) => Number(id));
  assert.equal(ids.at(-1), CHANGES);
  assert.ok(ids.length < CHANGES / 2, `${ids.length} events`);
  assert.equal(followers.size, 0);
  await world.sql.query('DELETE FROM task_scheduler_tasks');
});

test('a stream without news carries a comment every 15 seconds', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  await world.fill('default', 5, 1);
  const { url } = await serve(t, () => toldBy(new Set()));
  const stream = await openStream(`${url}/v1/tasks/1/versions/1/events`);
  await stream.next();
  for (const beats of [1, 2, 3]) {
    t.mock.timers.tick(14_999);
    await sleep(20);
    assert.equal(stream.comments.length, beats - 1);
    t.mock.timers.tick(1);
    await eventually(() => stream.comments.length === beats);
  }
  stream.close();
  await world.sql.query('DELETE FROM task_scheduler_tasks');
});
