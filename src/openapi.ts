/**
 * /openapi.json (OpenAPI 3.1), generated from the schemas that check the requests.
 */
import { z } from 'zod';
import { ERROR_CODES } from './errors.ts';
import { queueSettings, redriveRequest } from './queue-shape.ts';
import { STATUS } from './task.ts';
import {
  batchRequest,
  callbackBatchRequest,
  callbackRequest,
  listQuery,
  plainCallbackRequest,
  progressRequest,
  submitRequest,
  taskQuery,
  versionQuery,
} from './wire.ts';

type Json = Record<string, unknown>;

const schemaOf = (schema: z.ZodType, io: 'input' | 'output' = 'input'): Json => {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io, unrepresentable: 'any' }) as Json;
  return rest;
};
const ref = (name: string): Json => ({ $ref: `#/components/schemas/${name}` });
const json = (schema: Json): Json => ({ 'application/json': { schema } });
const answer = (description: string, schema: Json): Json => ({ description, content: json(schema) });
const problem: Json = {
  description: 'A problem (RFC 9457) with a stable `code`.',
  content: { 'application/problem+json': { schema: ref('Problem') } },
};
const body = (name: string): Json => ({ required: true, content: json(ref(name)) });

const PATTERNS: Record<string, string> = { attempt_id: '^[A-Za-z0-9_-]{22,64}$', queue: '^[a-z0-9_-]{1,64}$' };
const pathParameters = (path: string): Json[] =>
  [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string', pattern: PATTERNS[name!] ?? '^(0|[1-9][0-9]{0,18})$' },
  }));

const queryParameters = (schema: z.ZodType): Json[] => {
  // What a parameter's text is read as, say an integer.
  const { properties = {} } = schemaOf(schema, 'output') as { properties?: Record<string, Json> };
  return Object.entries(properties).map(([name, property]) => ({
    name,
    in: 'query',
    required: false,
    schema: property,
  }));
};

type Route = { summary: string; query?: z.ZodType; request?: string; answers: Record<string, Json> };

const VERSION = '/v1/tasks/{task_id}/versions/{task_version}';
const task = answer('The task.', ref('Task'));
const wrapped = answer('The task as it now is.', { type: 'object', properties: { task: ref('Task') } });
const outcome = (...outcomes: string[]): Json => ({ type: 'object', properties: { outcome: { enum: outcomes } } });
const reported: Json = {
  type: 'object',
  properties: {
    attempt_id: { type: 'string' },
    outcome: { enum: ['applied', 'duplicate'] },
    error: ref('Problem'),
  },
};
const submitted = answer('Stored, or already there.', {
  type: 'object',
  properties: { outcome: { enum: ['created', 'refreshed', 'recreated', 'existing'] }, task: ref('Task') },
});
const list = (name: string, items: Json): Json =>
  answer('A list.', { type: 'object', properties: { [name]: { type: 'array', items } } });

const queue = answer('The queue.', ref('Queue'));
const count: Json = { type: 'integer' };
const redriven = answer('What this call did; it works about 20 s at most.', {
  type: 'object',
  properties: {
    matched: count,
    redriven: count,
    skipped: { ...count, description: 'A newer version was accepted: left Failed.' },
    due_by: { type: ['integer', 'null'], description: 'When the last one redriven falls due, ms since the epoch' },
  },
});

/** path -> method -> route. A test compares them with those the application serves. */
const ROUTES: Record<string, Record<string, Route>> = {
  '/v1/tasks': {
    post: { summary: 'Submit a task', request: 'SubmitRequest', answers: { 202: submitted, 200: submitted } },
    get: { summary: 'List tasks', query: listQuery, answers: { 200: list('tasks', ref('Task')) } },
  },
  '/v1/tasks/batch': {
    post: {
      summary: 'Submit up to 1000 tasks',
      request: 'BatchRequest',
      answers: { 200: list('results', { type: 'object' }) },
    },
  },
  '/v1/tasks/{task_id}': { get: { summary: 'The latest version', query: taskQuery, answers: { 200: task } } },
  '/v1/tasks/{task_id}/versions': {
    get: { summary: 'Versions, newest first', query: taskQuery, answers: { 200: list('versions', ref('Task')) } },
  },
  [VERSION]: {
    get: { summary: 'One version; waits for its end with ?wait', query: versionQuery, answers: { 200: task } },
  },
  [`${VERSION}/attempts`]: {
    get: { summary: 'Its attempts', query: taskQuery, answers: { 200: list('attempts', { type: 'object' }) } },
  },
  [`${VERSION}/events`]: {
    get: {
      summary: 'Its changes until its end, as server-sent events',
      query: taskQuery,
      answers: {
        200: {
          description:
            'Events `task`: id is update_at, data the task without payload and result. Last-Event-ID: what is known already.',
          content: { 'text/event-stream': { schema: { type: 'string' } } },
        },
        204: { description: 'Last-Event-ID is the state in which the task ended: nothing will follow.' },
      },
    },
  },
  [`${VERSION}/cancel`]: {
    post: { summary: 'Cancel a Pending or Processing task', query: taskQuery, answers: { 200: wrapped } },
  },
  [`${VERSION}/retry`]: {
    post: { summary: 'Retry a Failed or Stopped task', query: taskQuery, answers: { 202: wrapped } },
  },
  '/v1/callbacks': {
    post: {
      summary: 'A parser reports, plain form',
      request: 'PlainCallbackRequest',
      answers: { 200: answer('Durable.', outcome('applied', 'duplicate')) },
    },
  },
  '/v1/callbacks/batch': {
    post: {
      summary: 'A parser reports up to 1000 attempts',
      request: 'CallbackBatchRequest',
      answers: { 200: list('results', reported) },
    },
  },
  '/v1/callbacks/{attempt_id}': {
    post: {
      summary: 'A parser reports',
      request: 'CallbackRequest',
      answers: { 200: answer('Durable.', outcome('applied', 'duplicate')) },
    },
  },
  '/v1/callbacks/{attempt_id}/progress': {
    post: {
      summary: 'A parser is at work',
      request: 'ProgressRequest',
      answers: {
        200: answer('Stored; stop when cancel_requested.', {
          type: 'object',
          properties: {
            outcome: { const: 'applied' },
            cancel_requested: { type: 'boolean' },
            deadline: { type: 'integer' },
          },
        }),
      },
    },
  },
  '/v1/queues': { get: { summary: 'All queues', answers: { 200: list('queues', ref('Queue')) } } },
  '/v1/queues/{queue}': {
    get: { summary: 'A queue: what was set, and what is in force', answers: { 200: queue } },
    put: {
      summary: 'Create a queue or replace all its settings',
      request: 'QueueSettings',
      answers: { 201: queue, 200: queue },
    },
    patch: { summary: 'Change some settings (RFC 7396)', request: 'QueueSettings', answers: { 200: queue } },
  },
  '/v1/queues/{queue}/redrive': {
    post: {
      summary: 'Bring Failed tasks back to Pending, at a bounded rate',
      request: 'RedriveRequest',
      answers: { 200: redriven },
    },
  },
  '/livez': { get: { summary: 'The process runs', answers: { 200: answer('Alive.', { type: 'object' }) } } },
  '/readyz': {
    get: {
      summary: 'Submits and callbacks work',
      answers: {
        200: answer('Ready or degraded.', { type: 'object' }),
        503: answer('Unready or draining, with the same members.', { type: 'object' }),
      },
    },
  },
  '/metrics': { get: { summary: 'Prometheus metrics', answers: { 200: { description: 'Text format.' } } } },
  '/openapi.json': { get: { summary: 'This document', answers: { 200: answer('OpenAPI 3.1.', { type: 'object' }) } } },
};

