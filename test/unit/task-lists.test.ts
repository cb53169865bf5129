/** Lists of tasks, which may take seconds, beside everything else. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import express from 'express';
import type { Db } from '../../src/db.ts';
import type { Queues } from '../../src/queues.ts';
import { createTaskRoutes } from '../../src/tasks.ts';
import type { Waiter } from '../../src/waiter.ts';
import { eventually } from '../support/eventually.ts';

test('two lists are read at once, and hold nothing else up', async (t) => {
  const lists: ((rows: never[]) => void)[] = [];
  const asked: string[] = [];
  const query = (name: string) => {
    asked.push(name);
    return name === 'list_tasks' ? new Promise<never[]>((resolve) => lists.push(resolve)) : Promise.resolve([]);
  };
  const routes = createTaskRoutes({
    db: { query } as unknown as Db,
    queues: { get: () => ({}) } as unknown as Queues,
    waiter: {} as Waiter,
    onRetried: () => {},
    onFreed: () => {},
    journal: { cancelled: () => {}, retried: () => {} },
  });
  const server = createServer(express().use(routes)).listen(0, '127.0.0.1');
  t.after(() => server.close());
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1/tasks`;
  const statusOf = async (path = '') => (await fetch(url + path)).status;

  const answers = [1, 2, 3, 4].map(() => statusOf());
  await eventually(() => lists.length === 2);
  await statusOf('/1/versions');
  assert.deepEqual(asked, ['list_tasks', 'list_tasks', 'list_versions']);
  for (let i = 0; i < 4; i++) {
    await eventually(() => lists.length > i);
    lists[i]!([]);
  }
  assert.deepEqual(await Promise.all(answers), [200, 200, 200, 200]);
});
