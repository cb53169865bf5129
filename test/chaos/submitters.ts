/**
 * The upstream services: keep every queue at its backlog with new tasks, newer and older versions, repeated submits,
 * batches and cancels. What is not answered definitely is sent again, to the next instance. Written down: what was
 * answered, when it was last sent and when the answer was there.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Agent, request } from 'undici';
import { type Chance, createChance } from './chance.ts';
import { type Journal, now } from './journal.ts';
import { fateOf, type Key, QUEUE_NAMES, QUEUES, retriesOf } from './script.ts';

export type SubmittersDeps = {
  seed: number;
  lanes: number;
  instances: readonly string[];
  journal: Journal;
  /** Pending tasks by queue as last seen. */
  pending: () => ReadonlyMap<string, number>;
};

type Answer = { status: number; body: Record<string, unknown>; sentAt: number };
type Entry = { outcome?: string; error?: { code: string; status: number } };

const ANSWER_TIMEOUT_MS = 4_000;
const AGAIN_MS = 100;
const BATCH = 40;
/** How many of the newest tasks of a queue are changed, repeated or cancelled. */
const RECENT = 400;
const IDLE_MS = 30;
/** After a batch was submitted, until the next look at the queues: nobody else makes up the same lack. */
const LOOKED_EVERY_MS = 300;

export function createSubmitters({ seed, lanes, instances, journal, pending }: SubmittersDeps) {
  const agent = new Agent({
    connections: 16,
    pipelining: 1,
    headersTimeout: ANSWER_TIMEOUT_MS,
    bodyTimeout: ANSWER_TIMEOUT_MS,
  });
  const recent = new Map<string, Key[]>(QUEUE_NAMES.map((queue) => [queue, []]));
  const sent = new Map<string, { at: number; count: number }[]>();
  const highest = new Map<string, bigint>();
  let lastId = 0;
  let stopped = false;
  let paused = false;
  let running: Promise<unknown> = Promise.resolve();
  const counts = { accepted: 0, retried: 0 };
  return {
    counts,
    /** Nothing new is submitted until `resume`. */
    pause: () => {
      paused = true;
    },
    resume: () => {
      paused = false;
    },
    start: () => {
      running = Promise.all(Array.from({ length: lanes }, (_, lane) => work(createChance(seed, `lane ${lane}`), lane)));
      running.catch(() => {});
    },
    /** Resolves when every submit that was begun is answered. */
    stop: async () => {
      stopped = true;
      await running;
      await agent.destroy();
    },
  };

  async function work(chance: Chance, lane: number): Promise<void> {
    while (!stopped) {
      const [queue, lack] = hungriest();
      if (paused || lack < 1) await sleep(IDLE_MS);
      else if (chance.next() < 0.03) await cancel(chance, queue, lane);
      else if (chance.next() < 0.2) await submit([keyFor(chance, queue)], lane, chance);
      else
        await submit(
          Array.from({ length: Math.min(lack, BATCH) }, () => keyFor(chance, queue)),
          lane,
          chance,
        );
    }
  }

  function hungriest(): [queue: string, lack: number] {
    const known = pending();
    const lacks = QUEUE_NAMES.map((queue): [string, number] => {
      const since = now() - LOOKED_EVERY_MS;
      const mine = (sent.get(queue) ?? []).filter(({ at }) => at > since);
      sent.set(queue, mine);
      const sum = mine.reduce((total, { count }) => total + count, known.get(queue) ?? 0);
      return [queue, QUEUES[queue]!.backlog - sum];
    });
    return lacks.toSorted((a, b) => b[1] / QUEUES[b[0]]!.backlog - a[1] / QUEUES[a[0]]!.backlog)[0]!;
  }

  /** Mostly a new task; else a newer, an older or the same version of a recent one. */
  function keyFor(chance: Chance, queue: string): Key {
    const known = recent.get(queue)!;
    const kind = chance.next();
    if (kind < 0.85 || known.length === 0) {
      const key = { queue, taskId: String(++lastId), version: '5' };
      known.push(key);
      if (known.length > RECENT) known.shift();
      return key;
    }
    const key = chance.pick(known);
    if (kind >= 0.95) return key;
    const id = `${queue}/${key.taskId}`;
    const top = highest.get(id) ?? 5n;
    if (kind >= 0.93) return { ...key, version: String(top - 1n) };
    highest.set(id, top + 1n);
    return { ...key, version: String(top + 1n) };
  }

  async function submit(keys: Key[], lane: number, chance: Chance): Promise<void> {
    sent.get(keys[0]!.queue)?.push({ at: now(), count: keys.length });
    let left = keys;
    for (let turn = lane; left.length > 0; turn++) {
      const answered = await submitOnce(left, turn, chance);
      left = answered ? left.filter((key, i) => !note(key, answered.entries[i]!, answered.sentAt)) : left;
      if (left.length === 0) return;
      counts.retried += 1;
      await sleep(AGAIN_MS);
    }
  }

  async function submitOnce(keys: Key[], turn: number, chance: Chance) {
    const tasks = keys.map(({ queue, taskId, version }) => ({
      queue,
      task_id: taskId,
      task_version: version,
      priority: chance.between(1, 5),
      payload: { document: taskId },
      max_retries: retriesOf(fateOf(seed, { queue, taskId, version })),
    }));
    if (tasks.length > 1) {
      const said = await post('/v1/tasks/batch', turn, { tasks });
      return said?.status === 200 ? { entries: said.body.results as Entry[], sentAt: said.sentAt } : null;
    }
    const said = await post('/v1/tasks', turn, tasks[0]);
    if (said === null || said.status === 503 || said.status >= 500) return null;
    const { outcome, code = '' } = said.body as { outcome?: string; code?: string };
    const entry: Entry = outcome ? { outcome } : { error: { code, status: said.status } };
    return { entries: [entry], sentAt: said.sentAt };
  }

  /** Whether it was a definite answer. */
  function note({ queue, taskId, version }: Key, { outcome, error }: Entry, sentAt: number): boolean {
    if (error && error.status >= 500) return false;
    if (outcome && outcome !== 'stale') counts.accepted += 1;
    journal.write({
      e: 'submit',
      q: queue,
      i: taskId,
      v: version,
      o: outcome ?? error!.code,
      s: sentAt,
      w: Date.now(),
    });
    return true;
  }

  async function cancel(chance: Chance, queue: string, lane: number): Promise<void> {
    const known = recent.get(queue)!;
    if (known.length === 0) return;
    const { taskId, version } = chance.pick(known);
    const path = `/v1/tasks/${taskId}/versions/${version}/cancel?queue=${queue}`;
    journal.write({ e: 'cancel', q: queue, i: taskId, v: version });
    for (let turn = lane; !stopped; turn++) {
      const said = await post(path, turn, {});
      if (said && said.status < 500) return;
      await sleep(AGAIN_MS);
    }
  }

  async function post(path: string, turn: number, body: unknown): Promise<Answer | null> {
    const sentAt = now();
    try {
      const answer = await request(instances[turn % instances.length]! + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        dispatcher: agent,
      });
      return { status: answer.statusCode, body: (await answer.body.json()) as Answer['body'], sentAt };
    } catch {
      return null;
    }
  }
}
