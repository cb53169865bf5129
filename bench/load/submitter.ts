/**
 * The load generator, a process of its own. `closed`: so many connections, each sending its next submit when the last
 * was answered. `open`: submits at a fixed rate whatever the answers do, so that waiting is not hidden.
 */
import { answerRequests } from '../world/child.ts';
import { createPoster, type Poster, type Reply } from './post.ts';
import { clockMs, submitText } from './wire.ts';

export type ClosedLoad = {
  /** Base URLs; submits go to them in turn. */
  urls: string[];
  firstId: number;
  /** Stops after so many tasks, or after so long. */
  count?: number;
  durationMs?: number;
  connections: number;
  /** Tasks a request: above 1 the batch route is used. */
  batch?: number;
  /** The tasks' run_at, ms since the epoch. */
  runAt?: number;
};
export type OpenLoad = { url: string; firstId: number; count: number; ratePerS: number };
export type Submitted = {
  startedAt: number;
  endedAt: number;
  /** Tasks answered 2xx (in a batch: with an outcome that stored them). */
  accepted: number;
  /** Every other answer, counted by its first words. */
  refused: Record<string, number>;
};
/** Times by index of the task, ms. */
export type SubmittedOpen = Submitted & { sentAt: Float64Array; acceptedAt: Float64Array };

const OPEN_CONNECTIONS = 256;
const TICK_MS = 1;

const posters = new Map<string, Poster>();
function posterOf(url: string, connections: number): Poster {
  const key = `${url} ${connections}`;
  const poster = posters.get(key) ?? createPoster(url, connections);
  posters.set(key, poster);
  return poster;
}

type Tally = { accepted: number; refused: Record<string, number> };

function tell(tally: Tally, { status, text }: Reply, tasks: number): void {
  const stored = tasks === 1 ? 1 : text.split('"outcome":"created"').length - 1;
  if (status >= 200 && status < 300) tally.accepted += stored;
  if (status < 200 || status >= 300 || stored !== tasks) {
    const why = `${status} ${text.slice(0, 200)}`;
    tally.refused[why] = (tally.refused[why] ?? 0) + 1;
  }
}

async function submitClosed(load: ClosedLoad): Promise<Submitted> {
  const { urls, firstId, count = Number.POSITIVE_INFINITY, durationMs, connections, batch = 1, runAt } = load;
  const tally: Tally = { accepted: 0, refused: {} };
  const perUrl = urls.map((url) => posterOf(url, Math.ceil(connections / urls.length)));
  let next = 0;
  const startedAt = clockMs();
  const until = durationMs === undefined ? Number.POSITIVE_INFINITY : startedAt + durationMs;
  const sendAll = async (poster: Poster) => {
    while (next < count && clockMs() < until) {
      const size = Math.min(batch, count - next);
      const from = firstId + next;
      next += size;
      const reply =
        size === 1 && batch === 1 ? poster.post('/v1/tasks', submitText(from, runAt)) : postBatch(poster, from, size);
      tell(tally, await reply, size);
    }
  };
  await Promise.all(Array.from({ length: connections }, (_, i) => sendAll(perUrl[i % perUrl.length]!)));
  return { startedAt, endedAt: clockMs(), ...tally };
}

function postBatch(poster: Poster, from: number, size: number): Promise<Reply> {
  const tasks = Array.from({ length: size }, (_, i) => submitText(from + i));
  return poster.post('/v1/tasks/batch', `{"tasks":[${tasks.join(',')}]}`);
}

async function submitOpen({ url, firstId, count, ratePerS }: OpenLoad): Promise<SubmittedOpen> {
  const tally: Tally = { accepted: 0, refused: {} };
  const sentAt = new Float64Array(count);
  const acceptedAt = new Float64Array(count);
  const poster = posterOf(url, OPEN_CONNECTIONS);
  const answers: Promise<void>[] = [];
  const startedAt = clockMs();
  const send = async (index: number) => {
    sentAt[index] = clockMs();
    const reply = await poster.post('/v1/tasks', submitText(firstId + index));
    acceptedAt[index] = clockMs();
    tell(tally, reply, 1);
  };
  while (answers.length < count) {
    const due = Math.min(count, Math.floor(((clockMs() - startedAt) * ratePerS) / 1000) + 1);
    while (answers.length < due) answers.push(send(answers.length));
    await new Promise((resolve) => setTimeout(resolve, TICK_MS));
  }
  await Promise.all(answers);
  return { startedAt, endedAt: clockMs(), ...tally, sentAt, acceptedAt };
}

answerRequests({ closed: submitClosed, open: submitOpen });
