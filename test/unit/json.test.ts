/** Payloads and results are cut from the text of the request: whatever JSON allows comes out as it went in. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { AppError } from '../../src/errors.ts';
import { elementStarts, memberText, parseBody } from '../../src/json.ts';

const bytes = (text: string) => new TextEncoder().encode(text);

/** JSON text with whitespace anywhere it may stand, and members that look like what is searched for. */
const space = fc.constantFrom('', ' ', '\n', '\t \r\n');
const { value: jsonText } = fc.letrec<{ value: string; object: string; array: string }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.constantFrom('null', 'true', '-0', '1.0e5', '9007199254740993', '"\\u0000"', '"\\\\"', '"\\""', '"}],"', '"😀"'),
    fc.string().map((text) => JSON.stringify(text)),
    tie('object'),
    tie('array'),
  ),
  object: fc
    .array(fc.tuple(space, fc.constantFrom('payload', 'tasks', 'a', '"', '\\'), space, tie('value'), space), {
      maxLength: 4,
    })
    .map((members) => `{${members.map(([a, key, b, value, c]) => `${a}${JSON.stringify(key)}${b}:${c}${value}${a}`)}}`),
  array: fc
    .array(fc.tuple(space, tie('value')), { maxLength: 4 })
    .map((items) => `[${items.map(([a, value]) => `${a}${value}${a}`)}]`),
}));

test('a member is cut out as it was written, whatever stands around it', () => {
  fc.assert(
    fc.property(jsonText, jsonText, jsonText, space, space, (before, value, after, s, t) => {
      const text = `${s}{"before":${before},${t}"payload"${s}:${t}${value}${s},"after":${after}}${t}`;
      JSON.parse(text);
      assert.equal(memberText(text, 'payload'), value);
    }),
  );
});

test('of several members with one name the last counts, as it does for JSON.parse', () => {
  assert.equal(memberText('{"payload":1,"payload":[2],"x":{"payload":3}}', 'payload'), '[2]');
  assert.equal(memberText('{"payload":1,"\\u0070ayload":2}', 'payload'), '2', 'and so with an escaped name');
});

test('a member that is only inside another one is absent', () => {
  assert.equal(memberText('{"x":{"payload":1},"y":["payload",2],"z":"\\"payload\\":3"}', 'payload'), undefined);
  assert.equal(memberText('[{"payload":1}]', 'payload'), undefined);
  assert.equal(memberText('"payload"', 'payload'), undefined);
  assert.equal(memberText('{}', 'payload'), undefined);
});

test('elements are found where they start', () => {
  fc.assert(
    fc.property(fc.array(jsonText, { maxLength: 5 }), space, (items, s) => {
      const text = `{"x":[1,2],"tasks":${s}[${s}${items.map((item) => `${item}${s}`).join(`,${s}`)}]}`;
      JSON.parse(text);
      assert.deepEqual(
        elementStarts(text, 'tasks').map((start, index) => text.slice(start, start + items[index]!.length)),
        items,
      );
    }),
  );
  assert.deepEqual(elementStarts('{"tasks":{"0":1}}', 'tasks'), []);
  assert.deepEqual(elementStarts('{"tasks":[1],"tasks":[2,3]}', 'tasks'), [22, 24], 'the last of that name');
});

test('each element’s own member is found from its start', () => {
  const text = '{"tasks":[{"payload":1},{"x":0},{"payload":[3]}]}';
  assert.deepEqual(
    elementStarts(text, 'tasks').map((start) => memberText(text, 'payload', start)),
    ['1', undefined, '[3]'],
  );
});

test('depth costs no stack, and long strings of quotes and backslashes no time', () => {
  const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
  assert.equal(memberText(`{"payload":${deep}}`, 'payload'), deep);
  const escapes = JSON.stringify('\\"'.repeat(200_000));
  const began = performance.now();
  assert.equal(memberText(`{"payload":${escapes}}`, 'payload'), escapes);
  assert.ok(performance.now() - began < 2_000);
});

test('a body that is no JSON text in UTF-8 is malformed, and says why', () => {
  const malformed = [
    new Uint8Array(),
    bytes('{'),
    bytes("{'a':1}"),
    bytes('{"a":1}x'),
    bytes('{"a":01}'),
    bytes('"\u0000"'),
    bytes('\uFEFF{}'),
    Uint8Array.of(0x22, 0xff, 0x22),
    Uint8Array.of(0x22, 0xed, 0xa0, 0x80, 0x22),
    new Uint8Array(Buffer.from('{}', 'utf16le')),
  ];
  for (const body of malformed)
    assert.throws(
      () => parseBody(body),
      (error) => error instanceof AppError && error.code === 'malformed_json' && error.message.length > 10,
      Buffer.from(body).toString('hex'),
    );
  assert.throws(() => parseBody(new Uint8Array()), /empty/);
});

test('a body is read as value and as its own text', () => {
  const text = ' {"a": 9007199254740993, "b": "\\u0000😀"}\n';
  assert.deepEqual(parseBody(bytes(text)), { value: { a: 9007199254740992, b: '\u0000😀' }, text });
});
