/**
 * The HTTP hops around a job library: submit in, push out to the stub parser, callback in. The answer to a callback
 * leaves at once, before the library has made the completion durable; docsched's leaves after its commit.
 */
import { randomUUID } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import express, { type Express } from 'express';
import { createPoster } from '../load/post.ts';
import type { Task } from '../load/wire.ts';
import { CONCURRENCY } from './peer.ts';

export type Pushes = {
  /** Resolves with the body of the callback. Rejects when the parser does not accept the push. */
  push(task: Task): Promise<unknown>;
  /** False when nobody waits for this id (any more). */
  receive(id: string, body: unknown): boolean;
  waiting(): number;
};

export function createPushes(parserUrl: string, publicUrl: () => string): Pushes {
  const { origin, pathname } = new URL(parserUrl);
  const poster = createPoster(origin, CONCURRENCY);
  const waiting = new Map<string, (body: unknown) => void>();
  return {
    push: async (task) => {
      const id = randomUUID();
      const done = new Promise((resolve) => waiting.set(id, resolve));
      const reply = await poster.post(
        pathname,
        JSON.stringify({ ...task, callback_url: `${publicUrl()}/v1/callbacks/${id}` }),
      );
      if (reply.status !== 202) throw new Error(`the parser answered ${reply.status}`);
      return done;
    },
    receive: (id, body) => {
      const resolve = waiting.get(id);
      waiting.delete(id);
      resolve?.(body);
      return resolve !== undefined;
    },
    waiting: () => waiting.size,
  };
}

/** An Express application with what costs time for nothing turned off, as docsched does. */
export function createApp(routes: {
  submit(task: Task): unknown;
  callback?: (id: string, body: unknown) => boolean;
}): Express {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.use(express.json());
  app.post('/v1/tasks', async (req, res) => {
    const task = req.body as Task;
    await routes.submit(task);
    res.status(202).json({ outcome: 'created', task: { task_id: task.task_id, task_version: task.task_version } });
  });
  app.post('/v1/callbacks/:id', (req, res) => {
    if (routes.callback?.(req.params.id, req.body)) res.json({ outcome: 'applied' });
    else res.status(404).json({ outcome: 'unknown' });
  });
  return app;
}

/** Resolves with the base URL. */
export function listen(handler: Parameters<typeof createServer>[1]): Promise<{ url: string; server: Server }> {
  const server = createServer({ keepAliveTimeout: 65_000 }, handler);
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () =>
      resolve({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, server }),
    );
  });
}
