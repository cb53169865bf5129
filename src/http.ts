/**
 * The express application: bodies as bytes, every error an RFC 9457 problem, nothing else.
 */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import express, {
  type ErrorRequestHandler,
  type Request,
  type RequestHandler,
  type Response,
  type Router,
} from 'express';
import type { Admission } from './admission.ts';
import { AppError, toAppError, toProblem } from './errors.ts';
import type { Log } from './log.ts';
import { readTraceparent, traceIdOf } from './trace.ts';
import { answerUnreadable } from './unreadable.ts';

const JSON_TYPE = /^application\/([\w.+-]+\+)?json\s*(;|$)/i;

/** Connections that wait to be taken, as many as Linux allows: beyond them a client tries again only after a second or more. */
const BACKLOG = 4_096;

/** How often refusals are logged while there is too much to do. */
const NOTE_EVERY_MS = 1_000;

/** What a JSON body may hold beside its payload or result. */
export const ENVELOPE_BYTES = 65_536;

/** Reads the body as bytes into req.body. 415 unless it is JSON; 413 with `code` above `maxBytes`; 503 if not admitted. */
export function readBytes(
  maxBytes: number,
  code: 'payload_too_large' | 'result_too_large' | 'body_too_large',
  admission?: Admission,
): RequestHandler {
  const read = express.raw({ type: () => true, limit: maxBytes });
  return (req, res, next) => {
    if (!JSON_TYPE.test(req.get('content-type') ?? ''))
      throw new AppError('unsupported_media_type', 'Send the body with content-type: application/json');
    const hold = admission?.admit(req, res);
    read(req, res, (error?: unknown) => {
      if (Buffer.isBuffer(req.body)) hold?.(req.body.length);
      next(error && bodyError(error, maxBytes, code));
    });
  };
}

/** The same for a bound that may change between requests. */
export function readUpTo(
  bound: () => number,
  code: Parameters<typeof readBytes>[1],
  admission: Admission,
): RequestHandler {
  let maxBytes = -1;
  let read: RequestHandler;
  return (req, res, next) => {
    const now = bound();
    if (now !== maxBytes) read = readBytes(now, code, admission);
    maxBytes = now;
    read(req, res, next);
  };
}

function bodyError(
  error: unknown,
  maxBytes: number,
  code: 'payload_too_large' | 'result_too_large' | 'body_too_large',
): AppError {
  const { type, message } = error as { type?: string; message: string };
  if (type === 'entity.too.large')
    return new AppError(code, `The body is larger than ${maxBytes} bytes`, { pointer: '' });
  if (type === 'encoding.unsupported') return new AppError('unsupported_media_type', message);
  return new AppError('malformed_json', `The body could not be read: ${message}`, { pointer: '', cause: error });
}

/** The bytes read; an absent body counts as empty. */
export const bodyOf = (req: Request): Uint8Array => (Buffer.isBuffer(req.body) ? req.body : new Uint8Array());

/** Sends JSON text as it is. */
export function sendJson(res: Response, status: number, text: string): void {
  res.status(status).set('content-type', 'application/json; charset=utf-8').end(text);
}

export function sendProblem(res: Response, error: AppError): void {
  if (error.extras.retryAfterS !== undefined) res.set('retry-after', String(error.extras.retryAfterS));
  res
    .status(error.status)
    .set('content-type', 'application/problem+json; charset=utf-8')
    .end(JSON.stringify(toProblem(error)));
}

export type HttpServer = {
  /** Resolves with the port. */
  listen(host: string, port: number): Promise<number>;
  /** From now on every request of the API but callbacks is answered 503, and connections are closed: others take over. */
  refuse(): void;
  /** Resolves when the last answer has left. */
  close(): Promise<void>;
};

