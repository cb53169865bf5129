/** docsched_enqueue under arguments of any kind: it stores the task and says so, or raises 22023 and stores nothing. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { oddTree, textOf, toTree } from '../support/fuzz-json.ts';
import { createWorld } from '../support/world.ts';

const RUNS = 200;
const OUTCOMES = ['created', 'refreshed', 'recreated', 'existing', 'stale'];
const INT64_MAX = '9223372036854775807';

const world = await createWorld('enqueue_fuzz');
after(() => world.end());

const rarely = <T>(good: fc.Arbitrary<T>, bad: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 9, arbitrary: good }, { weight: 1, arbitrary: bad });
const bigint = fc.oneof(
  fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(String),
  fc.constantFrom(INT64_MAX, null),
);
/** What PostgreSQL takes as text at all: no NUL. */
const text = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 80 }),
  fc.constantFrom('', ' ', '\u0661', '$1', "'", '%s%L', 'x'.repeat(100_000), null),
);
const storable = (one: string | null) => one?.replaceAll('\0', '') ?? null;
const payload = fc.oneof(
  fc.jsonValue().map((value) => textOf(toTree(value))),
  oddTree.map(textOf),
  text,
);
const args = fc.tuple(
  rarely(fc.constant<string | null>('default'), fc.oneof(text, fc.constant('nowhere'))).map(storable),
  rarely<string | null>(fc.integer({ min: 0, max: 20 }).map(String), bigint),
  rarely<string | null>(fc.integer({ min: 0, max: 5 }).map(String), bigint),
  payload.map(storable),
  rarely(fc.constantFrom<number | null>(null, 1, 5), fc.integer({ min: -32_768, max: 32_767 })),
  rarely<string | null>(fc.constantFrom(null, '0', '1'), bigint),
  rarely(fc.constantFrom<number | null>(null, 0, 1_000), fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 })),
  rarely<string | null>(fc.constantFrom(null, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'), text).map(
    storable,
  ),
);

const countRows = async () => (await world.rows<{ n: number }>('SELECT count(*) AS n FROM task_scheduler_tasks'))[0]!.n;

test('docsched_enqueue stores a task, or raises 22023 and stores nothing', async (t) => {
  const met = { stored: 0, refused: 0 };
  await fc.assert(
    fc.asyncProperty(args, async (values) => {
      const before = await countRows();
      try {
        const [row] = await world.rows<{ outcome: string }>(
          'SELECT * FROM docsched_enqueue($1, $2, $3, $4, $5::smallint, $6::bigint, $7::int, $8)',
          values,
        );
        assert.ok(OUTCOMES.includes(row!.outcome), row!.outcome);
        assert.equal((await countRows()) - before, row!.outcome === 'created' ? 1 : 0);
        met.stored += 1;
      } catch (error) {
        assert.equal((error as { code?: string }).code, '22023', String(error));
        assert.equal(await countRows(), before);
        met.refused += 1;
      }
    }),
    { numRuns: RUNS },
  );
  t.diagnostic(`${met.stored} stored, ${met.refused} refused`);
  assert.ok(met.stored > RUNS / 20 && met.refused > RUNS / 20);
});
