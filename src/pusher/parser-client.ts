/**
 * The HTTP side of a push: one request, one reply, over kept-alive connections. Knows when the first byte left, which
 * decides between "the target is broken" and "in doubt". Never follows redirects, never repeats a request.
 */
import { Agent, type Dispatcher } from 'undici';
import type { PushReply } from './answer.ts';

export type PushRequest = {
  url: string;
  headers: Record<string, string>;
  body: string;
  timeoutMs: number;
  /** Asked when the time is over: how much longer to wait for the answer, ms; 0 is not at all. */
  moreTime?: () => Promise<number>;
  /** performance.now() after which nothing may be sent. */
  sendBefore: number;
  /** Longest answer read. */
  maxAnswerBytes: number;
};

export type ParserClient = {
  /** Never rejects. */
  push(request: PushRequest): Promise<PushReply>;
  /** Ends every request on its way (in doubt) and closes the connections. */
  close(): Promise<void>;
};

/** A target's URL as the HTTP client takes it. */
type Route = { origin: string; path: string };

/** Connecting is quick or hopeless; what cannot connect is `broken`, not `in doubt`. */
const CONNECT_TIMEOUT_MS = 3_000;
/** Shorter than the 5 s after which node's and many other servers close idle connections, so that they rarely race us. */
const KEEP_ALIVE_MS = 4_000;
const KEEP_ALIVE_MAX_MS = 60_000;
/** Node's timers hold no more, some 25 days. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** More targets than an installation has at a time. */
const MAX_ROUTES = 1_000;

/**
 * As many connections to a target as there are pushes on their way (the pushers bound those), so that none queues behind
 * the hanging ones of another queue. HTTP/1.1 only: one push, one connection, and nothing is ever sent a second time.
 */
export function createParserClient(): ParserClient {
  const agent = new Agent({
    allowH2: false,
    pipelining: 1,
    connectTimeout: CONNECT_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MAX_MS,
    headersTimeout: 0,
    bodyTimeout: 0,
  });
  const routes = new Map<string, Route>();
  return {
    push: (request) => {
      const route = routeTo(request.url);
      if (route) return new Promise((resolve) => dispatch(agent, route, request, resolve));
      return Promise.resolve({ kind: 'failure', sent: false, error: 'the target is not a URL' });
    },
    close: () => agent.destroy(),
  };

  function routeTo(url: string): Route | null {
    const known = routes.get(url);
    if (known) return known;
    const parsed = URL.parse(url);
    if (!parsed) return null;
    if (routes.size >= MAX_ROUTES) routes.clear();
    const route = { origin: parsed.origin, path: parsed.pathname + parsed.search };
    routes.set(url, route);
    return route;
  }
}

function dispatch(
  agent: Agent,
  { origin, path }: Route,
  request: PushRequest,
  resolve: (reply: PushReply) => void,
): void {
  let sent = false;
  let finished = false;
  let status = 0;
  let retryAfter: string | undefined;
  let bytes = 0;
  const chunks: Buffer[] = [];
  let controller: Dispatcher.DispatchController | undefined;
  const finish = (reply: PushReply) => {
    finished = true;
    clearTimeout(timer);
    resolve(reply);
  };
  const respond = (truncated: boolean) =>
    finish({ kind: 'response', status, retryAfter, body: textOf(chunks), truncated });
  const abort = (error: string) => {
    finish({ kind: 'failure', sent, error });
    controller?.abort(new Error(error));
  };
  const withhold = () => {
    finish({ kind: 'unsent', error: 'the deadline passed before the push was sent' });
    controller?.abort(new Error('past the deadline'));
  };
  let allowedMs = 0;
  let timer: NodeJS.Timeout;
  const wait = (ms: number) => {
    allowedMs += ms;
    timer = setTimeout(expire, Math.min(ms, MAX_TIMER_MS));
  };
  const expire = async () => {
    const moreMs = (await request.moreTime?.()) ?? 0;
    // It may have been answered meanwhile.
    if (finished) return;
    if (moreMs > 0) wait(moreMs);
    else abort(`no answer within ${Math.round(allowedMs)} ms`);
  };
  wait(request.timeoutMs);

  agent.dispatch(
    {
      origin,
      path,
      method: 'POST',
      headers: request.headers,
      body: request.body,
    },
    {
      onRequestStart(started) {
        controller = started;
        // Given up on while it waited for a connection: by now the task may be on its way to somebody else.
        if (finished) return started.abort(new Error('given up on'));
        sent = performance.now() < request.sendBefore;
        if (!sent) withhold();
      },
      onResponseStart(_, statusCode, headers) {
        status = statusCode;
        const header = headers['retry-after'];
        retryAfter = Array.isArray(header) ? header[0] : header;
      },
      onResponseData(_, chunk) {
        bytes += chunk.length;
        if (bytes <= request.maxAnswerBytes) chunks.push(chunk);
        else {
          respond(true);
          controller?.abort(new Error('answer too large'));
        }
      },
      onResponseEnd: () => respond(false),
      onResponseError: (_, error) => finish({ kind: 'failure', sent, error: describe(error) }),
    },
  );
}

const textOf = (chunks: readonly Buffer[]): string =>
  chunks.length === 1 ? chunks[0]!.toString() : Buffer.concat(chunks).toString();

/** Message and code of the innermost cause: `connect ECONNREFUSED 127.0.0.1:9090`. */
function describe(error: Error): string {
  const inner = error instanceof AggregateError ? (error.errors[0] as Error) : error;
  const code = (inner as { code?: string }).code;
  return code && !inner.message.includes(code) ? `${inner.message} (${code})` : inner.message;
}
