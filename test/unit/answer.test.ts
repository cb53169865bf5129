/** The parser-answer table of the contract, row by row. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type PushReply, readAnswer, readRetryAfter } from '../../src/pusher/answer.ts';

const NOW = Date.UTC(2030, 0, 1, 12);
const HOUR_MS = 3_600_000;

const response = (status: number, body = '', more: { retryAfter?: string; truncated?: boolean } = {}): PushReply => ({
  kind: 'response',
  status,
  body,
  retryAfter: more.retryAfter,
  truncated: more.truncated ?? false,
});
const answerTo = (status: number, body?: string, more?: { retryAfter?: string; truncated?: boolean }) =>
  readAnswer(response(status, body, more), NOW);

const TRY_FAILED_4XX = [408, 425];
const BROKEN_4XX = [401, 403, 404, 405, 410];

/** The table's word for each status when there is neither a body nor a header. */
function expectedKind(status: number): string {
  if (status < 300) return 'accepted';
  if (status < 400 || BROKEN_4XX.includes(status)) return 'broken';
  if (status === 429) return 'busy';
  if (TRY_FAILED_4XX.includes(status)) return 'try_failed';
  if (status < 500) return 'refused';
  return status === 502 || status === 504 ? 'in_doubt' : 'try_failed';
}

test('every status from 200 to 599 has exactly the meaning the table gives it', () => {
  for (let status = 200; status < 600; status++)
    assert.equal(answerTo(status).kind, expectedKind(status), `status ${status}`);
});

test('202 is accepted, whatever its body says', () => {
  for (const body of ['', '{}', '{"status_code":0}', 'ok', '<html>'])
    assert.deepEqual(answerTo(202, body), { kind: 'accepted' });
  assert.deepEqual(answerTo(202, 'x', { truncated: true }), { kind: 'accepted' });
});

test('another 2xx without status_code in a JSON object is accepted', () => {
  for (const status of [200, 201, 204, 299])
    for (const body of ['', '{}', '{"ok":true}', 'ok', '[{"status_code":0}]', 'null', '"status_code"', '{"status_code'])
      assert.deepEqual(answerTo(status, body), { kind: 'accepted', unclear: true }, `${status} ${body}`);
});

test('200 with status_code is done, as its callback', () => {
  assert.deepEqual(answerTo(200, '{"status_code":0}'), {
    kind: 'done',
    statusCode: '0',
    statusMsg: null,
    result: null,
  });
  assert.deepEqual(answerTo(200, '{"status_code":17,"status_msg":"no text layer","result":{"a":1}}'), {
    kind: 'done',
    statusCode: '17',
    statusMsg: 'no text layer',
    result: '{"a":1}',
  });
});

test('the result of a synchronous parser keeps its own bytes', () => {
  const result = '{ "big": 12345678901234567890.10, "b":1, "a":2, "nul":"\\u0000" }';
  const answer = answerTo(200, `{"result": ${result} , "status_code": "0"}`);
  assert.equal(answer.kind === 'done' && answer.result, result);
});

test('status_code may be any 64-bit integer', () => {
  for (const code of ['-1', '9223372036854775807', '-9223372036854775808']) {
    const answer = answerTo(200, `{"status_code":"${code}"}`);
    assert.equal(answer.kind === 'done' && answer.statusCode, code);
  }
});

test('a status_code that is no integer leaves the outcome in doubt', () => {
  for (const code of ['null', 'true', '1.5', '"one"', '{}', '9007199254740993', '"9223372036854775808"', '""'])
    assert.equal(answerTo(200, `{"status_code":${code}}`).kind, 'in_doubt', code);
});

test('a status_msg that is no string is left out', () => {
  const answer = answerTo(200, '{"status_code":1,"status_msg":{"a":1}}');
  assert.equal(answer.kind === 'done' && answer.statusMsg, null);
});

test('a 2xx answer longer than allowed is a result that is too large', () => {
  assert.equal(answerTo(200, '{"status_code":0,"result":"xxx', { truncated: true }).kind, 'result_too_large');
});

test('503 is busy with Retry-After, and a failed try without', () => {
  assert.equal(answerTo(503, '', { retryAfter: '1' }).kind, 'busy');
  assert.equal(answerTo(503, '', { retryAfter: 'soon' }).kind, 'busy');
  assert.equal(answerTo(503).kind, 'try_failed');
});

test('Retry-After changes the meaning of no other status', () => {
  for (let status = 200; status < 600; status++)
    if (status !== 503) assert.equal(answerTo(status, '', { retryAfter: '5' }).kind, expectedKind(status));
});

test('Retry-After is read as seconds or as a date, from nothing to one hour', () => {
  const date = (ms: number) => new Date(NOW + ms).toUTCString();
  const cases: [header: string | undefined, ms: number][] = [
    ['0', 0],
    ['1', 1_000],
    [' 30 ', 30_000],
    ['3600', HOUR_MS],
    ['3601', HOUR_MS],
    ['99999999999999999999', HOUR_MS],
    ['9'.repeat(400), HOUR_MS],
    [date(90_000), 90_000],
    [date(24 * HOUR_MS), HOUR_MS],
    [date(0), 0],
    [date(-60_000), 0],
    ['Fri, 31 Dec 9999 23:59:59 GMT', HOUR_MS],
    [undefined, 1_000],
    ['', 1_000],
    ['soon', 1_000],
    ['NaN', 1_000],
    ['Infinity', 1_000],
  ];
  for (const [header, ms] of cases) assert.equal(readRetryAfter(header, NOW), ms, `${header}`);
  for (const header of ['-1', '-99999', '1e9', '0x10', '1.5', '5, 10']) {
    const ms = readRetryAfter(header, NOW);
    assert.ok(ms >= 0 && ms <= HOUR_MS, `${header}: ${ms}`);
  }
});

test('429 and 503 carry their Retry-After on', () => {
  for (const status of [429, 503]) {
    const answer = answerTo(status, '', { retryAfter: '7' });
    assert.equal(answer.kind === 'busy' && answer.afterMs, 7_000);
  }
  const eager = answerTo(429, '', { retryAfter: '0' });
  assert.ok(eager.kind === 'busy' && eager.afterMs >= 100, 'it would be pushed to without pause');
  const silent = answerTo(429);
  assert.equal(silent.kind === 'busy' && silent.afterMs, 1_000);
});

test('without an answer it is in doubt once the first byte was sent, and the target is broken before', () => {
  assert.deepEqual(readAnswer({ kind: 'failure', sent: true, error: 'reset' }, NOW), {
    kind: 'in_doubt',
    message: 'reset',
  });
  assert.deepEqual(readAnswer({ kind: 'failure', sent: false, error: 'refused' }, NOW), {
    kind: 'broken',
    message: 'refused',
  });
});

test('what was not sent for its deadline is unsent', () => {
  assert.deepEqual(readAnswer({ kind: 'unsent', error: 'late' }, NOW), { kind: 'unsent', message: 'late' });
});

test("the message quotes the parser's own words, and not at length", () => {
  const words = (status: number, body: string) => {
    const answer = answerTo(status, body);
    return 'message' in answer ? answer.message : '';
  };
  assert.equal(words(422, '{"title":"No","detail":"page 3 is broken"}'), 'the parser answered 422: page 3 is broken');
  assert.equal(words(500, ' out of memory \n'), 'the parser answered 500: out of memory');
  assert.equal(words(500, ''), 'the parser answered 500');
  assert.equal(words(400, '{"detail":{"a":1}}'), 'the parser answered 400');
  assert.ok(words(400, 'x'.repeat(1_000_000)).length < 400);
});
