/**
 * Submits from a process of its own, so that it does not share a thread with what measures. Arguments: port, queue, first
 * task id, seconds, and either `closed` with a number of connections, each of which sends when it was answered; or `open`
 * with a rate: submits a second, sent when they are due, whatever was answered before. Prints one JSON line.
 */
import { connect, type Socket } from 'node:net';

export type Outcome = {
  sent: number;
  accepted: number;
  /** By status and code; those without Retry-After apart. */
  refused: Record<string, number>;
  /** Not sent, because MAX_CONNECTIONS waited for an answer; broken off. */
  unsent: number;
  broken: number;
  /** Of accepted ones, ms. */
  p50: number;
  p99: number;
  /** Accepted in each second. */
  perSecond: number[];
};

const MAX_CONNECTIONS = 8_000;
const TICK_MS = 5;
const DRAIN_MS = 15_000;

const [port, queue, first, seconds, mode, amount] = process.argv.slice(2) as [string, ...string[]];
const outcome: Outcome = { sent: 0, accepted: 0, refused: {}, unsent: 0, broken: 0, p50: 0, p99: 0, perSecond: [] };
const waits: number[] = [];
const idle: Connection[] = [];
const startedAt = performance.now();
const endsAt = startedAt + Number(seconds) * 1_000;
let connections = 0;
let waiting = 0;
let nextId = Number(first);

type Connection = { socket: Socket; sentAt: number; received: string };

function send(connection: Connection): void {
  const body = `{"queue":"${queue}","task_id":${nextId++},"task_version":1,"payload":{"url":"s3://documents/${nextId}.pdf","pages":"all"}}`;
  outcome.sent += 1;
  waiting += 1;
  connection.sentAt = performance.now();
  connection.socket.write(
    `POST /v1/tasks HTTP/1.1\r\nhost: d\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  );
}

function open(): Connection {
  connections += 1;
  const socket = connect({ port: Number(port), host: '127.0.0.1', noDelay: true });
  const connection: Connection = { socket, sentAt: 0, received: '' };
  socket.setEncoding('latin1');
  socket.on('data', (chunk: string) => read(connection, chunk));
  socket.on('error', () => {});
  socket.on('close', () => {
    connections -= 1;
    if (connection.sentAt > 0) {
      outcome.broken += 1;
      waiting -= 1;
    }
    const index = idle.indexOf(connection);
    if (index >= 0) idle.splice(index, 1);
  });
  return connection;
}

function read(connection: Connection, chunk: string): void {
  connection.received += chunk;
  const headEnd = connection.received.indexOf('\r\n\r\n');
  if (headEnd < 0) return;
  const head = connection.received.slice(0, headEnd).toLowerCase();
  const length = Number(/content-length: (\d+)/.exec(head)?.[1]);
  const chunked = head.includes('transfer-encoding: chunked');
  const complete = chunked
    ? connection.received.endsWith('0\r\n\r\n')
    : connection.received.length >= headEnd + 4 + length;
  if (!complete) return;
  note(connection, Number(head.slice(9, 12)), head, connection.received.slice(headEnd));
  connection.received = '';
  connection.sentAt = 0;
  waiting -= 1;
  if (mode === 'closed' && performance.now() < endsAt) send(connection);
  else idle.push(connection);
}

function note({ sentAt }: Connection, status: number, head: string, body: string): void {
  const now = performance.now();
  if (status === 202) {
    outcome.accepted += 1;
    const second = Math.floor((now - startedAt) / 1_000);
    outcome.perSecond[second] = (outcome.perSecond[second] ?? 0) + 1;
    waits.push(now - sentAt);
    return;
  }
  const name = `${status} ${/"code":"(\w+)"/.exec(body)?.[1]}${head.includes('retry-after: ') ? '' : ' without retry-after'}`;
  outcome.refused[name] = (outcome.refused[name] ?? 0) + 1;
}

function sendDue(): void {
  const due = Math.floor(((Math.min(performance.now(), endsAt) - startedAt) / 1_000) * Number(amount));
  while (outcome.sent + outcome.unsent < due) {
    const connection = idle.pop() ?? (connections < MAX_CONNECTIONS ? open() : undefined);
    if (connection) send(connection);
    else outcome.unsent += 1;
  }
}

function finish(): void {
  waits.sort((a, b) => a - b);
  outcome.p50 = Math.round(waits[Math.floor(waits.length * 0.5)] ?? 0);
  outcome.p99 = Math.round(waits[Math.floor(waits.length * 0.99)] ?? 0);
  outcome.perSecond = Array.from(outcome.perSecond, (count) => count ?? 0);
  process.stdout.write(`${JSON.stringify(outcome)}\n`, () => process.exit(0));
}

if (mode === 'closed') for (let i = 0; i < Number(amount); i++) send(open());
const timer = setInterval(() => {
  const now = performance.now();
  if (mode === 'open') sendDue();
  if (now < endsAt || (waiting > 0 && now < endsAt + DRAIN_MS)) return;
  clearInterval(timer);
  finish();
}, TICK_MS);
