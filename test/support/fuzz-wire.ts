/**
 * HTTP/1.1 as bytes over a socket of its own: what is sent need not be a request at all. Answers are read by the book, one
 * after another, so that pipelined ones are told apart.
 */
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

export type Said = { status: number; headers: Map<string, string>; body: string };
export type Exchange = {
  /** Bytes, and how long to wait before the next ones. */
  steps: readonly (Uint8Array | number)[];
  /** Methods of the requests sent, in order: an answer to HEAD has no body. */
  methods: readonly string[];
  /** Read no longer than this once all is sent. */
  waitMs: number;
  /** Break the connection off instead of reading. */
  abort?: boolean;
};

const CRLF2 = Buffer.from('\r\n\r\n');
const NO_BODY = new Set([204, 304]);

/** The answers, until there is one a request, the connection ends, or `waitMs` are over. Never rejects. */
export function exchange(port: number, { steps, methods, waitMs, abort = false }: Exchange): Promise<Said[]> {
  return new Promise((resolve) => {
    const answers: Said[] = [];
    let received: Buffer = Buffer.alloc(0);
    let timer: NodeJS.Timeout | undefined;
    const socket = connect({ port, host: '127.0.0.1', noDelay: true, allowHalfOpen: true });
    const end = () => {
      clearTimeout(timer);
      socket.destroy();
      resolve(answers);
    };
    const read = (closed: boolean) => {
      for (;;) {
        const taken = takeAnswer(received, methods[answers.length] ?? 'GET', closed);
        if (!taken) return;
        received = taken.rest;
        if (taken.answer.status >= 200) answers.push(taken.answer);
        if (answers.length === methods.length) return end();
      }
    };
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
      read(false);
    });
    // The server may end the connection while it is still being written to.
    socket.on('error', () => {});
    socket.once('end', () => {
      read(true);
      end();
    });
    socket.once('close', () => {
      read(true);
      end();
    });
    const send = async () => {
      for (const step of steps) {
        if (socket.destroyed) return;
        if (typeof step === 'number') await sleep(step);
        else socket.write(step);
      }
      if (abort) return end();
      timer = setTimeout(end, waitMs);
    };
    void send();
  });
}

type Taken = { answer: Said; rest: Buffer };

/** The first answer in `bytes`; undefined while it is incomplete. */
function takeAnswer(bytes: Buffer, method: string, closed: boolean): Taken | undefined {
  const headEnd = bytes.indexOf(CRLF2);
  if (headEnd < 0) return undefined;
  const [first = '', ...lines] = bytes.subarray(0, headEnd).toString('latin1').split('\r\n');
  const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(first)?.[1] ?? Number.NaN);
  const headers = new Map(
    lines.map((line): [string, string] => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
    }),
  );
  const rest = bytes.subarray(headEnd + 4);
  const said = (body: Buffer, length = body.length): Taken => ({
    answer: { status, headers, body: body.toString('utf8') },
    rest: rest.subarray(length),
  });
  if (method === 'HEAD' || status < 200 || NO_BODY.has(status)) return said(Buffer.alloc(0));
  // Its first bytes are enough: it has no end.
  if (headers.get('content-type')?.startsWith('text/event-stream')) return said(rest);
  if (headers.get('transfer-encoding') === 'chunked') return takeChunks(rest, said);
  if (!headers.has('content-length')) return closed ? said(rest) : undefined;
  const length = Number(headers.get('content-length'));
  return rest.length < length ? undefined : said(rest.subarray(0, length));
}

function takeChunks(bytes: Buffer, said: (body: Buffer, length: number) => Taken): Taken | undefined {
  const chunks: Buffer[] = [];
  for (let at = 0; ; ) {
    const lineEnd = bytes.indexOf('\r\n', at);
    if (lineEnd < 0) return undefined;
    const size = Number.parseInt(bytes.toString('latin1', at, lineEnd), 16);
    const end = lineEnd + 2 + size + 2;
    if (bytes.length < end) return undefined;
    if (size === 0) return said(Buffer.concat(chunks), end);
    chunks.push(bytes.subarray(lineEnd + 2, lineEnd + 2 + size));
    at = end;
  }
}
