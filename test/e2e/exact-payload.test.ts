/** Payloads and results are opaque text: what went in comes out, byte for byte, at the parser and at the client. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import fc from 'fast-check';
import { accept, finish, type Push } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { startParser, type TestParser } from '../support/parser.ts';
import { freshDatabase } from '../support/postgres.ts';
import { type RunningService, startService } from '../support/process.ts';

const PAYLOAD_MAX_BYTES = 262_144;

let parser: TestParser;
let service: RunningService;
let tasks = 0;

before(async () => {
  const database = await freshDatabase('exact');
  parser = await startParser();
  service = await startService({ env: { DATABASE_URL: database.url, PARSER_URL: parser.url, MAX_PROCESSING: '1000' } });
});
after(async () => {
  await service?.stop();
  await parser?.stop();
});

/** JSON texts that lose something when they are parsed and written again, or that PostgreSQL's own types refuse. */
const TEXTS: Record<string, string> = {
  null: 'null',
  'a number beyond 2^53': '9007199254740993',
  'spellings of numbers': '[1.0e5,1E400,-0,0.10,1e-7,123456789012345678901234567890]',
  'a NUL as an escape': '"\\u0000"',
  'half a surrogate pair as an escape': '"\\ud800"',
  'emoji, raw and escaped': '"😀 \\ud83d\\ude00 👩‍👩‍👧"',
  'letters beyond ASCII': '{"prénom":"Zoë","名":"値","\u2028":"\u2029"}',
  'quotes and backslashes': '"\\"\\\\\\\\\\" \\/ \\b\\f\\n\\r\\t \\\\u0041"',
  'whitespace inside': '{ "a" :\n\t[ 1 ,\r\n2 ]\n}',
  'a name twice': '{"a":1,"a":2,"b":{"a":3,"a":4}}',
  'members named like ours': '{"payload":1,"result":2,"task_id":"x","attempt_id":"y","status_code":9}',
  'the end of an object in a string': '"}],\\"payload\\":1"',
  'braces of PostgreSQL’s arrays': '"{NULL,\\"a\\"}"',
  'the word NULL': '"NULL"',
  'an empty string': '""',
  'empty containers': '[{},[],""]',
  '100 000 brackets': `${'['.repeat(100_000)}${']'.repeat(100_000)}`,
  'the largest size exactly': `"${'é'.repeat((PAYLOAD_MAX_BYTES - 2) / 2)}"`,
};

const url = (path: string) => `${service.url}${path}`;
const pathOf = (taskId: string) => `/v1/tasks/${taskId}/versions/1`;
const readText = async (path: string): Promise<string> => (await fetch(url(path))).text();

async function submitRaw(path: string, body: string): Promise<string> {
  const response = await fetch(url(path), { method: 'POST', headers: { 'content-type': 'application/json' }, body });
  const text = await response.text();
  assert.ok(response.ok, text.slice(0, 300));
  return text;
}
const submit = async (payload: string): Promise<string> => {
  const taskId = String(++tasks);
  await submitRaw('/v1/tasks', `{"payload": ${payload} ,"task_id":"${taskId}","task_version":"1","max_retries":0}`);
  return taskId;
};
const pushOf = (taskId: string): Promise<Push> =>
  eventually(() => {
    const push = parser.pushes.find(({ body }) => body.task_id === taskId);
    assert.ok(push);
    return push;
  });

/** Not assert.equal: it would print both of them. */
const same = (actual: string, expected: string, what: string) =>
  assert.ok(actual === expected, `${what}: ${actual.slice(0, 200)} is not ${expected.slice(0, 200)}`);

/** From `"name":` to where the contract's next member, or the end, follows. */
function cut(text: string, name: string, next: string): string {
  const start = text.indexOf(`"${name}":`) + name.length + 3;
  return text.slice(start, text.lastIndexOf(next));
}

describe('unchanged through submit, push, callback and answer:', () => {
  before(() => parser.answerWith(accept));

  for (const [name, text] of Object.entries(TEXTS))
    test(name, async () => {
      const taskId = await submit(text);
      const push = await pushOf(taskId);
      same(cut(push.raw, 'payload', ',"attempt":'), text, 'the payload pushed');
      assert.equal((await parser.callback(push, { rawResult: text })).status, 200);
      same(cut(await readText(pathOf(taskId)), 'result', ',"result_url":'), text, 'the result');
      same(cut(await readText(`/v1/tasks/${taskId}`), 'result', ',"result_url":'), text, 'the result of the latest');
      const full = await readText(`${pathOf(taskId)}?include=payload`);
      same(full.slice(full.lastIndexOf('"result_url":null,') + 18, -1), `"payload":${text}`, 'the payload');
    });
});

test('entries of a batch keep their own payloads, byte for byte', async () => {
  parser.answerWith(accept);
  const texts = Object.values(TEXTS);
  const first = tasks + 1;
  const entries = texts.map((text) => `\n{"task_version":1,"payload":\t${text} ,"task_id":${++tasks}} `);
  const results = JSON.parse(await submitRaw('/v1/tasks/batch', `{"tasks":[${entries}] }`)).results;
  assert.deepEqual(new Set(results.map((result: { outcome?: string }) => result.outcome)), new Set(['created']));
  for (const [index, text] of texts.entries())
    same(cut((await pushOf(String(first + index))).raw, 'payload', ',"attempt":'), text, text.slice(0, 50));
});

test('a result given in the same call is kept as its own text', async () => {
  for (const text of Object.values(TEXTS)) {
    parser.answerWith(finish({ rawResult: text }));
    const taskId = await submit('null');
    const answer = await readText(`${pathOf(taskId)}?wait=30`);
    same(cut(answer, 'result', ',"result_url":'), text, 'the result');
  }
  parser.answerWith(accept);
});

test('any JSON text goes through as it is', async () => {
  parser.answerWith(accept);
  const space = fc.constantFrom('', ' ', '\n\t');
  const { text } = fc.letrec<{ text: string }>((tie) => ({
    text: fc.oneof(
      { depthSize: 'small' },
      fc.jsonValue().map((value) => JSON.stringify(value)),
      fc.string({ unit: 'binary' }).map((value) => JSON.stringify(value.toWellFormed())),
      fc.tuple(space, tie('text'), tie('text')).map(([s, a, b]) => `[${s}${a}${s},${b}${s}]`),
      fc.tuple(space, tie('text'), tie('text')).map(([s, a, b]) => `{"x"${s}:${a},${s}"x":${s}${b}}`),
    ),
  }));
  await fc.assert(
    fc.asyncProperty(fc.array(text, { minLength: 1, maxLength: 20 }), async (texts) => {
      await Promise.all(
        texts.map(async (text) => {
          const full = await readText(`${pathOf(await submit(text))}?include=payload`);
          assert.ok(full.endsWith(`,"payload":${text}}`), full);
        }),
      );
    }),
    { numRuns: 20 },
  );
});

test('a result of several megabytes comes back whole', async () => {
  parser.answerWith(accept);
  const taskId = await submit('null');
  const text = `["${'a\\u0000é😀'.repeat(300_000)}"]`;
  assert.equal((await parser.callback(await pushOf(taskId), { rawResult: text })).status, 200);
  same(cut(await readText(pathOf(taskId)), 'result', ',"result_url":'), text, 'the result');
});
