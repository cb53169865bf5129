/**
 * Preloaded with --import before anything else. Starts the OpenTelemetry SDK for traces when an OTLP endpoint is set
 * (OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT); without one nothing is loaded. Metrics are
 * prom-client's.
 */
const endpoint = process.env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? process.env.OTEL_EXPORTER_OTLP_ENDPOINT;

/** Sends what is buffered; the last thing before the process exits. */
export const stopTelemetry = endpoint && process.env.OTEL_SDK_DISABLED !== 'true' ? await startSdk() : async () => {};

async function startSdk(): Promise<() => Promise<void>> {
  process.env.OTEL_SERVICE_NAME ??= 'docsched';
  process.env.OTEL_METRICS_EXPORTER ??= 'none';
  process.env.OTEL_LOGS_EXPORTER ??= 'none';
  const { NodeSDK } = await import('@opentelemetry/sdk-node');
  const { OTLPTraceExporter } = await import('@opentelemetry/exporter-trace-otlp-http');
  const { idGenerator } = await import('./trace.ts');
  const sdk = new NodeSDK({ traceExporter: new OTLPTraceExporter(), instrumentations: [], idGenerator });
  sdk.start();
  return () => sdk.shutdown();
}
