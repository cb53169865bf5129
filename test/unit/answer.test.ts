/** The parser-answer table of the contract, row by row. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type PushAnswer,
  type PushReply,
  readAnswer,
  readBatchAnswer,
  readRetryAfter,
} from '../../src/pusher/answer.ts';

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
  const cases: [header: string, ms: number][] = [
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

const IDS = ['attempt-1', 'attempt-2', 'attempt-3'];
const batchAnswer = (status: number, body?: string, more?: { retryAfter?: string; truncated?: boolean }) =>
  readBatchAnswer(response(status, body, more), IDS, NOW);
/** What a batch is told of its first attempt, when its entry has these members. */
const entry = (members: string): PushAnswer =>
  batchAnswer(200, `{"results":[{"attempt_id":"attempt-1",${members}}]}`)[0]!;

test('a batch: any answer but a 2xx with results is meant for all alike', () => {
  for (let status = 200; status < 600; status++) {
    const answers = batchAnswer(status, '', { retryAfter: '5' });
    const kind = status === 503 ? 'busy' : expectedKind(status);
    assert.deepEqual(
      answers.map((answer) => answer.kind),
      IDS.map(() => kind),
      `status ${status}`,
    );
  }
  for (const answer of batchAnswer(429, '', { retryAfter: '7' }))
    assert.equal(answer.kind === 'busy' && answer.afterMs, 7_000);
  const replies: [PushReply, string][] = [
    [{ kind: 'failure', sent: true, error: 'reset' }, 'in_doubt'],
    [{ kind: 'failure', sent: false, error: 'refused' }, 'broken'],
    [{ kind: 'unsent', error: 'late' }, 'unsent'],
  ];
  for (const [reply, kind] of replies)
    assert.deepEqual(
      readBatchAnswer(reply, IDS, NOW).map((answer) => answer.kind),
      IDS.map(() => kind),
    );
});

test('a batch: a 202 is accepted whatever its body says', () => {
  const results = '{"results":[{"attempt_id":"attempt-1","http_status":422}]}';
  for (const body of ['', results, 'x'])
    assert.deepEqual(
      batchAnswer(202, body),
      IDS.map(() => ({ kind: 'accepted' })),
    );
});

test('a batch: a 2xx without results is accepted, and never one outcome for all', () => {
  const bodies = ['', '{}', 'ok', '[]', '{"results":{}}', '{"results":null}', '{"results":[{"att', '{"status_code":0}'];
  for (const body of bodies)
    assert.deepEqual(
      batchAnswer(200, body),
      IDS.map(() => ({ kind: 'accepted', unclear: true })),
      body,
    );
});

test('a batch: each attempt is told apart by its id, in any order; one left out is in doubt', () => {
  const answers = batchAnswer(
    200,
    `{"results":[
      {"attempt_id":"attempt-3","http_status":200,"status_code":0,"result":{"n":3}},
      {"attempt_id":"of-somebody-else","http_status":200,"status_code":0,"result":"stolen"},
      {"attempt_id":"attempt-1","http_status":422,"detail":"no text layer"}]}`,
  );
  assert.deepEqual(answers[0], { kind: 'refused', message: 'the parser answered 422: no text layer' });
  assert.equal(answers[1]!.kind, 'in_doubt');
  assert.deepEqual(answers[2], { kind: 'done', statusCode: '0', statusMsg: null, result: '{"n":3}' });
  for (const answer of batchAnswer(200, '{"results":[]}')) assert.equal(answer.kind, 'in_doubt');
});

test('a batch: an entry has exactly the meaning of its http_status, as an answer of its own', () => {
  for (let status = 200; status < 600; status++) {
    assert.equal(entry(`"http_status":${status}`).kind, expectedKind(status), `status ${status}`);
    const slowed = entry(`"http_status":${status},"retry_after_s":5`);
    assert.equal(slowed.kind, status === 503 ? 'busy' : expectedKind(status), `status ${status}`);
  }
});

test('a batch: an entry without an HTTP status leaves its attempt in doubt', () => {
  for (const status of ['null', '"200"', '200.5', '0', '199', '600', '-200', '1e3', '{}', 'true'])
    assert.equal(entry(`"http_status":${status},"status_code":0`).kind, 'in_doubt', status);
  assert.equal(entry('"status_code":0').kind, 'in_doubt');
  for (const element of ['null', '1', '"attempt-1"', '["attempt-1"]', '{}', '{"attempt_id":["attempt-1"]}'])
    assert.equal(batchAnswer(200, `{"results":[${element}]}`)[0]!.kind, 'in_doubt', element);
});

test('a batch: retry_after_s is in seconds, from nothing to one hour', () => {
  const cases: [seconds: string, ms: number][] = [
    ['0', 100],
    ['0.5', 500],
    ['7', 7_000],
    ['3601', HOUR_MS],
    ['1e300', HOUR_MS],
    ['-5', 100],
    ['"7"', 1_000],
    ['null', 1_000],
    ['{}', 1_000],
  ];
  for (const [seconds, ms] of cases) {
    const answer = entry(`"http_status":429,"retry_after_s":${seconds}`);
    assert.equal(answer.kind === 'busy' && answer.afterMs, ms, seconds);
  }
  assert.equal(entry('"http_status":503,"retry_after_s":null').kind, 'try_failed');
});

test('a batch: results keep their own bytes', () => {
  const result = '{ "big": 12345678901234567890.10, "b":1, "a":[2, {"attempt_id":"attempt-1"}], "nul":"\\u0000" }';
  const answer = entry(`"result": ${result} , "http_status":200,"status_code":"0","status_msg":"fine"`);
  assert.deepEqual(answer, { kind: 'done', statusCode: '0', statusMsg: 'fine', result });
});

test('a batch: of several entries of one attempt the first counts', () => {
  const body = `{"results":[{"attempt_id":"attempt-1","http_status":202},{"attempt_id":"attempt-1","http_status":500}]}`;
  assert.deepEqual(batchAnswer(200, body)[0], { kind: 'accepted' });
});

test('a batch: an answer longer than allowed is a result too large for one attempt alone, else in doubt', () => {
  const long = response(200, '{"results":[{"attempt_id":"attempt-1","http_status":200,', { truncated: true });
  assert.deepEqual(
    readBatchAnswer(long, ['attempt-1'], NOW).map(({ kind }) => kind),
    ['result_too_large'],
  );
  assert.deepEqual(
    readBatchAnswer(long, IDS, NOW).map(({ kind }) => kind),
    ['in_doubt', 'in_doubt', 'in_doubt'],
  );
});
