/**
 * Answers to what is no request that node can hand to the application: bad HTTP, headers without end, a body that does
 * not arrive, CONNECT. Problems like all others, written to the socket itself. The connection ends with it.
 */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Duplex } from 'node:stream';
import { AppError, ERROR_CODES, type ErrorCode, toProblem } from './errors.ts';

/** What the sender still says is thrown away for this long: a connection that is reset at once may lose the answer. */
const LINGER_MS = 1_000;
const CODES: Record<string, ErrorCode> = {
  HPE_HEADER_OVERFLOW: 'headers_too_large',
  ERR_HTTP_REQUEST_TIMEOUT: 'request_timeout',
};

export function answerUnreadable(server: Server): void {
  /** The last request of a connection, with its answer. */
  const last = new WeakMap<Duplex, { req: IncomingMessage; res: ServerResponse }>();
  server.on('request', (req: IncomingMessage, res: ServerResponse) => void last.set(req.socket, { req, res }));
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // It was answered: this is what else was on its way.
    if (socket.writableEnded) return;
    if (!socket.writable || error.code === 'ECONNRESET') return void socket.destroy();
    const refusal = new AppError(CODES[error.code ?? ''] ?? 'malformed_request', `Not readable: ${error.message}`);
    const before = last.get(socket);
    // Said now, it would be taken for the answer to a request that is being handled.
    if (before && !before.res.closed && !waitsForBody(before.req))
      before.res.once('close', () => refuse(socket, refusal));
    else refuse(socket, refusal);
  });
  server.on('connect', (_req, socket) =>
    refuse(socket, new AppError('method_not_allowed', 'This is no proxy'), 'allow: GET\r\n'),
  );
}

/** Its handler reads the body, of which no more will come. */
const waitsForBody = (req: IncomingMessage): boolean => !req.complete && req.listenerCount('data') > 0;

function refuse(socket: Duplex, error: AppError, headers = ''): void {
  if (!socket.writable) return;
  const text = JSON.stringify(toProblem(error));
  socket.on('error', () => {});
  socket.end(
    `HTTP/1.1 ${error.status} ${ERROR_CODES[error.code][1]}\r\nconnection: close\r\n${headers}` +
      `content-type: application/problem+json; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  );
  socket.resume();
  setTimeout(() => socket.destroy(), LINGER_MS).unref();
}
