/**
 * The stub parser, a process of its own: accepts every push with 202 and reports success at once. It is also the judge:
 * each task of a round must be pushed once, and each callback must be answered `applied`.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { answerRequests } from '../world/child.ts';
import { createPoster, type Poster } from './post.ts';
import { CALLBACK, clockMs, type Push, RESULT } from './wire.ts';

/** `count`: callbacks to wait for. `firstId`: of the tasks whose arrival is timed, when that is asked for. */
export type Expectation = { count: number; firstId?: number; timed?: boolean };
export type Parsed = {
  /** When the last callback was answered. */
  endedAt: number;
  pushes: number;
  applied: number;
  /** Most pushes not yet reported at once, as this side sees it. */
  mostOutstanding: number;
  /** Arrival of each task's push, ms, by index; empty unless timed. */
  arrivedAt: Float64Array;
};

const CALLBACK_CONNECTIONS = 128;
/** Nothing applied for this long: the round is stuck. */
const SILENCE_MS = 20_000;
/** A paused service may take a second to hear of it. */
const QUIET_MS = 1_500;
const LOOK_EVERY_MS = 50;

type Round = Parsed &
  Expectation & { seen: Set<string>; faults: Map<string, number>; progressAt: number; end?: () => void };
const newRound = ({ count, firstId = 0, timed = false }: Expectation): Round => ({
  count,
  firstId,
  timed,
  endedAt: 0,
  pushes: 0,
  applied: 0,
  mostOutstanding: 0,
  arrivedAt: new Float64Array(timed ? count : 0),
  seen: new Set(),
  faults: new Map(),
  progressAt: clockMs(),
});
let round = newRound({ count: 0 });

const posters = new Map<string, Poster>();
function posterOf(origin: string): Poster {
  const poster = posters.get(origin) ?? createPoster(origin, CALLBACK_CONNECTIONS);
  posters.set(origin, poster);
  return poster;
}

const server = createServer({ keepAliveTimeout: 65_000 }, (req, res) => {
  const chunks: Buffer[] = [];
  req.on('data', (chunk: Buffer) => chunks.push(chunk));
  req.on('end', () =>
    receive(chunks.length === 1 ? chunks[0]!.toString() : Buffer.concat(chunks).toString(), req, res),
  );
});

function receive(text: string, _req: IncomingMessage, res: ServerResponse): void {
  const body = JSON.parse(text) as Push | { tasks: Push[] };
  const pushes = 'tasks' in body ? body.tasks : [body];
  const now = clockMs();
  for (const push of pushes) note(push, now);
  res.writeHead(202, { 'content-length': 0 });
  res.end();
  void ('tasks' in body ? reportBatch(body.tasks) : report(body));
}

function note(push: Push, now: number): void {
  round.pushes += 1;
  if (round.seen.has(push.task_id)) fault(`task pushed twice: ${push.task_id}`);
  round.seen.add(push.task_id);
  if (round.timed) round.arrivedAt[Number(push.task_id) - round.firstId!] = now;
  round.mostOutstanding = Math.max(round.mostOutstanding, round.pushes - round.applied);
}

async function report(push: Push): Promise<void> {
  const { origin, pathname } = new URL(push.callback_url);
  try {
    const { status, text } = await posterOf(origin).post(pathname, CALLBACK);
    if (status === 200 && text.includes('"applied"')) applied(1);
    else fault(`callback answered ${status} ${text.slice(0, 200)}`);
  } catch (error) {
    fault(`callback failed: ${(error as Error).message}`);
  }
}

async function reportBatch(pushes: Push[]): Promise<void> {
  const { origin } = new URL(pushes[0]!.callback_url);
  const callbacks = pushes.map((push) => `{"attempt_id":"${push.attempt_id}","status_code":0,"result":${RESULT}}`);
  try {
    const { status, text } = await posterOf(origin).post(
      '/v1/callbacks/batch',
      `{"callbacks":[${callbacks.join(',')}]}`,
    );
    const done = text.split('"applied"').length - 1;
    if (status !== 200 || done !== pushes.length) fault(`batch callback answered ${status} ${text.slice(0, 300)}`);
    if (done > 0) applied(done);
  } catch (error) {
    fault(`callback failed: ${(error as Error).message}`);
  }
}

function applied(count: number): void {
  round.applied += count;
  round.progressAt = clockMs();
  if (round.applied < round.count || round.endedAt) return;
  round.endedAt = round.progressAt;
  round.end?.();
}

function fault(what: string): void {
  round.faults.set(what, (round.faults.get(what) ?? 0) + 1);
}

function expectRound(expectation: Expectation): void {
  round = newRound(expectation);
}

/** Resolves when the round is complete; rejects when anything went wrong in it. */
async function finishRound(): Promise<Parsed> {
  const current = round;
  await new Promise<void>((resolve, reject) => {
    if (current.endedAt) return resolve();
    current.end = resolve;
    const watch = setInterval(() => {
      if (current.endedAt) return clearInterval(watch);
      if (clockMs() - current.progressAt < SILENCE_MS) return;
      clearInterval(watch);
      reject(
        new Error(
          `stuck: ${current.applied} of ${current.count} applied, ${current.pushes} pushed; ${faultsOf(current)}`,
        ),
      );
    }, 500);
  });
  if (current.faults.size > 0) throw new Error(faultsOf(current));
  const { endedAt, pushes, applied, mostOutstanding, arrivedAt } = current;
  return { endedAt, pushes, applied, mostOutstanding, arrivedAt };
}

/** Resolves with the pushes of this round once all have been applied and no more come. */
async function drained(): Promise<number> {
  const since = clockMs();
  for (let quietMs = 0; quietMs < QUIET_MS; ) {
    const before = round.pushes;
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    const still = round.pushes === before && round.pushes === round.applied;
    quietMs = still ? quietMs + LOOK_EVERY_MS : 0;
    if (clockMs() - Math.max(round.progressAt, since) > SILENCE_MS + QUIET_MS)
      throw new Error(`not drained; ${faultsOf(round)}`);
  }
  if (round.faults.size > 0) throw new Error(faultsOf(round));
  return round.pushes;
}

const faultsOf = ({ faults }: Round): string =>
  [...faults]
    .slice(0, 5)
    .map(([what, times]) => `${what} (${times} times)`)
    .join('; ') || 'no faults';

server.listen(0, '127.0.0.1', () => {
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/parse`;
  answerRequests({ expect: expectRound, finish: finishRound, drained }, { url });
});
