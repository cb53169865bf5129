/**
 * The HTTP side of a push: one request, one reply, over kept-alive connections. Knows when the first byte left, which
 * decides between "the target is broken" and "in doubt". Never follows redirects, never repeats a request.
 */
import { Agent, type Dispatcher } from 'undici';
import type { PushReply } from './answer.ts';

export type PushRequest = {
  url: URL;
  headers: Record<string, string>;
  body: string;
  timeoutMs: number;
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

/** Connecting is quick or hopeless; what cannot connect is `broken`, not `in doubt`. */
const CONNECT_TIMEOUT_MS = 3_000;
/** Shorter than the 5 s after which node's and many other servers close idle connections, so that they rarely race us. */
const KEEP_ALIVE_MS = 4_000;
const KEEP_ALIVE_MAX_MS = 60_000;

/** `connections`: the most at once to one origin; at least the number of concurrent pushes, so that none queues. */
export function createParserClient({ connections }: { connections: number }): ParserClient {
  const agent = new Agent({
    connections,
    pipelining: 1,
    connectTimeout: CONNECT_TIMEOUT_MS,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MAX_MS,
    headersTimeout: 0,
    bodyTimeout: 0,
  });
  return {
    push: (request) => new Promise((resolve) => dispatch(agent, request, resolve)),
    close: () => agent.destroy(),
  };
}

function dispatch(agent: Agent, request: PushRequest, resolve: (reply: PushReply) => void): void {
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
    finish({ kind: 'response', status, retryAfter, body: Buffer.concat(chunks).toString(), truncated });
  const abort = (error: string) => {
    finish({ kind: 'failure', sent, error });
    controller?.abort(new Error(error));
  };
  const withhold = () => {
    finish({ kind: 'unsent', error: 'the deadline passed before the push was sent' });
    controller?.abort(new Error('past the deadline'));
  };
  const timer = setTimeout(() => abort(`no answer within ${request.timeoutMs} ms`), request.timeoutMs);

  agent.dispatch(
    {
      origin: request.url.origin,
      path: request.url.pathname + request.url.search,
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

/** Message and code of the innermost cause: `connect ECONNREFUSED 127.0.0.1:9090`. */
function describe(error: Error): string {
  const inner = error instanceof AggregateError ? (error.errors[0] as Error) : error;
  const code = (inner as { code?: string }).code;
  return code && !inner.message.includes(code) ? `${inner.message} (${code})` : inner.message;
}
