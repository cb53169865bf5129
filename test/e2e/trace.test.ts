/** Invariant 7: one trace id from the submit over the push to the settle, also when the parser sends no header back. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { startParser } from '../support/parser.ts';
import { freshDatabase } from '../support/postgres.ts';
import { startService } from '../support/process.ts';

const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const TRACEPARENT = `00-${TRACE_ID}-b7ad6b7169203331-01`;

type Span = { name: string; traceId: string; spanId: string; parentSpanId?: string };
type Export = { resourceSpans: { scopeSpans: { spans: Span[] }[] }[] };

/** What an OTLP collector is sent. */
async function startCollector(t: TestContext) {
  const spans: Span[] = [];
  const server = createServer(async (req, res) => {
    const { resourceSpans } = JSON.parse(Buffer.concat(await Array.fromAsync(req)).toString()) as Export;
    spans.push(...resourceSpans.flatMap(({ scopeSpans }) => scopeSpans.flatMap((scope) => scope.spans)));
    res.setHeader('content-type', 'application/json').end('{}');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, spans };
}

async function start(t: TestContext, env: Record<string, string>) {
  const parser = await startParser();
  t.after(() => parser.stop());
  parser.autoCallback({ afterMs: 5 });
  const { url: DATABASE_URL } = await freshDatabase('trace');
  const service = await startService({ env: { DATABASE_URL, PARSER_URL: parser.url, ...env } });
  t.after(() => service.kill());
  const run = async (taskId: number, headers: Record<string, string> = {}) => {
    const body = JSON.stringify({ task_id: taskId, task_version: 1, payload: null });
    const init = { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body };
    assert.equal((await fetch(`${service.url}/v1/tasks`, init)).status, 202);
    const ended = await fetch(`${service.url}/v1/tasks/${taskId}/versions/1?wait=10`);
    assert.equal(((await ended.json()) as { status: string }).status, 'Success');
    const push = parser.pushes.find(({ body: { task_id } }) => task_id === String(taskId));
    return String(push?.headers.traceparent);
  };
  return { service, run };
}

test("without a collector the submitter's trace id still travels to the parser, and one is made where there is none", async (t) => {
  const { run } = await start(t, {});
  assert.equal((await run(1, { traceparent: TRACEPARENT })).slice(3, 35), TRACE_ID);
  assert.match(await run(2), /^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/);
  assert.match(await run(3, { traceparent: 'nonsense' }), /^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/);
});

test('insert, push and settle are spans of one trace, with and without a traceparent from the submitter', async (t) => {
  const collector = await startCollector(t);
  const { service, run } = await start(t, { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url });
  const given = await run(1, { traceparent: TRACEPARENT });
  const made = await run(2);
  await service.stop();
  await eventually(() => assert.equal(collector.spans.length, 6));
  assert.equal(given.slice(3, 35), TRACE_ID);
  assert.notEqual(made.slice(3, 35), TRACE_ID);
  for (const traceparent of [given, made]) {
    const spans = collector.spans.filter(({ traceId }) => traceId === traceparent.slice(3, 35));
    const byName = new Map(spans.map((span) => [span.name, span]));
    assert.deepEqual([...byName.keys()].toSorted(), ['insert default', 'push default', 'settle default']);
    const insert = byName.get('insert default')!;
    assert.equal(byName.get('push default')!.spanId, traceparent.slice(36, 52), 'the parser is told the push span');
    assert.equal(byName.get('push default')!.parentSpanId, insert.spanId);
    assert.equal(byName.get('settle default')!.parentSpanId, insert.spanId);
  }
});
