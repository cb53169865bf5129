/**
 * One trace a task: the trace id of the submit goes with the task, through every push, to its settle. The only user of
 * the OpenTelemetry API; without an SDK (telemetry.ts) spans are no-ops and only the ids travel.
 */
import { randomBytes } from 'node:crypto';
import { context, type Span, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';

const tracer = trace.getTracer('docsched');
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

/** A W3C traceparent: the caller's when it is valid, else one of a new, unsampled trace. */
export function traceparentOf(header: string | undefined): string {
  if (header !== undefined && TRACEPARENT.test(header)) return header;
  return `00-${randomBytes(16).toString('hex')}-${randomBytes(8).toString('hex')}-00`;
}

/**
 * Begins a span under `traceparent`. `traceparent` of the answer names the new span, or the parent when nothing is
 * recorded. Names and kinds are the contract's: `insert <queue>`, `push <queue>`, `settle <queue>`.
 */
export function startSpan(
  name: string,
  kind: 'PRODUCER' | 'CONSUMER',
  traceparent: string,
  attributes: Record<string, string | number>,
  startMs?: number,
): { traceparent: string; end(error?: string): void } {
  const [, traceId = '', spanId = '', flags = '00'] = traceparent.split('-');
  const parent = trace.setSpanContext(context.active(), {
    traceId,
    spanId,
    traceFlags: Number.parseInt(flags, 16),
    isRemote: true,
  });
  const options = { kind: SpanKind[kind], attributes, ...(startMs === undefined ? {} : { startTime: startMs }) };
  const span = tracer.startSpan(name, options, parent);
  return { traceparent: traceparentFrom(span, traceparent), end: (error) => endSpan(span, error) };
}

function traceparentFrom(span: Span, parent: string): string {
  if (!span.isRecording()) return parent;
  const { traceId, spanId, traceFlags } = span.spanContext();
  return `00-${traceId}-${spanId}-0${traceFlags & 1}`;
}

/** Status is set on failure only: an expected outcome is an attribute. */
function endSpan(span: Span, error?: string): void {
  if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR, message: error });
  span.end();
}
