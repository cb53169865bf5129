/** Any sequence of calls against a plain model of the rules, on both stores. */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { Limits } from '../../src/queues.ts';
import { keep, marksOf, newIds, onBothStores, type Place, slotsOf } from './limiter-world.ts';

const QUEUES = ['a', 'b', 'c'] as const;
type Queue = (typeof QUEUES)[number];
const IDS = Object.fromEntries(QUEUES.map((queue) => [queue, newIds(7)])) as Record<Queue, string[]>;

type Model = ReturnType<typeof createModel>;

/** The rules word for word, one slot after the other. */
function createModel() {
  /** Attempt id -> whether its slot holds a mark. */
  const slots: Record<Queue, Map<string, boolean>> = { a: new Map(), b: new Map(), c: new Map() };
  /** What the queue must be let grow to. */
  const wants = new Map<Queue, number>();
  const marks = (queue: Queue) => [...slots[queue].values()].filter(Boolean).length;
  const total = () => QUEUES.reduce((sum, queue) => sum + slots[queue].size, 0);
  const owedToOthers = (queue: Queue) =>
    [...wants]
      .filter(([other]) => other !== queue)
      .reduce((sum, [other, reach]) => sum + Math.max(0, reach - slots[other].size), 0);
  const set = (queue: Queue, ids: string[], retry: boolean) => {
    for (const id of ids) slots[queue].set(id, retry);
  };
  const drop = (queue: Queue, ids: string[]) => {
    for (const id of ids) slots[queue].delete(id);
  };

  function acquire(queue: Queue, ids: string[], { limit, retries, global, guaranteed }: Limits) {
    const held = slots[queue];
    const before = held.size;
    const asked = ids.filter((id) => !held.has(id));
    const taken = asked.filter((id) => {
      const lent = total() < global - owedToOthers(queue);
      const own = held.size < guaranteed && total() < global;
      if (held.size >= limit || (global > 0 && !lent && !own)) return false;
      held.set(id, marks(queue) < retries);
      return true;
    });
    if (global > 0 && taken.length < asked.length) wants.set(queue, Math.min(guaranteed, limit, before + asked.length));
    const granted = ids.filter((id) => held.has(id));
    return { ids: granted, retries: granted.filter((id) => held.get(id)).length };
  }

  function confirm(queue: Queue, fresh: string[], retries: string[], unused: string[], limits: Limits): string[] {
    const held = slots[queue];
    drop(queue, unused);
    if (unused.length > 0 && limits.global > 0) wants.delete(queue);
    for (const id of [...retries, ...fresh]) if (held.has(id)) held.set(id, false);
    return [...retries, ...fresh].filter((id) => {
      const retry = retries.includes(id);
      held.delete(id);
      const room =
        held.size < limits.limit &&
        (limits.global === 0 || total() < limits.global) &&
        (!retry || marks(queue) < limits.retries);
      if (room) held.set(id, retry);
      return !room;
    });
  }

  return { slots, wants, marks, total, set, drop, acquire, confirm };
}

