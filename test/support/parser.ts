/**
 * A scripted parser on a real HTTP server. It records every push, answers as the test says (202 by default, more in
 * answers.ts), and reports back when told to, or by itself with `autoCallback`.
 */
import { once } from 'node:events';
import {
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { Agent, request } from 'undici';
import { type Answer, accept, type Push, type PushBody, type Report, reportText } from './answers.ts';
import { type Outstanding, trackOutstanding } from './outstanding.ts';

/** `body` is empty when the answer is not a JSON object; `text` is the answer itself. */
export type Reply = { status: number; headers: IncomingHttpHeaders; body: Record<string, unknown>; text: string };

export type AutoCallback = {
  /** How long a parse takes. Default 0. */
  afterMs?: number | ((push: Push) => number);
  /** How many it parses at a time; more accepted tasks wait inside the parser. Default: no bound. */
  concurrency?: number;
  /** Default: status_code 0 and result null. */
  report?: Report | ((push: Push) => Report);
};

export type TestParser = Awaited<ReturnType<typeof startParser>>;

/** Most connections it opens to the service for its callbacks. */
const CALLBACK_CONNECTIONS = 128;
const CALLBACK_RETRY_MS = 100;

export async function startParser(options: { answer?: Answer; port?: number } = {}) {
  const pushes: Push[] = [];
  const arrivals = new Set<() => void>();
  const outstanding = trackOutstanding();
  const stopping = new AbortController();
  const agent = new Agent({ connections: CALLBACK_CONNECTIONS, pipelining: 1 });
  const post = createPost(agent);
  const { callback, progress } = createReports(post, outstanding);
  let answer = options.answer ?? accept;

  const server = createServer({ keepAliveTimeout: 60_000 }, async (req, res) => {
    const raw = await readText(req);
    if (raw === null) return;
    const received = receive(raw, req, res, outstanding);
    pushes.push(...received);
    for (const arrived of arrivals) arrived();
    await answer(received, req, res);
  });
  const port = await listen(server, options.port ?? 0);
  return {
    url: `http://127.0.0.1:${port}/parse`,
    port,
    /** Every push so far, in order of arrival. */
    pushes,
    outstanding,
    /** Changes the answer to pushes from now on. */
    answerWith: (next: Answer) => {
      answer = next;
    },
    /** From now on: 202, then a callback after a while, repeated until it is answered definitely. */
    autoCallback: (auto: AutoCallback = {}) => {
      answer = parseAndReport(auto, callback, stopping.signal);
    },
    /** Waits until `count` pushes have arrived since the start; resolves with all of them. */
    waitForPushes: (count: number, timeoutMs = 10_000) => waitForPushes(pushes, arrivals, count, timeoutMs),
    callback,
    progress,
    post,
    /** Breaks all connections, and what `autoCallback` still had to do is not done. */
    stop: async () => {
      stopping.abort();
      const closed = new Promise((settle) => server.close(settle));
      server.closeAllConnections();
      await Promise.all([closed, agent.destroy()]);
    },
  };
}

async function listen(server: Server, port: number): Promise<number> {
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** null when the sender broke off. */
export async function readText(req: IncomingMessage): Promise<string | null> {
  const chunks: Buffer[] = [];
  try {
    for await (const chunk of req) chunks.push(chunk);
  } catch {
    return null;
  }
  return Buffer.concat(chunks).toString('utf8');
}

function receive(raw: string, req: IncomingMessage, res: ServerResponse, outstanding: Outstanding): Push[] {
  const atMs = performance.now();
  const body = JSON.parse(raw);
  const bodies: PushBody[] = body.tasks ?? [body];
  const received = bodies.map((body): Push => ({ body, raw, headers: req.headers, atMs, answered: null }));
  for (const { body } of received) outstanding.add(body.attempt_id, body.deadline);
  const end = res.end;
  /** Judged before the answer leaves: once it has, the service may already be pushing the next one. */
  res.end = ((...args: unknown[]) => {
    settleByAnswer(received, res.statusCode, parse(String(args[0] ?? '')), outstanding);
    return Reflect.apply(end, res, args);
  }) as typeof res.end;
  return received;
}

type BatchResult = { attempt_id: string; http_status?: number; status_code?: number };

function settleByAnswer(
  received: Push[],
  status: number,
  body: Record<string, unknown>,
  outstanding: Outstanding,
): void {
  const results = (body.results ?? []) as BatchResult[];
  for (const push of received) {
    const own = results.find((result) => result.attempt_id === push.body.attempt_id);
    push.answered = own?.http_status ?? status;
    const refused = push.answered >= 300 && push.answered !== 502 && push.answered !== 504;
    const done = push.answered === 200 && (own ?? body).status_code !== undefined;
    if (refused || done) outstanding.remove(push.body.attempt_id);
  }
}

/** POST of any body with any headers to any URL; nothing is retried. */
const createPost =
  (agent: Agent) =>
  async (url: string, body: string, headers: Record<string, string> = {}): Promise<Reply> => {
    const answer = await request(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body,
      dispatcher: agent,
    });
    const text = await answer.body.text();
    return { status: answer.statusCode, headers: answer.headers, body: parse(text), text };
  };

function createReports(post: ReturnType<typeof createPost>, outstanding: Outstanding) {
  return {
    /** 200, 404 and 409 end the attempt for the parser. 5xx and a broken connection leave open whether it was settled. */
    callback: async (push: Push, report: Report = {}, headers: Record<string, string> = {}): Promise<Reply> => {
      const attemptId = push.body.attempt_id;
      outstanding.callbackSent(attemptId);
      const reply = await post(push.body.callback_url, reportText(report), headers);
      if ([200, 404, 409].includes(reply.status)) outstanding.remove(attemptId);
      else if (reply.status < 500) outstanding.callbackRefused(attemptId);
      return reply;
    },
    progress: async (push: Push, body: { percent?: number; message?: string; done?: boolean } = {}): Promise<Reply> => {
      const reply = await post(push.body.progress_url, JSON.stringify(body));
      if (reply.status === 200 && body.done) outstanding.remove(push.body.attempt_id);
      else if (reply.body.deadline) outstanding.extend(push.body.attempt_id, Number(reply.body.deadline));
      return reply;
    },
  };
}

function parseAndReport(
  { afterMs = 0, concurrency = Number.POSITIVE_INFINITY, report = {} }: AutoCallback,
  callback: (push: Push, report: Report) => Promise<Reply>,
  signal: AbortSignal,
): Answer {
  const waiting: Push[] = [];
  let working = 0;
  const work = async (push: Push) => {
    await sleep(typeof afterMs === 'number' ? afterMs : afterMs(push), undefined, { signal });
    for (;;) {
      const reply = await callback(push, typeof report === 'function' ? report(push) : report).catch(() => null);
      if (reply && reply.status < 500 && reply.status !== 429) return;
      await sleep(CALLBACK_RETRY_MS, undefined, { signal });
    }
  };
  const next = async () => {
    if (working >= concurrency) return;
    const push = waiting.shift();
    if (!push) return;
    working++;
    await work(push).catch(() => {}); // Only a stopping parser leaves work undone.
    working--;
    next();
  };
  return (pushes, req, res) => {
    accept(pushes, req, res);
    waiting.push(...pushes);
    for (const _push of pushes) next();
  };
}

function waitForPushes(pushes: Push[], arrivals: Set<() => void>, count: number, timeoutMs: number): Promise<Push[]> {
  return new Promise((resolve, reject) => {
    const end = (settle: () => void) => {
      clearTimeout(timer);
      arrivals.delete(look);
      settle();
    };
    const look = () => {
      if (pushes.length >= count) end(() => resolve(pushes));
    };
    const giveUp = () => end(() => reject(new Error(`${pushes.length} of ${count} pushes after ${timeoutMs} ms`)));
    const timer = setTimeout(giveUp, timeoutMs);
    arrivals.add(look);
    look();
  });
}

function parse(text: string): Record<string, unknown> {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}
