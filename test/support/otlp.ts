/** An OpenTelemetry collector as far as the service can see: takes OTLP over HTTP as JSON and keeps the spans. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { eventually } from './eventually.ts';

export type Span = {
  name: string;
  kind: string;
  traceId: string;
  spanId: string;
  /** Undefined of a root. */
  parentSpanId: string | undefined;
  attributes: Record<string, string | number | boolean>;
  /** Span ids. */
  links: string[];
  events: string[];
  /** Undefined unless it ended with an error. */
  error: string | undefined;
  startMs: number;
  endMs: number;
};

type Value = { stringValue?: string; intValue?: number | string; doubleValue?: number; boolValue?: boolean };
type Raw = {
  name: string;
  kind: number;
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes?: { key: string; value: Value }[];
  links?: { spanId: string }[];
  events?: { name: string }[];
  status?: { code?: number; message?: string };
};
type Export = { resourceSpans: { scopeSpans: { spans: Raw[] }[] }[] };

export type Collector = Awaited<ReturnType<typeof startCollector>>;

/** By number in the OTLP schema. */
const KINDS = ['UNSPECIFIED', 'INTERNAL', 'SERVER', 'CLIENT', 'PRODUCER', 'CONSUMER'];
const ERROR = 2;
/** What a service needs to send its spans soon. */
const SOON = { OTEL_BSP_SCHEDULE_DELAY: '50' };

export async function startCollector() {
  const spans: Span[] = [];
  const server = createServer(async (req, res) => {
    const { resourceSpans } = JSON.parse(Buffer.concat(await Array.fromAsync(req)).toString()) as Export;
    spans.push(...resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans.map(decode))));
    res.setHeader('content-type', 'application/json').end('{}');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    /** For the environment of the service. */
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: url, ...SOON },
    spans,
    /** The spans of a trace in order of their start, once they have these names (`push` for `push <queue>`). */
    trace: (traceId: string, names: string[]): Promise<Span[]> =>
      eventually(() => {
        const found = spans.filter((span) => span.traceId === traceId).toSorted((a, b) => a.startMs - b.startMs);
        const has = found.map(({ name }) => name.split(' ')[0]).toSorted();
        if (String(has) !== String(names.toSorted())) throw new Error(`trace ${traceId} has the spans ${has}`);
        return found;
      }),
    stop: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

const decode = (raw: Raw): Span => ({
  name: raw.name,
  kind: KINDS[raw.kind]!,
  traceId: raw.traceId,
  spanId: raw.spanId,
  parentSpanId: raw.parentSpanId || undefined,
  attributes: Object.fromEntries((raw.attributes ?? []).map(({ key, value }) => [key, plain(value)])),
  links: (raw.links ?? []).map(({ spanId }) => spanId),
  events: (raw.events ?? []).map(({ name }) => name),
  error: raw.status?.code === ERROR ? (raw.status.message ?? '') : undefined,
  startMs: Number(raw.startTimeUnixNano) / 1e6,
  endMs: Number(raw.endTimeUnixNano) / 1e6,
});

function plain({ stringValue, intValue, doubleValue, boolValue }: Value): string | number | boolean {
  if (intValue !== undefined) return Number(intValue);
  return stringValue ?? doubleValue ?? boolValue!;
}