export function createServer({ routers, log }: { routers: Router[]; log: Log }): HttpServer {
  let refusing = false;
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.set('query parser', 'simple');
  app.use((req, res, next) => {
    if (req.httpVersion === '1.1' && req.headers.host === undefined)
      throw new AppError('malformed_request', 'HTTP/1.1 needs a Host header');
    if (!refusing) return next();
    res.set('connection', 'close');
    // A callback is still welcome: the parser has no other way to say it, and it frees a slot. So are probes and scrapes.
    if (!req.path.startsWith('/v1/') || req.path.startsWith('/v1/callbacks')) return next();
    next(new AppError('shutting_down', 'This instance is shutting down', { retryAfterS: 1 }));
  });
  for (const router of routers) app.use(router);
  app.use((req, res) => {
    const allowed = methodsOf(routers, req.path);
    if (allowed.length === 0)
      throw new AppError('not_found', `There is no ${req.path}; GET /openapi.json lists the routes`);
    res.set('allow', allowed.join(', '));
    throw new AppError('method_not_allowed', `${req.path} answers ${allowed.join(', ')}`);
  });
  app.use(answerError(log));
  // What express itself cannot route: a target that is no URL.
  const lost = (res: Response) => sendProblem(res, new AppError('malformed_request', 'The target is not a valid URL'));
  const server = http.createServer({ requireHostHeader: false }, (req, res) =>
    app(req as Request, res as Response, () => lost(res as Response)),
  );
  // An expectation that nobody knows is no reason to refuse.
  server.on('checkExpectation', (req, res) => server.emit('request', req, res));
  answerUnreadable(server);
  // Behind load balancers that keep connections a minute; node's own default of 5 s makes them race a close.
  server.keepAliveTimeout = 65_000;
  return {
    listen: (host, port) =>
      new Promise((resolve, reject) => {
        server.once('error', (error: NodeJS.ErrnoException) =>
          reject(error.code === 'EADDRINUSE' ? new Error(`${host}:${port} is in use; set PORT to another one`) : error),
        );
        server.listen({ port, host, backlog: BACKLOG }, () => resolve((server.address() as AddressInfo).port));
      }),
    refuse: () => {
      refusing = true;
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeIdleConnections();
      }),
  };
}

/** Express 5's; @types/express does not know `match` yet. */
type Layer = Router['stack'][number] & { match(path: string): boolean };

/** Methods of the routes that match `path`. */
function methodsOf(routers: Router[], path: string): string[] {
  const layers = routers
    .flatMap((router) => router.stack as Layer[])
    .filter((layer) => layer.route && layer.match(path));
  const methods = layers.flatMap((layer) => layer.route!.stack.map(({ method }) => method.toUpperCase()));
  return [...new Set(methods.includes('GET') ? [...methods, 'HEAD'] : methods)].toSorted();
}

/** What a log line may show of the attempt that a path names. */
const attemptOf = (path: string): string | undefined => /^\/v1\/callbacks\/([\w-]{8})[\w-]{14,}/.exec(path)?.[1];

function answerError(log: Log): ErrorRequestHandler {
  const noteOverload = createOverloadNote(log);
  return (thrown, req, res, next) => {
    const error =
      (thrown as Error) instanceof URIError ? new AppError('not_found', 'The path is not valid') : toAppError(thrown);
    // Only what docsched could not do is logged: bad input is the caller's, and is told to the caller.
    if (error.code === 'overloaded') noteOverload();
    else if (error.status >= 500) {
      const cause = error.extras.cause as Error | undefined;
      const level = error.code === 'internal' ? 'error' : 'warn';
      log[level]({
        event: 'request_failed',
        method: req.method,
        route: req.route?.path,
        attempt_id: attemptOf(req.path),
        trace_id: traceIdOf(readTraceparent(req.get('traceparent')) ?? '') || undefined,
        code: error.code,
        error: cause?.message,
        stack: level === 'error' ? cause?.stack : undefined,
      });
    }
    if (res.headersSent) return next(thrown);
    sendProblem(res, error);
  };
}

/** A line a second, however many are refused: each costing a line would make it worse. */
function createOverloadNote(log: Log): () => void {
  let refused = 0;
  return () => {
    refused += 1;
    if (refused > 1) return;
    setTimeout(() => {
      log.warn({ event: 'overloaded', refused });
      refused = 0;
    }, NOTE_EVERY_MS).unref();
  };
}
