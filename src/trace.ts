/**
 * One trace a task: the trace id of the submit goes with the task, through every push, to its settle. It is stored with
 * the task, so retries, restarts and parsers that send no header back do not break it. The only user of the
 * OpenTelemetry API; without an SDK (telemetry.ts) spans are no-ops and only the ids travel.
 *
 * Nothing waits in an open span: a span is as long as the request or the commit it names; how long its task waited before
 * is in its attributes, and since when in its events. Attributes and kinds are those of the semantic conventions for
 * messaging (1.4x, in development), what is docsched's own is under `docsched.`.
 */
import { randomFillSync } from 'node:crypto';
import {
  type Attributes,
  type Context,
  INVALID_TRACEID,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import type { TaskKey } from './task.ts';

/**
 * Spans are named `<operation> <queue>`. Both insert and push make the context that the next one works in, so both are
 * producers. To settle is, in the conventions, what they call `process`: their own `settle` is an acknowledgement.
 */
const OPERATIONS = {
  insert: { kind: SpanKind.PRODUCER, type: 'send' },
  push: { kind: SpanKind.PRODUCER, type: 'send' },
  settle: { kind: SpanKind.CONSUMER, type: 'process' },
} as const;

export type Operation = keyof typeof OPERATIONS;

/** Every attribute of a span. */
export const ATTRIBUTE = {
  system: 'messaging.system',
  operationName: 'messaging.operation.name',
  operationType: 'messaging.operation.type',
  destination: 'messaging.destination.name',
  messageId: 'messaging.message.id',
  batchSize: 'messaging.batch.message_count',
  errorType: 'error.type',
  method: 'http.request.method',
  httpStatus: 'http.response.status_code',
  serverAddress: 'server.address',
  serverPort: 'server.port',
  taskId: 'docsched.task.id',
  taskVersion: 'docsched.task.version',
  taskStatus: 'docsched.task.status',
  priority: 'docsched.task.priority',
  retryCount: 'docsched.task.retry_count',
  waitedMs: 'docsched.task.waited_ms',
  ageMs: 'docsched.task.age_ms',
  attempt: 'docsched.attempt.number',
  openMs: 'docsched.attempt.open_ms',
  insertOutcome: 'docsched.insert.outcome',
  pushOutcome: 'docsched.push.outcome',
  verdict: 'docsched.settle.verdict',
  applied: 'docsched.settle.applied',
} as const;

/** Every event of a span: moments before it, at their own time. */
export const EVENT = {
  due: 'docsched.task.due',
  claimed: 'docsched.task.claimed',
} as const;

/** `type` is one of few words; `message` holds nothing a parser said. */
export type SpanError = { type: string; message: string };

export type TaskSpan = {
  /** Names this span, for whoever works under it. */
  traceparent: string;
  /** Status is set on failure only: an expected outcome is an attribute. */
  end(attributes?: Attributes, error?: SpanError): void;
};

export type SpanOptions = {
  attributes?: Attributes;
  /** ms since the epoch; absent: now. */
  startMs?: number;
  /** When they happened, ms since the epoch. */
  events?: Partial<Record<keyof typeof EVENT, number>>;
  /** Traceparents of spans that share a request with this one. */
  links?: readonly string[];
};

const tracer = trace.getTracer('docsched');
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

/** The caller's W3C traceparent; null when there is none or it is not valid. */
export const readTraceparent = (header: string | undefined): string | null =>
  header !== undefined && TRACEPARENT.test(header) ? header : null;

export const traceIdOf = (traceparent: string): string => traceparent.slice(3, 35);

/**
 * Begins a span under `parent`, or a new trace without one. `traceparent` of the answer names the new span; without an
 * SDK the parent, or an invented one, so that the ids travel all the same.
 */
export function startSpan(
  operation: Operation,
  { queue, taskId, taskVersion }: TaskKey,
  parent: string | null,
  { attributes, startMs, events = {}, links = [] }: SpanOptions = {},
): TaskSpan {
  const { kind, type } = OPERATIONS[operation];
  const options = {
    kind,
    // What a sampler may want to know; the rest is set only on what is recorded.
    attributes: {
      [ATTRIBUTE.system]: 'docsched',
      [ATTRIBUTE.operationName]: operation,
      [ATTRIBUTE.operationType]: type,
      [ATTRIBUTE.destination]: queue,
    },
    links: links.map((link) => ({ context: spanContextOf(link) })),
    ...(startMs === undefined ? {} : { startTime: startMs }),
  };
  const begun = parent !== null && !isUnbegun(parent);
  traceIdToBegin = parent === null || begun ? undefined : traceIdOf(parent);
  const span = tracer.startSpan(`${operation} ${queue}`, options, begun ? contextOf(parent) : ROOT_CONTEXT);
  traceIdToBegin = undefined;
  if (span.isRecording()) {
    span.setAttributes({
      [ATTRIBUTE.messageId]: `${taskId}/${taskVersion}`,
      [ATTRIBUTE.taskId]: taskId,
      [ATTRIBUTE.taskVersion]: taskVersion,
      ...attributes,
    });
    for (const [name, atMs] of Object.entries(events)) span.addEvent(EVENT[name as keyof typeof EVENT], atMs);
  }
  const traceparent = traceparentOf(span) ?? parent ?? inventTraceparent();
  return { traceparent, end: (more, error) => endSpan(span, more, error) };
}

/**
 * Where a settle hangs: under the parser's span when its report named one of the task's trace, else under what the task
 * carries. Whether it is recorded was decided when the trace began; the parser's word counts only where nobody has.
 */
export function settleParent(task: string, reported: string | undefined): string {
  const header = readTraceparent(reported);
  if (header === null || traceIdOf(header) !== traceIdOf(task)) return task;
  return isUnbegun(task) ? header : header.slice(0, -2) + task.slice(-2);
}

/** The end of a task that no attempt ended: its settle span, when it has a trace. */
export function traceEnd(key: TaskKey, traceparent: string | null, attributes: Attributes, error?: SpanError): void {
  if (traceparent !== null) startSpan('settle', key, traceparent, { attributes }).end({}, error);
}

/** The SDK's source of ids: a trace whose id was made before anybody could decide on its sampling keeps that id. */
export const idGenerator = {
  generateTraceId: (): string => traceIdToBegin ?? randomHex(16),
  generateSpanId: (): string => randomHex(8),
};
let traceIdToBegin: string | undefined;

/** Drawn in advance: a call of the generator for each id costs more than the rest of a span that is not recorded. */
const pool = Buffer.alloc(4_096);
let drawn = pool.length;

function randomHex(bytes: number): string {
  if (drawn + bytes > pool.length) {
    randomFillSync(pool);
    drawn = 0;
  }
  drawn += bytes;
  return pool.toString('hex', drawn - bytes, drawn);
}

/**
 * A trace id alone, of a task submitted where there is no SDK, or in SQL (docsched_enqueue): its span id, the beginning
 * of its trace id, names no span. Each span is then a root of that trace, and sampled like one.
 */
function inventTraceparent(): string {
  const traceId = randomHex(16);
  return `00-${traceId}-${traceId.slice(0, 16)}-00`;
}

const isUnbegun = (traceparent: string): boolean => traceparent.slice(36, 52) === traceparent.slice(3, 19);

function spanContextOf(traceparent: string) {
  const [traceId, spanId, flags] = [traceIdOf(traceparent), traceparent.slice(36, 52), traceparent.slice(53)];
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
}

const contextOf = (traceparent: string): Context => trace.setSpanContext(ROOT_CONTEXT, spanContextOf(traceparent));

/** Undefined without an SDK when there is no parent. */
function traceparentOf(span: Span): string | undefined {
  const { traceId, spanId, traceFlags } = span.spanContext();
  return traceId === INVALID_TRACEID ? undefined : `00-${traceId}-${spanId}-0${traceFlags & 1}`;
}

function endSpan(span: Span, attributes: Attributes = {}, error?: SpanError): void {
  if (!span.isRecording()) return;
  span.setAttributes(attributes);
  if (error) {
    span.setAttribute(ATTRIBUTE.errorType, error.type);
    span.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
  }
  span.end();
}
