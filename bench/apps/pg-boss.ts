/**
 * pg-boss. A single submit is a `send`. Work is taken with `fetch` in batches as large as the free places allow and
 * completed with `complete`, which takes many ids: whatever finished while the last call was on its way goes together.
 * (`work` would hold a whole batch until its slowest job is done.) A submit wakes the fetch loop of its own process.
 */
import { PgBoss } from 'pg-boss';
import type { Task } from '../load/wire.ts';
import { CONCURRENCY, type Peer, type PeerDeps } from './peer.ts';

export const QUEUE = 'parse';
const MAX_FETCH = 128;
const POOL_SIZE = 25;
/** pg-boss's own floor of a polling interval. */
const POLL_MS = 500;
/** A job that was tried again, or is neither waiting, active nor completed, did not succeed at once. */
const COUNTS = `SELECT count(*) FILTER (WHERE state < 'completed') AS open,
  count(*) FILTER (WHERE state > 'completed' OR retry_count > 0) AS failed
  FROM pgboss.job WHERE name = $1`;

export async function createPgBossPeer({ databaseUrl, fault }: PeerDeps): Promise<Peer> {
  const boss = new PgBoss({ connectionString: databaseUrl, max: POOL_SIZE, schedule: false });
  boss.on('error', fault);
  await boss.start();
  await boss.createQueue(QUEUE);
  const jobs = createJobs(boss, fault);
  return {
    add: async ({ priority, ...task }) => {
      // Higher goes first.
      if ((await boss.send(QUEUE, { priority, ...task }, { priority: 6 - priority })) === null)
        throw new Error('pg-boss did not create the job');
      jobs.wake();
    },
    work: async (parse) => jobs.work(parse),
    counts: async () => {
      const { rows } = await boss.getDb().executeSql(COUNTS, [QUEUE]);
      return { open: Number(rows[0].open), failed: Number(rows[0].failed) };
    },
    stop: async () => {
      jobs.stop();
      await boss.stop({ graceful: false });
    },
  };
}

/** fetch -> parse -> complete, at most CONCURRENCY at a time, never two fetches at once. */
function createJobs(boss: PgBoss, fault: (error: unknown) => void) {
  let parse: ((task: Task) => Promise<unknown>) | undefined;
  let active = 0;
  let fetching = false;
  let again = false;
  let timer: NodeJS.Timeout | undefined;
  const complete = createCompleter(boss, fault);
  return {
    work: (given: typeof parse) => {
      parse = given;
      timer = setInterval(wake, POLL_MS);
      wake();
    },
    wake,
    stop: () => {
      parse = undefined;
      clearInterval(timer);
    },
  };

  function wake(): void {
    again = true;
    if (!fetching) fetchAll().catch(fault);
  }

  async function fetchAll(): Promise<void> {
    fetching = true;
    try {
      while (again && parse) {
        again = false;
        const room = Math.min(MAX_FETCH, CONCURRENCY - active);
        if (room === 0) return;
        const jobs = await boss.fetch<Task>(QUEUE, { batchSize: room });
        if (jobs.length === room) again = true;
        active += jobs.length;
        for (const job of jobs) run(job).catch(fault);
      }
    } finally {
      fetching = false;
    }
  }

  async function run(job: { id: string; data: Task }): Promise<void> {
    const output = await parse!(job.data);
    await complete(job.id, output);
    active -= 1;
    wake();
  }
}

/** Completions that arrive while one is on its way share the next call. */
function createCompleter(boss: PgBoss, fault: (error: unknown) => void) {
  let waiting: { id: string; resolve: () => void }[] = [];
  let busy = false;
  let lastOutput: object = {};
  return (id: string, output: unknown) =>
    new Promise<void>((resolve) => {
      lastOutput = output as object;
      waiting.push({ id, resolve });
      if (!busy) completeAll().catch(fault);
    });

  async function completeAll(): Promise<void> {
    busy = true;
    while (waiting.length > 0) {
      const group = waiting;
      waiting = [];
      // One output for all ids of a call; here they are all the same.
      await boss.complete(
        QUEUE,
        group.map(({ id }) => id),
        lastOutput,
      );
      for (const { resolve } of group) resolve();
    }
    busy = false;
  }
}
