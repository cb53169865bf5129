/** The HTTP side of a push against real sockets: what may have been sent is in doubt, what surely was not is broken. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { after, afterEach, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { createParserClient, type ParserClient, type PushRequest } from '../../src/pusher/parser-client.ts';
import { eventually } from '../support/eventually.ts';

type Raw = { url: URL; requests: string[]; connections: Socket[] };

const client = createParserClient();
after(() => client.close());

const endings: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0)) await end();
});

/** A TCP server. `answer` gets each complete request (head and body by content-length) and its socket. */
async function serve(answer: (socket: Socket, request: string) => void, onSocket?: (socket: Socket) => void) {
  const requests: string[] = [];
  const connections: Socket[] = [];
  const server = createServer((socket) => {
    connections.push(socket);
    socket.on('error', () => {});
    onSocket?.(socket);
    let text = '';
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1');
      for (let end = requestEnd(text); end > 0; end = requestEnd(text)) {
        requests.push(text.slice(0, end));
        text = text.slice(end);
        answer(socket, requests.at(-1)!);
      }
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  endings.push(async () => {
    for (const socket of connections) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const raw: Raw = {
    url: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/parse?x=1`),
    requests,
    connections,
  };
  return raw;
}

/** Length of the first complete request in `text`; 0 when there is none yet. */
function requestEnd(text: string): number {
  const head = text.indexOf('\r\n\r\n') + 4;
  if (head < 4) return 0;
  const end = head + Number(/^content-length: *(\d+)/im.exec(text)?.[1] ?? 0);
  return text.length >= end ? end : 0;
}

const http = (status: string, body = '', ...headers: string[]): string =>
  [`HTTP/1.1 ${status}`, ...headers, `content-length: ${body.length}`, '', body].join('\r\n');

const push = (url: URL | string, options: Partial<PushRequest> = {}, from: ParserClient = client) =>
  from.push({
    url: String(url),
    headers: { 'content-type': 'application/json', 'idempotency-key': 'k' },
    body: '{"task_id":"1"}',
    timeoutMs: 5_000,
    sendBefore: performance.now() + 60_000,
    maxAnswerBytes: 1_000,
    ...options,
  });

function assertNotSent(reply: Awaited<ReturnType<typeof push>>, error: RegExp): void {
  assert.ok(reply.kind === 'failure', reply.kind);
  assert.equal(reply.sent, false);
  assert.match(reply.error, error);
}

function assertInDoubt(reply: Awaited<ReturnType<typeof push>>, error = /./): void {
  assert.ok(reply.kind === 'failure', reply.kind);
  assert.equal(reply.sent, true);
  assert.match(reply.error, error);
}

test('a push is one POST with the headers and the body as given, and its answer comes back whole', async () => {
  const { url, requests } = await serve((socket) =>
    socket.write(http('503 Busy', '{"detail":"full"}', 'Retry-After: 7')),
  );
  const body = '{"payload":"späße \\u0000"}';
  assert.deepEqual(await push(url, { body }), {
    kind: 'response',
    status: 503,
    retryAfter: '7',
    body: '{"detail":"full"}',
    truncated: false,
  });
  assert.equal(requests.length, 1);
  const [head, sent] = requests[0]!.split('\r\n\r\n');
  assert.match(head!, /^POST \/parse\?x=1 HTTP\/1\.1\r\n/);
  assert.match(head!, /\r\nidempotency-key: k(\r\n|$)/);
  assert.equal(Buffer.from(sent!, 'latin1').toString(), body);
});

test('pushes use a kept-alive connection again', async () => {
  const { url, connections } = await serve((socket) => socket.write(http('202 Accepted')));
  for (let i = 0; i < 3; i++) {
    assert.equal((await push(url)).kind, 'response');
    await turn();
  }
  assert.equal(connections.length, 1);
});

test('an informational answer is not the answer', async () => {
  const { url } = await serve((socket) => socket.write(`HTTP/1.1 103 Early Hints\r\n\r\n${http('202 Accepted')}`));
  const reply = await push(url);
  assert.equal(reply.kind === 'response' && reply.status, 202);
});

test('the first of several Retry-After headers counts', async () => {
  const { url } = await serve((socket) => socket.write(http('429 Slow', '', 'retry-after: 3', 'retry-after: 9')));
  const reply = await push(url);
  assert.equal(reply.kind === 'response' && Number.parseInt(reply.retryAfter!, 10), 3);
});

test('a port where nobody listens: not sent', async () => {
  const { url, connections } = await serve(() => {});
  await endings.pop()!();
  assertNotSent(await push(url), /ECONNREFUSED/);
  assert.equal(connections.length, 0);
});

test('a name that does not resolve: not sent', async () => {
  assertNotSent(await push('http://parser.invalid/parse'), /ENOTFOUND|EAI_AGAIN/);
});

test('a server that speaks no TLS: not sent', async () => {
  const { url, requests } = await serve(
    () => {},
    (socket) => socket.once('data', () => socket.end(http('400 Bad Request'))),
  );
  assertNotSent(await push(`https://${url.host}/`), /wrong version|ssl|tls/i);
  assert.deepEqual(requests, []);
});

test('a reset during the TLS handshake: not sent', async () => {
  const { url, requests } = await serve(
    () => {},
    (socket) => socket.once('data', () => socket.resetAndDestroy()),
  );
  assertNotSent(await push(`https://${url.host}/`), /reset|disconnected|closed/i);
  assert.deepEqual(requests, []);
});

test('a host that does not answer the attempt to connect: not sent, after the connect time-out', async () => {
  const startedAt = performance.now();
  assertNotSent(await push((await serveDeaf()).url, { timeoutMs: 20_000 }), /connect/i);
  assert.ok(performance.now() - startedAt < 10_000);
});

test('a time-out while still connecting: not sent', async () => {
  assertNotSent(await push((await serveDeaf()).url, { timeoutMs: 100 }), /no answer within 100 ms/);
});

test('a reset after the request was read: in doubt', async () => {
  const { url } = await serve((socket) => void socket.resetAndDestroy());
  assertInDoubt(await push(url), /ECONNRESET|closed/);
});

test('a connection closed without an answer: in doubt, and the push is not repeated', async () => {
  const { url, requests } = await serve((socket) => void socket.end());
  assertInDoubt(await push(url), /closed/);
  assertInDoubt(await push(url), /closed/);
  assert.equal(requests.length, 2);
});

test('a parser that never answers: in doubt after the time-out', async () => {
  const { url, connections } = await serve(() => {});
  const startedAt = performance.now();
  assertInDoubt(await push(url, { timeoutMs: 1_000 }), /no answer within 1000 ms/);
  assert.ok(performance.now() - startedAt >= 995);
  await eventually(() => connections[0]!.destroyed);
});

test('an answer that comes byte by byte does not outlast the total time-out: in doubt', async () => {
  const { url, connections } = await serve((socket) => {
    socket.write('HTTP/1.1 202 Accepted\r\ncontent-length: 100000\r\n\r\n');
    const timer = setInterval(() => socket.write(' '), 20);
    socket.on('close', () => clearInterval(timer));
  });
  assertInDoubt(await push(url, { timeoutMs: 1_000 }), /no answer within 1000 ms/);
  await eventually(() => connections[0]!.destroyed);
});

test('a head that comes byte by byte does not outlast the total time-out: in doubt', async () => {
  const { url } = await serve((socket) => {
    socket.write('HTTP/1.1 202 Accepted\r\nx-slow: ');
    const timer = setInterval(() => socket.write('a'), 20);
    socket.on('close', () => clearInterval(timer));
  });
  assertInDoubt(await push(url, { timeoutMs: 1_000 }), /no answer within 1000 ms/);
});

test('an answer cut short: in doubt', async () => {
  const cut = await serve(
    (socket) => void socket.end('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"status_code":0'),
  );
  assertInDoubt(await push(cut.url));
  const chunked = await serve(
    (socket) => void socket.end('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\n'),
  );
  assertInDoubt(await push(chunked.url));
});

test('an answer that is no HTTP: in doubt', async () => {
  const { url } = await serve((socket) => void socket.write('hello there\r\n\r\n'));
  assertInDoubt(await push(url));
});

test('a switch of protocols nobody asked for: in doubt', async () => {
  const { url } = await serve((socket) => void socket.write('HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n'));
  assertInDoubt(await push(url));
});

test('a redirect is not followed', async () => {
  const other = await serve((socket) => socket.write(http('200 OK', '{"status_code":0}')));
  for (const status of [301, 302, 303, 307, 308]) {
    const { url } = await serve((socket) => socket.write(http(`${status} There`, '', `location: ${other.url.href}`)));
    const reply = await push(url);
    assert.equal(reply.kind === 'response' && reply.status, status);
  }
  assert.deepEqual(other.connections, []);
});

test('an answer is read up to maxAnswerBytes and then broken off', async () => {
  const chunk = 'x'.repeat(400);
  const { url, connections } = await serve((socket) => {
    socket.write('HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n');
    const timer = setInterval(() => socket.write(chunk), 1);
    socket.on('close', () => clearInterval(timer));
  });
  const reply = await push(url, { maxAnswerBytes: 1_000 });
  assert.ok(reply.kind === 'response');
  assert.equal(reply.truncated, true);
  assert.ok(reply.body.length <= 1_000, `${reply.body.length}`);
  await eventually(() => connections[0]!.destroyed);
});

test('an answer of exactly maxAnswerBytes is whole', async () => {
  const { url } = await serve((socket) => socket.write(http('200 OK', 'x'.repeat(1_000))));
  const reply = await push(url, { maxAnswerBytes: 1_000 });
  assert.deepEqual(reply.kind === 'response' && [reply.truncated, reply.body.length], [false, 1_000]);
});

test('after the deadline nothing is sent', async () => {
  const { url, requests } = await serve((socket) => socket.write(http('202 Accepted')));
  assert.equal((await push(url, { body: 'late', sendBefore: performance.now() - 1 })).kind, 'unsent');
  assert.equal((await push(url, { body: 'in time' })).kind, 'response');
  assert.deepEqual(requests.map(bodyOf), ['in time']);
});

test('a deadline that passes while the push waits for its connection: nothing is sent', async () => {
  const deaf = await serveDeaf();
  const deadline = performance.now() + 30;
  const late = push(deaf.url, { body: 'late', sendBefore: deadline });
  await eventually(() => performance.now() > deadline);
  deaf.wake();
  assert.equal((await late).kind, 'unsent');
  assert.equal((await push(deaf.url, { body: 'in time' })).kind, 'response');
  await eventually(() => assert.deepEqual(deaf.requests.map(bodyOf), ['in time']));
});

test('what was given up on before it was sent is never sent', async () => {
  const deaf = await serveDeaf();
  const other = push(deaf.url, { body: 'other' });
  assertNotSent(await push(deaf.url, { body: 'given up', timeoutMs: 30 }), /no answer within 30 ms/);
  deaf.wake();
  assert.equal((await other).kind, 'response');
  assert.equal((await push(deaf.url, { body: 'in time' })).kind, 'response');
  await eventually(() => assert.deepEqual(deaf.requests.map(bodyOf), ['other', 'in time']));
});

test('closing ends what is on its way in doubt; a later push is not sent, and does not reject', async () => {
  const { url, requests } = await serve(() => {});
  const own = createParserClient();
  const hanging = push(url, {}, own);
  const connecting = push((await serveDeaf()).url, {}, own);
  await eventually(() => requests.length === 1);
  await own.close();
  assertInDoubt(await hanging);
  assertNotSent(await connecting, /./);
  assertNotSent(await push(url, {}, own), /./);
  assert.equal(requests.length, 1);
});

test('any number of hanging pushes holds up no other to the same parser', async () => {
  const { url, requests } = await serve((socket, request) => {
    if (bodyOf(request) === 'quick') socket.write(http('202 Accepted'));
  });
  const own = createParserClient();
  const hanging = Array.from({ length: 400 }, () => push(url, { body: 'hangs' }, own));
  await eventually(() => requests.length === 400);
  assert.equal((await push(url, { body: 'quick' }, own)).kind, 'response');
  await own.close();
  for (const one of hanging) assertInDoubt(await one);
});

test('more time is asked for when the time is over, and given up only when there is none', async () => {
  let socket: Socket | undefined;
  const { url } = await serve((from) => {
    socket = from;
  });
  const left = [300, 300, 0];
  const given = push(url, { timeoutMs: 400, moreTime: async () => left.shift()! });
  assertInDoubt(await given, /no answer within 1000 ms/);
  assert.deepEqual(left, []);

  socket = undefined;
  const answered = push(url, {
    timeoutMs: 40,
    moreTime: async () => {
      await eventually(() => socket !== undefined);
      socket!.write(http('200 OK', 'done'));
      return 5_000;
    },
  });
  const reply = await answered;
  assert.equal(reply.kind === 'response' && reply.body, 'done');
});

test('an answer that comes while more time is asked for counts', async () => {
  let socket: Socket | undefined;
  const { url } = await serve((from) => {
    socket = from;
  });
  const asked = Promise.withResolvers<number>();
  let asking = false;
  const moreTime = () => {
    asking = true;
    return asked.promise;
  };
  const pushed = push(url, { timeoutMs: 50, moreTime });
  await eventually(() => socket !== undefined && asking);
  socket!.write(http('202 Accepted'));
  assert.equal((await pushed).kind, 'response');
  asked.resolve(0);
});

test('a target that is no URL: not sent', async () => {
  assertNotSent(await push('parser.test/parse'), /URL/);
});

test('a push that cannot be put into HTTP does not reject', async () => {
  assertNotSent(await push('http://127.0.0.1:1/', { headers: { bad: 'a\nb' } }), /./);
});

const bodyOf = (request: string): string => request.split('\r\n\r\n')[1]!;

/**
 * A host that does not answer SYNs: a listener that accepts nothing, its backlog full. Its worker is blocked until it is
 * woken, or the test has ended; then it answers 202 to each request.
 */
async function serveDeaf() {
  const gate = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(DEAF, { eval: true, workerData: gate });
  const [port] = (await once(worker, 'message')) as [number];
  const requests: string[] = [];
  worker.on('message', (request: string) => requests.push(request));
  const fillers = Array.from({ length: 4 }, () => connect(port, '127.0.0.1').on('error', () => {}));
  await eventually(() => fillers.filter((filler) => !filler.connecting).length >= 2);
  const wake = () => {
    Atomics.store(gate, 0, 1);
    Atomics.notify(gate, 0);
  };
  endings.push(async () => {
    wake();
    for (const filler of fillers) filler.destroy();
    await worker.terminate();
  });
  return { url: `http://127.0.0.1:${port}/`, requests, wake };
}

const DEAF = `
  const { parentPort, workerData } = require('node:worker_threads');
  const server = require('node:http').createServer(async (req, res) => {
    let body = '';
    for await (const chunk of req) body += chunk;
    parentPort.postMessage('\\r\\n\\r\\n' + body);
    res.writeHead(202).end();
  });
  server.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
    parentPort.postMessage(server.address().port);
    setImmediate(() => Atomics.wait(workerData, 0, 0));
  });`;
