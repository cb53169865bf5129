/** Pages of GET /v1/tasks against what a filter and a sort in memory give, whatever the filters and the page size. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import { AppError } from '../../src/errors.ts';
import { STATUS } from '../../src/task.ts';
import { listTasks } from '../../src/task-list.ts';
import { listQuery } from '../../src/wire.ts';
import { createWorld, type TaskState, type World } from '../support/world.ts';

const REASONS = { 3: ['parser_failed', 'refused', 'pending_expired'], 4: ['cancelled', 'retention'] };
const BASE_MS = 1_700_000_000_000;

let world: World;
let tasks: TaskState[];

before(async () => {
  world = await createWorld('lists');
  for (const queue of ['one', 'two']) {
    await world.addQueue(queue);
    await world.fill(queue, 5, 400);
  }
  // Twenty moments for 800 tasks: many finished at one.
  await world.sql.query(
    `UPDATE task_scheduler_tasks t
     SET status = s.status, priority = 1 + task_id % 5, update_at = $1 + task_id % 7,
         finished_at = CASE WHEN s.status >= 2 THEN $1 + task_id * 7 % 20 END,
         attempt_id = CASE WHEN s.status = 1 THEN queue || task_id END,
         reason = CASE s.status WHEN 3 THEN ($2::text[])[1 + task_id % 3] WHEN 4 THEN ($3::text[])[1 + task_id % 2] END
     FROM (SELECT queue AS q, task_id AS id, (task_id * 31 % 5)::int AS status FROM task_scheduler_tasks) s
     WHERE t.queue = s.q AND t.task_id = s.id`,
    [BASE_MS, REASONS[3], REASONS[4]],
  );
  tasks = [...(await world.tasks('one')), ...(await world.tasks('two'))];
});
after(() => world.end());

type Filter = {
  queue?: string;
  status?: number;
  priority?: number;
  reason?: string;
  updated_after?: number;
  finished_before?: number;
};

const moment = fc.integer({ min: BASE_MS - 1, max: BASE_MS + 21 });
const filters: fc.Arbitrary<Filter> = fc.record(
  {
    queue: fc.constantFrom('one', 'two'),
    status: fc.constantFrom(0, 1, 2, 3, 4),
    priority: fc.integer({ min: 1, max: 5 }),
    reason: fc.constantFrom(...REASONS[3], ...REASONS[4], 'nobody_has_it'),
    updated_after: moment,
    finished_before: moment,
  },
  { requiredKeys: [] },
);

const named = (task: { queue: unknown; task_id: unknown }) => `${task.queue}/${task.task_id}`;

function expected({ queue, status, priority, reason, updated_after, finished_before }: Filter): string[] {
  const passing = tasks.filter(
    (task) =>
      (queue === undefined || task.queue === queue) &&
      (status === undefined || task.status === status) &&
      (priority === undefined || task.priority === priority) &&
      (reason === undefined || task.reason === reason) &&
      (updated_after === undefined || task.update_at > updated_after) &&
      (finished_before === undefined || (task.finished_at ?? Number.POSITIVE_INFINITY) < finished_before),
  );
  const byAge = queue !== undefined && status !== undefined && status >= 2;
  return passing.toSorted((a, b) => (byAge ? a.finished_at! - b.finished_at! || a.task_id - b.task_id : 0)).map(named);
}

const ask = (filter: Filter, more: { limit: number; cursor?: string }) =>
  listTasks(
    world.db,
    listQuery.parse({ ...filter, ...more, status: filter.status === undefined ? undefined : STATUS[filter.status] }),
  );

test('the pages together hold each task that the filters let pass, once and in order', async () => {
  await fc.assert(
    fc.asyncProperty(filters, fc.integer({ min: 7, max: 1_000 }), async (filter, limit) => {
      const found: string[] = [];
      for (let cursor: string | null = ''; cursor !== null; ) {
        const page: Awaited<ReturnType<typeof ask>> = await ask(filter, { limit, ...(cursor && { cursor }) });
        assert.ok(page.tasks.length === limit || page.cursor === null);
        found.push(...page.tasks.map((task) => named(task as never)));
        cursor = page.cursor;
      }
      assert.deepEqual(found, expected(filter));
    }),
    { numRuns: 200 },
  );
});

test('dead letters come oldest first, of all reasons together', async () => {
  const page = await ask({ queue: 'one', status: 3 }, { limit: 1_000 });
  const reasons = new Set(page.tasks.map((task) => task.reason));
  assert.deepEqual([...reasons].toSorted(), REASONS[3].toSorted());
  const times = page.tasks.map((task) => task.finished_at as number);
  assert.deepEqual(times, times.toSorted());
});

test('a cursor of one kind of list is refused by the other', async () => {
  const { cursor: ofKeys } = await ask({ queue: 'one' }, { limit: 1 });
  const { cursor: ofFinished } = await ask({ queue: 'one', status: 3 }, { limit: 1 });
  const refused = (error: unknown) => error instanceof AppError && error.extras.pointer === 'cursor';
  await assert.rejects(ask({ queue: 'one', status: 3 }, { limit: 1, cursor: ofKeys! }), refused);
  await assert.rejects(ask({ queue: 'one' }, { limit: 1, cursor: ofFinished! }), refused);
});
