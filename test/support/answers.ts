/** What a scripted parser may answer to a push, the good and the bad. See parser.ts. */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

export type PushBody = {
  queue: string;
  task_id: string;
  task_version: string;
  priority: number;
  payload: unknown;
  attempt: number;
  attempt_id: string;
  deadline: number;
  callback_url: string;
  progress_url: string;
  /** In batches only. */
  traceparent?: string;
};
/** One pushed attempt. A batch push gives one Push a task, all with the same `headers`, `raw` and `atMs`. */
export type Push = {
  body: PushBody;
  /** The request body's own text. */
  raw: string;
  headers: IncomingHttpHeaders;
  /** performance.now() when the request had been read. */
  atMs: number;
  /** HTTP status it was answered with; null while unanswered or when the connection was broken off. */
  answered: number | null;
};
/** Answers a request; `pushes` has one entry, or one a task of a batch. */
export type Answer = (pushes: Push[], req: IncomingMessage, res: ServerResponse) => void | Promise<void>;
/** `result` is any value; `rawResult` is JSON text, sent as it is. Without either: null. */
export type Report = { status_code?: number; status_msg?: string; result?: unknown; rawResult?: string };

export function reportText({ status_code = 0, status_msg, result = null, rawResult }: Report): string {
  const message = status_msg === undefined ? '' : `,"status_msg":${JSON.stringify(status_msg)}`;
  return `{"status_code":${status_code}${message},"result":${rawResult ?? JSON.stringify(result)}}`;
}

/** Any status with any headers, such as {"retry-after": "1"}, and any JSON body. */
export const reply =
  (status: number, headers: Record<string, string> = {}, body: unknown = {}): Answer =>
  (_pushes, _req, res) =>
    void res.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));

/** 202: accepted, will call back. */
export const accept: Answer = reply(202);

/** Done in the same call: 200 with the outcome in the body. */
export const finish =
  (report: Report | ((push: Push) => Report) = {}): Answer =>
  ([push], _req, res) => {
    const text = reportText(typeof report === 'function' ? report(push!) : report);
    res.writeHead(200, { 'content-type': 'application/json' }).end(text);
  };

/** An entry of the answer to a batch. `rawResult` is JSON text, sent as it is. */
export type Entry = Record<string, unknown> & { http_status: number; rawResult?: string };

/** 200 to a batch, with an entry for each task that is given one. */
export const results =
  (entryOf: (push: Push) => Entry | null): Answer =>
  (pushes, _req, res) => {
    const entries = pushes.flatMap((push) => {
      const entry = entryOf(push);
      if (entry === null) return [];
      const { rawResult, ...members } = entry;
      const text = JSON.stringify({ attempt_id: push.body.attempt_id, ...members });
      return rawResult === undefined ? text : `${text.slice(0, -1)},"result":${rawResult}}`;
    });
    res.writeHead(200, { 'content-type': 'application/json' }).end(`{"results":[${entries.join(',')}]}`);
  };

/** Reads the push and never answers. */
export const hang: Answer = () => {};

/** Reads the push, then breaks the connection with a TCP reset. */
export const reset: Answer = (_pushes, req) => void req.socket.resetAndDestroy();

/** Sends the headers of a 202 at once and its body byte by byte. */
export const drip =
  (everyMs: number, bytes = 20): Answer =>
  async (_pushes, _req, res) => {
    res.writeHead(202, { 'content-type': 'application/json', 'content-length': bytes });
    for (let sent = 2; sent < bytes && !res.destroyed; sent++) {
      res.write(' ');
      await sleep(everyMs);
    }
    res.end('{}');
  };
