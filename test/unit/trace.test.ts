/** Spans as they are made: parents, ids, sampling, status. An in-memory exporter takes them. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { beforeEach, test } from 'node:test';
import { ATTRIBUTE, readTraceparent, settleParent, startSpan, traceEnd, traceIdOf } from '../../src/trace.ts';
import { recordSpans } from '../support/otlp-memory.ts';

const recorded = recordSpans();
const KEY = { queue: 'default', taskId: '1', taskVersion: '2' };
const PARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const hex = (bytes: number) => randomBytes(bytes).toString('hex');
/** As docsched_enqueue makes one. */
const traceIdAlone = (traceId = hex(16)) => `00-${traceId}-${traceId.slice(0, 16)}-00`;

beforeEach(() => recorded.reset());

test('a span hangs under its parent, and names itself to whoever works under it', () => {
  const push = startSpan('push', KEY, PARENT);
  push.end();
  const [span] = recorded.spans();
  assert.equal(span!.name, 'push default');
  assert.deepEqual([span!.traceId, span!.parentSpanId], ['0af7651916cd43dd8448eb211c80319c', 'b7ad6b7169203331']);
  assert.equal(push.traceparent, `00-${span!.traceId}-${span!.spanId}-01`);
});

test('without a parent a trace begins', () => {
  const [one, two] = [startSpan('insert', KEY, null), startSpan('insert', KEY, null)];
  for (const span of [one, two]) span!.end();
  assert.notEqual(traceIdOf(one!.traceparent), traceIdOf(two!.traceparent));
  for (const { parentSpanId } of recorded.spans()) assert.equal(parentSpanId, undefined);
});

test('a trace id alone is the id of a trace whose spans are roots, recorded all or none', () => {
  recorded.sample(0.5);
  const all = Array.from({ length: 100 }, () => traceIdAlone());
  for (const one of all) {
    const first = startSpan('push', KEY, one);
    const again = startSpan('push', KEY, one);
    traceEnd(KEY, one, {});
    assert.equal(traceIdOf(first.traceparent), traceIdOf(one));
    assert.equal(first.traceparent.slice(-2), again.traceparent.slice(-2));
    for (const span of [first, again]) span.end();
  }
  const byTrace = Map.groupBy(recorded.spans(), ({ traceId }) => traceId);
  assert.ok(byTrace.size > 20 && byTrace.size < 80, `${byTrace.size} of 100 traces at a ratio of 0.5`);
  for (const spans of byTrace.values()) assert.equal(spans.length, 3);
  for (const { parentSpanId } of recorded.spans()) assert.equal(parentSpanId, undefined);
  const next = startSpan('insert', KEY, null);
  assert.ok(!all.some((one) => traceIdOf(one) === traceIdOf(next.traceparent)), 'the next trace has an id of its own');
});

test('what the sampler leaves out is not recorded, and says so to those who work under it', () => {
  recorded.sample(0);
  const begun = startSpan('insert', KEY, null);
  begun.end();
  assert.match(begun.traceparent, /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-00$/);
  const under = startSpan('push', KEY, begun.traceparent);
  under.end();
  assert.equal(traceIdOf(under.traceparent), traceIdOf(begun.traceparent));
  assert.deepEqual(recorded.spans(), []);
  startSpan('push', KEY, PARENT).end();
  assert.equal(recorded.spans().length, 1, 'the caller decided for its own trace');
});

test('an error is one status and one attribute, no exception; success is no status', () => {
  startSpan('push', KEY, PARENT).end({ [ATTRIBUTE.pushOutcome]: 'accepted' });
  startSpan('push', KEY, PARENT).end({}, { type: 'in_doubt', message: 'no answer within 10 ms' });
  const [fine, failed] = recorded.spans();
  assert.deepEqual([fine!.error, fine!.attributes['error.type']], [undefined, undefined]);
  assert.equal(fine!.attributes['docsched.push.outcome'], 'accepted');
  assert.deepEqual([failed!.error, failed!.attributes['error.type']], ['no answer within 10 ms', 'in_doubt']);
  assert.deepEqual(failed!.events, []);
});

test('a settle hangs under the reported span when it is of the same trace, sampled as the task is', () => {
  const parserSpan = hex(8);
  const of = (traceparent: string, flags: string) => `00-${traceIdOf(traceparent)}-${parserSpan}-${flags}`;
  const unsampled = `${PARENT.slice(0, -2)}00`;
  const alone = traceIdAlone();
  const cases: [task: string, reported: string | undefined, parent: string][] = [
    [PARENT, undefined, PARENT],
    [PARENT, 'nonsense', PARENT],
    [PARENT, of(PARENT, '01').replace('0af7', '0af8'), PARENT],
    [PARENT, of(PARENT, '01'), of(PARENT, '01')],
    [PARENT, of(PARENT, '00'), of(PARENT, '01')],
    [unsampled, of(PARENT, '01'), of(PARENT, '00')],
    [alone, of(alone, '01'), of(alone, '01')],
  ];
  for (const [task, reported, parent] of cases) assert.equal(settleParent(task, reported), parent);
});

test('only a valid traceparent of a caller counts', () => {
  assert.equal(readTraceparent(PARENT), PARENT);
  const zeroTrace = `00-${'0'.repeat(32)}-b7ad6b7169203331-01`;
  for (const header of [undefined, '', 'nonsense', PARENT.slice(1), PARENT.toUpperCase(), zeroTrace, `${PARENT}-01`])
    assert.equal(readTraceparent(header), null);
});
