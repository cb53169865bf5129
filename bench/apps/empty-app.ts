/**
 * The same hops with no store at all: what HTTP itself costs. SERVER=express or http; without PARSER_URL the submit is
 * answered and forgotten.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Task } from '../load/wire.ts';
import { answerRequests } from '../world/child.ts';
import { createApp, createPushes, listen } from './hops.ts';
import { CONCURRENCY } from './peer.ts';

const { SERVER = 'express', PARSER_URL } = process.env;
let publicUrl = '';
const faults: string[] = [];
const pushes = PARSER_URL ? createPushes(PARSER_URL, () => publicUrl) : undefined;
const waiting: Task[] = [];
let active = 0;
let completed = 0;

function submit(task: Task): void {
  if (!pushes) return;
  waiting.push(task);
  pushNext();
}

function pushNext(): void {
  while (pushes && active < CONCURRENCY && waiting.length > 0) {
    active += 1;
    pushes
      .push(waiting.shift()!)
      .then(() => {
        completed += 1;
      })
      .catch((error) => faults.push(String(error)))
      .finally(() => {
        active -= 1;
        pushNext();
      });
  }
}

const callback = (id: string, body: unknown): boolean => pushes?.receive(id, body) ?? false;

/** Nothing but node's own HTTP server. */
function plainHandler(req: IncomingMessage, res: ServerResponse): void {
  const chunks: Buffer[] = [];
  req.on('data', (chunk: Buffer) => chunks.push(chunk));
  req.on('end', () => {
    const body = JSON.parse(Buffer.concat(chunks).toString());
    const [, , kind, id] = req.url!.split('/');
    if (kind === 'callbacks') return answer(res, callback(id!, body) ? 200 : 404, { outcome: 'applied' });
    submit(body);
    answer(res, 202, { outcome: 'created', task: { task_id: body.task_id, task_version: body.task_version } });
  });
}

function answer(res: ServerResponse, status: number, body: object): void {
  const text = JSON.stringify(body);
  res.writeHead(status, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(text),
  });
  res.end(text);
}

const { url } = await listen(SERVER === 'express' ? createApp({ submit, callback }) : plainHandler);
publicUrl = url;
answerRequests({ counts: () => ({ open: active + waiting.length, failed: 0, completed, faults }) }, { url });
