/** The OpenTelemetry SDK in this process, with an exporter that keeps the spans. Once a process. */
import { SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { tracing } from '@opentelemetry/sdk-node';
import { idGenerator } from '../../src/trace.ts';
import type { Span } from './otlp.ts';

type Sampler = Pick<tracing.Sampler, 'shouldSample'>;

export function recordSpans() {
  const exporter = new tracing.InMemorySpanExporter();
  let sampler: Sampler = sampling(1);
  const provider = new tracing.BasicTracerProvider({
    idGenerator,
    sampler: { shouldSample: (...asked) => sampler.shouldSample(...asked) },
    spanProcessors: [new tracing.SimpleSpanProcessor(exporter)],
  });
  trace.setGlobalTracerProvider(provider);
  return {
    /** Ended by now, in that order. */
    spans: (): Span[] => exporter.getFinishedSpans().map(decode),
    /** Like OTEL_TRACES_SAMPLER=parentbased_traceidratio from now on; 1 at first. */
    sample: (ratio: number) => {
      sampler = sampling(ratio);
    },
    reset: () => {
      exporter.reset();
      sampler = sampling(1);
    },
  };
}

const sampling = (ratio: number): Sampler =>
  new tracing.ParentBasedSampler({ root: new tracing.TraceIdRatioBasedSampler(ratio) });

const ms = ([seconds, nanos]: readonly [number, number]): number => seconds * 1e3 + nanos / 1e6;

const decode = (span: tracing.ReadableSpan): Span => ({
  name: span.name,
  kind: SpanKind[span.kind]!,
  traceId: span.spanContext().traceId,
  spanId: span.spanContext().spanId,
  parentSpanId: span.parentSpanContext?.spanId,
  attributes: span.attributes as Span['attributes'],
  links: span.links.map(({ context }) => context.spanId),
  events: span.events.map(({ name }) => name),
  error: span.status.code === SpanStatusCode.ERROR ? (span.status.message ?? '') : undefined,
  startMs: ms(span.startTime),
  endMs: ms(span.endTime),
});