const { secrets: _, ...shown } = schemaOf(queueSettings).properties as Record<string, Json>;
const queueSchema: Json = {
  type: 'object',
  properties: {
    ...shown,
    queue: { type: 'string' },
    secret_count: { type: 'integer', description: 'Secrets themselves are never shown.' },
    effective: { type: 'object', properties: shown, description: 'What is in force.' },
    notes: { type: 'array', items: { type: 'string' }, description: 'What the settings give up or hold back.' },
  },
};
const time: Json = { type: ['integer', 'null'], description: 'ms since the epoch' };
const text: Json = { type: ['string', 'null'] };
const taskSchema: Json = {
  type: 'object',
  properties: {
    queue: { type: 'string' },
    task_id: { type: 'string' },
    task_version: { type: 'string' },
    status: { enum: STATUS },
    reason: text,
    priority: { type: 'integer' },
    status_code: { type: ['integer', 'string', 'null'] },
    status_msg: text,
    retry_count: { type: 'integer' },
    max_retries: { type: 'integer' },
    attempt: { type: 'integer' },
    progress: { type: ['object', 'null'], properties: { percent: { type: ['number', 'null'] }, message: text } },
    ...Object.fromEntries(
      [
        'run_at',
        'next_retry_time',
        'pending_since',
        'deadline',
        'started_at',
        'finished_at',
        'create_at',
        'update_at',
      ].map((name) => [name, time]),
    ),
    result: { description: "With Success: the parser's JSON as it sent it." },
    result_url: text,
    payload: { description: 'With ?include=payload.' },
  },
};
const problemSchema: Json = {
  type: 'object',
  required: ['type', 'title', 'status', 'code', 'detail'],
  properties: {
    type: { type: 'string' },
    title: { type: 'string' },
    status: { type: 'integer' },
    code: { enum: Object.keys(ERROR_CODES) },
    detail: { type: 'string' },
    pointer: { type: 'string', description: 'JSON pointer into the body, or the name of a parameter' },
  },
};

export function openApiDocument(): Json {
  const paths = Object.entries(ROUTES).map(([path, methods]) => [
    path,
    Object.fromEntries(Object.entries(methods).map(([method, route]) => [method, operation(path, route)])),
  ]);
  const requests = {
    SubmitRequest: submitRequest,
    BatchRequest: batchRequest,
    CallbackRequest: callbackRequest,
    PlainCallbackRequest: plainCallbackRequest,
    CallbackBatchRequest: callbackBatchRequest,
    ProgressRequest: progressRequest,
    QueueSettings: queueSettings,
    RedriveRequest: redriveRequest,
  };
  const schemas = Object.fromEntries(Object.entries(requests).map(([name, schema]) => [name, schemaOf(schema)]));
  return {
    openapi: '3.1.0',
    info: { title: 'docsched', version: '1', description: 'Scheduler for versioned document-parsing tasks.' },
    paths: Object.fromEntries(paths),
    components: { schemas: { ...schemas, Task: taskSchema, Queue: queueSchema, Problem: problemSchema } },
  };
}

function operation(path: string, { summary, query, request, answers }: Route): Json {
  const parameters = [...pathParameters(path), ...(query ? queryParameters(query) : [])];
  return {
    summary,
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(request ? { requestBody: body(request) } : {}),
    responses: { ...answers, default: problem },
  };
}