/** Most calls are made with these, so that queues meet in them: two borrow what the third does not ask for. */
const USUAL: Limits = { limit: 6, retries: 2, global: 7, guaranteed: 2 };
const limits: fc.Arbitrary<Limits> = fc.oneof(
  { weight: 3, arbitrary: fc.constant(USUAL) },
  {
    weight: 1,
    arbitrary: fc.record({
      limit: fc.nat({ max: 6 }),
      retries: fc.integer({ min: 1, max: 4 }),
      global: fc.constantFrom(0, 3, 5, 8),
      guaranteed: fc.nat({ max: 4 }),
    }),
  },
);
const some = (queue: Queue) => fc.uniqueArray(fc.constantFrom(...IDS[queue]), { minLength: 1, maxLength: 6 });
const CALLS = ['acquire', 'confirm', 'release', 'repair', 'rebuild', 'end wants'] as const;
const OFTEN = ['acquire', 'acquire', 'acquire', 'acquire', 'confirm', 'confirm', 'release'] as const;
const step = fc.constantFrom(...QUEUES).chain((queue) =>
  fc.record({
    queue: fc.constant(queue),
    call: fc.constantFrom(...CALLS, ...OFTEN),
    ids: some(queue),
    /** The ids before the first and before the second cut, and the rest, have different parts in most calls. */
    first: fc.nat({ max: 6 }),
    second: fc.nat({ max: 6 }),
    limits,
  }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

onBothStores(' against a model', (place) => {
  place.scenario('answers like it and holds what it holds, whatever is called in whatever order', async () => {
    const seen = { short: 0, lost: 0, borrowed: 0, marks: 0 };
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 10, maxLength: 40 }), async (steps) => {
        const model = createModel();
        await place.one.backend.rebuild(place.one.limiter.epoch(), place.one.limiter.epoch()!, new Map());
        for (const one of steps) {
          await run(place, model, one, seen);
          await compare(place, model);
        }
      }),
      { numRuns: 100, interruptAfterTimeLimit: 60_000 },
    );
    for (const [what, times] of Object.entries(seen)) assert.ok(times > 20, `${what}: only ${times}`);
  });
});

async function run(place: Place, model: Model, step: Step, seen: Record<string, number>): Promise<void> {
  const { queue, ids, limits } = step;
  const { limiter, backend } = place.one;
  const epoch = limiter.epoch()!;
  const rest = ids.slice(step.first);
  const [head, middle, tail] = [ids.slice(0, step.first), rest.slice(0, step.second), rest.slice(step.second)];
  const bounds = () => ({ value: model.slots[queue].size, total: model.total(), marks: model.marks(queue) });
  const before = bounds();
  switch (step.call) {
    case 'acquire': {
      const granted = await limiter.acquire(queue, ids, limits);
      assert.deepEqual(granted, model.acquire(queue, ids, limits));
      const after = bounds();
      assert.ok(after.value <= Math.max(before.value, limits.limit));
      assert.ok(after.marks <= Math.max(before.marks, limits.retries));
      assert.ok(limits.global === 0 || after.total <= Math.max(before.total, limits.global));
      if (granted.ids.length < ids.length) seen.short!++;
      if (limits.global > 0 && after.value > Math.max(before.value, limits.guaranteed)) seen.borrowed!++;
      seen.marks! += granted.retries;
      break;
    }
    case 'confirm': {
      const lost = await keep(place.one, queue, [...head, ...middle], tail, limits, middle);
      assert.deepEqual(lost.toSorted(), model.confirm(queue, head, middle, tail, limits).toSorted());
      seen.lost! += lost.length;
      break;
    }
    case 'release':
      await limiter.release(queue, ids);
      model.drop(queue, ids);
      break;
    case 'repair':
      await backend.repair(epoch, queue, Number.MAX_SAFE_INTEGER, head, { fresh: middle, retries: tail });
      model.drop(queue, head);
      model.set(queue, middle, false);
      model.set(queue, tail, true);
      break;
    case 'rebuild':
      await backend.rebuild(epoch, epoch, new Map([[queue, { fresh: head, retries: middle }]]));
      for (const name of QUEUES) model.slots[name].clear();
      model.set(queue, head, false);
      model.set(queue, middle, true);
      model.wants.clear();
      break;
    case 'end wants':
      await place.endWants();
      model.wants.clear();
      break;
    default:
      step.call satisfies never;
  }
}

async function compare({ one }: Place, model: Model): Promise<void> {
  for (const name of QUEUES) {
    const slots = [...model.slots[name]].sort();
    assert.deepEqual(
      await slotsOf(one, name),
      slots.map(([id]) => id),
    );
    assert.deepEqual(
      await marksOf(one, name),
      slots.flatMap(([id, mark]) => (mark ? [id] : [])),
    );
  }
  const usage = await one.limiter.usage(QUEUES);
  assert.deepEqual(
    [...usage.values()],
    QUEUES.map((name) => model.slots[name].size),
  );
}
