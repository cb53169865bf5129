/**
 * One trace a task: the trace id of the submit goes with the task, through every push, to its settle. The only user of
 * the OpenTelemetry API; without an SDK (telemetry.ts) spans are no-ops and only the ids travel.
 */
import { randomBytes } from 'node:crypto';
import { type Context, ROOT_CONTEXT, type Span, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';

const tracer = trace.getTracer('docsched');
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

/** The caller's W3C traceparent; null when there is none or it is not valid. */
export const readTraceparent = (header: string | undefined): string | null =>
  header !== undefined && TRACEPARENT.test(header) ? header : null;

/**
 * Begins a span under `parent`, or a new trace without one. `traceparent` of the answer names the new span; when
 * nothing is recorded, the parent, or an invented one, so that the ids travel all the same. Names and kinds are the
 * contract's: `insert <queue>`, `push <queue>`, `settle <queue>`.
 */
export function startSpan(
  name: string,
  kind: 'PRODUCER' | 'CONSUMER',
  parent: string | null,
  attributes: Record<string, string | number>,
  startMs?: number,
): { traceparent: string; end(error?: string): void } {
  const options = { kind: SpanKind[kind], attributes, ...(startMs === undefined ? {} : { startTime: startMs }) };
  const span = tracer.startSpan(name, options, parent === null ? ROOT_CONTEXT : contextOf(parent));
  const traceparent = span.isRecording() ? traceparentOf(span) : (parent ?? inventTraceparent());
  return { traceparent, end: (error) => endSpan(span, error) };
}

function contextOf(traceparent: string): Context {
  const [, traceId = '', spanId = '', flags = '00'] = traceparent.split('-');
  const spanContext = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
  return trace.setSpanContext(ROOT_CONTEXT, spanContext);
}

function traceparentOf(span: Span): string {
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-0${traceFlags & 1}`;
}

/** Of a new, unsampled trace. */
function inventTraceparent(): string {
  const ids = randomBytes(24).toString('hex');
  return `00-${ids.slice(0, 32)}-${ids.slice(32)}-00`;
}

/** Status is set on failure only: an expected outcome is an attribute. */
function endSpan(span: Span, error?: string): void {
  if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR, message: error });
  span.end();
}
