/** The shapes of requests: what is let through, what is refused, and what is said about it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { AppError, type InputFault } from '../../src/errors.ts';
import {
  callbackRequest,
  check,
  checkParameters,
  isAttemptId,
  listQuery,
  progressRequest,
  readStatusCode,
  storable,
  submitRequest,
  versionQuery,
} from '../../src/wire.ts';

const VALID = { task_id: '1', task_version: '2', payload: null };
const INT64_MAX = 2n ** 63n - 1n;

function faultOf(work: () => unknown): InputFault {
  try {
    work();
  } catch (error) {
    assert.ok(error instanceof AppError, String(error));
    return { pointer: error.extras.pointer!, code: error.code, detail: error.message };
  }
  assert.fail('nothing was refused');
}
const submitFault = (members: object, at?: string): string => {
  const { code, pointer } = faultOf(() => check(submitRequest, { ...VALID, ...members }, at));
  return `${code} ${pointer}`;
};

test('a submit names at least task_id and task_version; the rest has defaults', () => {
  assert.deepEqual(check(submitRequest, VALID), {
    queue: 'default',
    task_id: '1',
    task_version: '2',
    priority: 5,
    payload: null,
  });
});

test('ids are canonical decimals of 63 bits, or JSON numbers while those are exact', () => {
  const read = (task_id: unknown) => check(submitRequest, { ...VALID, task_id }).task_id;
  fc.assert(fc.property(fc.bigInt({ min: 0n, max: INT64_MAX }), (id) => read(String(id)) === String(id)));
  fc.assert(fc.property(fc.maxSafeNat(), (id) => read(id) === String(id)));
  assert.equal(read(String(INT64_MAX)), '9223372036854775807');
  assert.equal(read(9007199254740991), '9007199254740991');
  assert.equal(read(1e15), '1000000000000000');
  assert.equal(read(-0), '0');
});

test('what is no such id is refused', () => {
  const refused = [
    '',
    ' 1',
    '1 ',
    '01',
    '-1',
    '+1',
    '1.0',
    '1e3',
    '0x1',
    '١',
    '1\n',
    '9223372036854775808',
    '9'.repeat(20),
  ];
  for (const task_id of [...refused, -1, 1.5, Number.POSITIVE_INFINITY, null, true, [], {}, ['1']])
    assert.equal(submitFault({ task_id }), 'invalid_field /task_id', JSON.stringify(task_id));
});

test('an integer that is no longer exact says so', () => {
  for (const task_version of [9007199254740992, 1e300])
    assert.equal(submitFault({ task_version }), 'integer_not_exact /task_version', String(task_version));
  assert.equal(submitFault({ task_version: -1e300 }), 'invalid_field /task_version');
});

test('a fault points at its place, escaped, below the place of the value itself', () => {
  assert.equal(submitFault({ priority: 6 }, '/tasks/7'), 'invalid_field /tasks/7/priority');
  assert.equal(submitFault({ 'a/b~c': 1 }), 'unknown_field /a~1b~0c');
  assert.equal(submitFault({ payload: { x: 1 }, y: 1 }), 'unknown_field /y', 'a payload may hold anything');
  assert.equal(faultOf(() => check(submitRequest, [], '/tasks/0')).pointer, '/tasks/0');
  assert.equal(faultOf(() => check(submitRequest, null)).pointer, '');
});

test('what is absent is missing, what is there is invalid', () => {
  assert.equal(submitFault({ task_id: undefined }), 'missing_field /task_id');
  assert.equal(submitFault({ task_id: null }), 'invalid_field /task_id');
});

test('the members every object inherits are not fields', () => {
  for (const name of ['constructor', 'toString', '__proto__', 'hasOwnProperty']) {
    const value = JSON.parse(`{"task_id":"1","task_version":"2","payload":null,"${name}":1}`);
    assert.deepEqual(
      faultOf(() => check(submitRequest, value)),
      { code: 'unknown_field', pointer: `/${name}`, detail: `there is no field '${name}'` },
    );
  }
});

test('all faults are told, the first one as the problem itself, and a hundred at most', () => {
  try {
    check(submitRequest, { task_version: 1.5, priority: 0, extra: 1 });
    assert.fail();
  } catch (error) {
    assert.ok(error instanceof AppError);
    const faults = error.extras.faults!.map(({ code, pointer }) => `${code} ${pointer}`);
    assert.deepEqual(faults.toSorted(), [
      'invalid_field /priority',
      'invalid_field /task_version',
      'missing_field /payload',
      'missing_field /task_id',
      'unknown_field /extra',
    ]);
    assert.equal(`${error.code} ${error.extras.pointer}`, faults[0]);
  }
  const many = Object.fromEntries(Array.from({ length: 5000 }, (_, index) => [`x${index}`, 1]));
  try {
    check(submitRequest, { ...VALID, ...many });
    assert.fail();
  } catch (error) {
    assert.equal((error as AppError).extras.faults?.length, 100);
  }
});

test('a fault of a parameter is pointed at by the parameter’s name', () => {
  assert.deepEqual(
    [{ limit: '0' }, { nope: '1' }, { queue: ['a', 'b'] }, { status: 'pending' }].map(
      (query) => faultOf(() => checkParameters(listQuery, query)).pointer,
    ),
    ['limit', 'nope', 'queue', 'status'],
  );
  for (const wait of ['-1', '61', 'x', 'Infinity', 'NaN'])
    assert.equal(faultOf(() => checkParameters(versionQuery, { wait })).pointer, 'wait', wait);
});

test('run_at is an integer of ms, at most a year ahead', () => {
  const soon = Date.now() + 31_536_000_000 - 60_000;
  assert.equal(check(submitRequest, { ...VALID, run_at: soon }).run_at, soon);
  for (const run_at of [soon + 120_000, -1, 1.5, '1000', null])
    assert.equal(submitFault({ run_at }), 'invalid_field /run_at', String(run_at));
});

test('a status_code is any 64-bit integer, exact, as number or text', () => {
  assert.deepEqual(
    [0, -0, '-0', 7, -7, '9223372036854775807', '-9223372036854775808', 9007199254740991].map(readStatusCode),
    ['0', '0', '0', '7', '-7', '9223372036854775807', '-9223372036854775808', '9007199254740991'],
  );
  for (const value of [
    '9223372036854775808',
    '-9223372036854775809',
    9007199254740992,
    1.5,
    '',
    '1.5',
    '01',
    true,
    null,
    {},
  ])
    assert.equal(readStatusCode(value), null, String(value));
  fc.assert(
    fc.property(
      fc.bigInt({ min: -(2n ** 63n), max: INT64_MAX }),
      (code) => readStatusCode(String(code)) === String(code),
    ),
  );
});

test('callbacks and progress ignore what they do not know', () => {
  assert.deepEqual(check(callbackRequest, { status_code: '0', pages: 3 }), { status_code: '0' });
  assert.deepEqual(check(progressRequest, { percent: 50, eta: 1, done: null }), { percent: 50, done: null });
  assert.deepEqual(
    [5e-324, 33.333, 100, null].map((percent) => check(progressRequest, { percent }).percent),
    [0, 33.33, 100, null],
  );
  assert.equal(faultOf(() => check(callbackRequest, {})).code, 'missing_field');
  assert.equal(faultOf(() => check(progressRequest, { percent: 101 })).pointer, '/percent');
});

test('text for PostgreSQL has no NUL, no half of a character, and no more than the length asked for', () => {
  assert.equal(storable('a\0b', 10), 'a\uFFFDb');
  assert.equal(storable('\ud800x', 10), '\uFFFDx');
  assert.equal(storable('ab😀', 3), 'ab\uFFFD', 'a pair cut in two');
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), fc.nat(20), (text, length) => {
      const stored = storable(text, length);
      assert.ok(stored.length <= length && stored.isWellFormed() && !stored.includes('\0'));
    }),
  );
});

test('an attempt id is 22 to 64 URL-safe characters', () => {
  assert.ok(isAttemptId('a'.repeat(22)) && isAttemptId('Az09_-'.repeat(10)));
  for (const id of ['a'.repeat(21), 'a'.repeat(65), `${'a'.repeat(22)}\n`, `${'a'.repeat(22)}.`, `${'a'.repeat(22)}é`])
    assert.ok(!isAttemptId(id), id);
});
