/** The HTTP side of the parser: POST /parse, GET /livez, GET /stats. Each answer is one docsched has a rule for. */
import express, { type ErrorRequestHandler, type Express, type Request, type Response } from 'express';
import type { Logger } from 'pino';
import { locate } from './locate.ts';
import { type Problem, sendProblem } from './problem.ts';
import { readPush } from './push.ts';
import type { Acceptance, Runs } from './runs.ts';

/** Inline documents travel in the push; larger ones are better named by file. */
const PUSH_MAX_BYTES = 32 * 1024 * 1024;
/** A slot is free again in about the time of one parse. */
const BUSY_RETRY_S = 1;
/** Another process will have taken this one's place by then. */
const STOPPING_RETRY_S = 5;

export type ServerDeps = { documentsDir: string; runs: Runs; log: Logger };

export function createServer({ documentsDir, runs, log }: ServerDeps): Express {
  const app = express().disable('x-powered-by').disable('etag');
  app.get('/livez', (_request, response) => void response.json({ status: 'ok' }));
  app.get('/stats', (_request, response) => void response.json(runs.stats()));
  app.post('/parse', express.json({ limit: PUSH_MAX_BYTES }), async (request, response) => {
    const problem = await takePush(request, { documentsDir, runs });
    if (problem === undefined) response.status(202).json({ accepted: true });
    else refuse(response, problem, log);
  });
  app.use((_request, response) => sendProblem(response, NO_ROUTE));
  app.use(createErrorHandler(log));
  return app;
}

/** Undefined: accepted, now or before. */
async function takePush(
  request: Request,
  { documentsDir, runs }: Omit<ServerDeps, 'log'>,
): Promise<Problem | undefined> {
  if (!request.is('application/json')) return NOT_JSON;
  const read = readPush(request.body);
  if (!read.ok) return read.problem;
  // A known attempt was accepted once: a document that has been moved since does not change that.
  if (runs.knows(read.push.attempt_id)) return undefined;
  const located = await locate(read.payload, documentsDir);
  if (!located.ok) return located.problem;
  return PROBLEM_OF[runs.accept(read.push, located.document, request.get('traceparent'))];
}

const PROBLEM_OF: Record<Acceptance, Problem | undefined> = {
  accepted: undefined,
  repeated: undefined,
  late: {
    status: 408,
    code: 'deadline_passed',
    title: 'The deadline is past',
    detail: 'The push arrived after its deadline and was not worked on.',
    pointer: '/deadline',
  },
  busy: {
    status: 429,
    code: 'all_slots_taken',
    title: 'All slots are taken',
    detail: 'This parser is working on as many documents as it may.',
    retryAfterS: BUSY_RETRY_S,
  },
  stopping: {
    status: 503,
    code: 'stopping',
    title: 'The parser is shutting down',
    detail: 'It finishes what it has and takes nothing new.',
    retryAfterS: STOPPING_RETRY_S,
  },
};

const NOT_JSON: Problem = {
  status: 415,
  code: 'unsupported_media_type',
  title: 'The body must be application/json',
  detail: 'A push is JSON.',
};

const NO_ROUTE: Problem = {
  status: 404,
  code: 'no_such_route',
  title: 'There is no such route',
  detail: 'This parser has POST /parse, GET /livez and GET /stats.',
};

function refuse(response: Response, problem: Problem, log: Logger): void {
  log.info({ event: 'push_refused', http_status: problem.status, code: problem.code });
  sendProblem(response, problem);
}

/** Faults found while the body was read carry a status; anything else is this parser's own fault. */
const createErrorHandler =
  (log: Logger): ErrorRequestHandler =>
  (error, _request, response, _next) => {
    const status: unknown = error?.status;
    if (typeof status === 'number' && status >= 400 && status < 500) {
      const code = status === 413 ? 'push_too_large' : 'unreadable_push';
      return refuse(response, { status, code, title: 'The push cannot be read', detail: String(error.message) }, log);
    }
    log.error({ event: 'parser_fault', err: error });
    sendProblem(response, {
      status: 500,
      code: 'parser_fault',
      title: 'The parser failed',
      detail: 'The push was not worked on.',
    });
  };
