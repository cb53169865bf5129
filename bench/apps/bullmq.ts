/**
 * BullMQ, on Redis (no persistence: not durable, measured for orientation) or on its PostgreSQL backend. One queue, one
 * worker with the whole concurrency, finished jobs removed, as its documents advise for long queues.
 */
import { createPostgresBackend, Queue, runMigrations, Worker } from 'bullmq';
import pg from 'pg';
import type { Task } from '../load/wire.ts';
import { CONCURRENCY, type Peer, type PeerDeps } from './peer.ts';

const QUEUE = 'parse';
const POOL_SIZE = 25;
const JOB = { removeOnComplete: true, removeOnFail: false };

type Parse = (task: Task) => Promise<unknown>;
type Made = {
  queue: Queue;
  makeWorker(run: (job: { data: Task }) => Promise<unknown>): Worker;
};

export const createBullmqRedisPeer = async ({ redisUrl, fault }: PeerDeps): Promise<Peer> => {
  const { hostname, port } = new URL(redisUrl);
  const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
  return createPeer(
    {
      queue: new Queue(QUEUE, { connection }),
      makeWorker: (run) => new Worker(QUEUE, run, { connection, concurrency: CONCURRENCY }),
    },
    fault,
  );
};

export const createBullmqPostgresPeer = async ({ databaseUrl, fault }: PeerDeps): Promise<Peer> => {
  const setup = new pg.Client({ connectionString: databaseUrl });
  await setup.connect();
  await runMigrations(setup);
  await setup.end();
  const options = { connection: { connectionString: databaseUrl, max: POOL_SIZE } };
  return createPeer(
    {
      queue: new Queue(QUEUE, options, createPostgresBackend) as unknown as Queue,
      makeWorker: (run) =>
        new Worker(QUEUE, run, { ...options, concurrency: CONCURRENCY }, createPostgresBackend) as unknown as Worker,
    },
    fault,
  );
};

function createPeer({ queue, makeWorker }: Made, fault: (error: unknown) => void): Peer {
  let worker: Worker | undefined;
  queue.on('error', fault);
  return {
    add: async (task) => void (await queue.add('parse', task, { ...JOB, priority: task.priority })),
    work: async (parse: Parse) => {
      worker = makeWorker((job) => parse(job.data));
      worker.on('error', fault);
      worker.on('failed', (_job, error) => fault(error));
      await worker.waitUntilReady();
    },
    counts: async () => {
      const counts = await queue.getJobCounts();
      const { failed = 0, completed: _, ...open } = counts;
      return { open: Object.values(open).reduce((sum, count) => sum + count, 0), failed };
    },
    stop: async () => {
      await worker?.close();
      await queue.close();
    },
  };
}
