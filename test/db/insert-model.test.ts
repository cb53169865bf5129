/**
 * Random submits, over HTTP and SQL, to queues of either version policy, and what happens to tasks in between, through two
 * instances against a small sequential model of the decision table. Tasks side by side: every answer and row is the
 * model's. One task from several callers at once: there is a serial order that explains every answer and the rows left.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import type { Inserter, Submit, SubmitOutcome } from '../../src/inserter/inserter.ts';
import { PENDING, STATUS, type Status } from '../../src/task.ts';
import { createWorld, submitOf, type World } from './insert-world.ts';

const VERSION_FLOOR_MS = 7_776_000_000;
const MAX_VERSION = 3;

let world: World;
let inserters: [Inserter, Inserter];
let tasks = 0;
let payloads = 0;

before(async () => {
  world = await createWorld('model');
  await world.addQueue('stop', { version_policy: 'stop' });
  inserters = [world.inserter(), world.inserter()];
});
after(() => world.end());

type ModelRow = { status: Status; payload: string; priority: number; delayed: boolean; born: number };
type Queue = 'default' | 'stop';
type Task = { queue: Queue; taskId: string };
/** A task by the contract. forgotten: the floor is older than version_floor_ms. */
type Model = { queue: Queue; floor: number; forgotten: boolean; rows: Map<number, ModelRow>; births: number };
type Wish = { version: number; priority: number; payload: string; run?: 'ahead' | 'past' };
type Answer = { outcome: string; latest?: string };

const newModel = (queue: Queue): Model => ({ queue, floor: -1, forgotten: false, rows: new Map(), births: 0 });
const copyOf = (model: Model): Model => ({
  ...model,
  rows: new Map([...model.rows].map(([version, row]) => [version, { ...row }])),
});

/** The decision table. */
function decide(model: Model, { version, priority, payload, run }: Wish): Answer {
  const known = model.forgotten ? -1 : model.floor;
  const latest = Math.max(known, ...model.rows.keys());
  if (latest > version) return { outcome: 'stale', latest: String(latest) };
  model.floor = version;
  model.forgotten = false;
  const old = model.rows.get(version);
  if (old?.status === 'Processing' || old?.status === 'Success') return { outcome: 'existing' };
  if (model.queue === 'stop')
    for (const [lower, row] of model.rows)
      if (lower < version && row.status === 'Pending') Object.assign(row, { status: 'Stopped', delayed: false });
  const delayed = run === undefined ? (old?.delayed ?? false) : run === 'ahead';
  if (old?.status === 'Pending') {
    Object.assign(old, { payload, priority, delayed });
    return { outcome: 'refreshed' };
  }
  model.rows.set(version, { status: 'Pending', payload, priority, delayed: run === 'ahead', born: ++model.births });
  return { outcome: old ? 'recreated' : 'created' };
}

/** What the world does to a version; false when it is in no state for it. */
function happen(model: Model, version: number, what: Status | 'gone'): boolean {
  const row = model.rows.get(version);
  if (!row || what === 'Pending') return false;
  const open = row.status === 'Pending' || row.status === 'Processing';
  if (what === 'gone') return !open && model.rows.delete(version);
  const allowed =
    what === 'Processing' ? row.status === 'Pending' : what === 'Stopped' ? open : row.status === 'Processing';
  if (allowed) Object.assign(row, { status: what, delayed: false });
  return allowed;
}

const nextPayload = () => `{"n":${++payloads}}`;
const runAtOf = (run: Wish['run']): number | null =>
  run === undefined ? null : run === 'ahead' ? Date.now() + 86_400_000 : 1000;
const submitOfWish = (task: Task, wish: Wish): Submit =>
  submitOf({
    ...task,
    taskVersion: String(wish.version),
    priority: wish.priority,
    payload: wish.payload,
    runAt: runAtOf(wish.run),
  });
const answerOf = (outcome: SubmitOutcome): Answer =>
  outcome.outcome === 'stale'
    ? { outcome: 'stale', latest: outcome.latest.task_version }
    : { outcome: outcome.outcome };

/** Through an instance, or in one transaction of a submitter's own. */
async function tell(via: number, submits: Submit[]): Promise<Answer[]> {
  const inserter = inserters[via];
  if (!inserter) return enqueue(submits);
  if (submits.length === 1) return [answerOf(await inserter.submit(submits[0]!))];
  return (await inserter.submitBatch(submits)).map(answerOf);
}

/** Anew when it is ended by a deadlock. */
async function enqueue(submits: Submit[]): Promise<Answer[]> {
  const client = await world.sql.connect();
  try {
    await client.query('BEGIN');
    const answers: Answer[] = [];
    for (const { queue, taskId, taskVersion, payload, priority, runAt } of submits) {
      const { rows } = await client.query<{ outcome: string; latest_version: string }>(
        'SELECT outcome, latest_version FROM docsched_enqueue($1, $2, $3, $4, $5, $6)',
        [queue, taskId, taskVersion, payload, priority, runAt],
      );
      const { outcome, latest_version } = rows[0]!;
      answers.push(outcome === 'stale' ? { outcome, latest: latest_version } : { outcome });
    }
    await client.query('COMMIT');
    return answers;
  } catch (error) {
    await client.query('ROLLBACK');
    if ((error as { code?: string }).code !== '40P01') throw error;
    return await enqueue(submits);
  } finally {
    client.release();
  }
}

const queueOf = fc.constantFrom<Queue>('default', 'stop');
const version = fc.integer({ min: 0, max: MAX_VERSION });
const wish = fc.record(
  { version, priority: fc.integer({ min: 1, max: 5 }), run: fc.constantFrom('ahead' as const, 'past' as const) },
  { requiredKeys: ['version', 'priority'] },
);

test('answers and rows are those of the sequential model, whatever happens to other tasks meanwhile', async () => {
  const step = fc.oneof(
    { weight: 6, arbitrary: fc.record({ via: fc.nat(2), wish }) },
    {
      weight: 4,
      arbitrary: fc.record({ version, what: fc.constantFrom(...STATUS.slice(1), 'gone' as const) }),
    },
    { weight: 2, arbitrary: fc.constant('forget' as const) },
  );
  type Step = typeof step extends fc.Arbitrary<infer S> ? S : never;

  async function play({ queue, steps }: { queue: Queue; steps: Step[] }): Promise<void> {
    const task = { queue, taskId: String(++tasks) };
    const model = newModel(queue);
    const attempts = new Map<number, string>();
    for (const one of steps) {
      if (one === 'forget') {
        model.forgotten = true;
        for (const [version, row] of model.rows)
          if (['Success', 'Failed', 'Stopped'].includes(row.status)) {
            model.rows.delete(version);
            await world.cleanUp({ ...task, taskVersion: String(version) });
          }
        await world.ageFloor(task.taskId, VERSION_FLOOR_MS + 1);
      } else if ('wish' in one) {
        const wanted = { ...one.wish, payload: nextPayload() };
        const [answer] = await tell(one.via, [submitOfWish(task, wanted)]);
        assert.deepEqual(answer, decide(model, wanted));
      } else if (happen(model, one.version, one.what)) {
        const key = { ...task, taskVersion: String(one.version) };
        if (one.what === 'Processing') attempts.set(one.version, await world.claim(key));
        else if (one.what === 'Stopped') await world.cancel(key);
        else if (one.what === 'gone') await world.cleanUp(key);
        else await world.settle(attempts.get(one.version)!, one.what === 'Success' ? 'success' : 'refused');
      }
    }
    await compare(task, model);
  }

  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.record({ queue: queueOf, steps: fc.array(step, { maxLength: 14 }) }), { minLength: 1, maxLength: 5 }),
      async (plays) => {
        await Promise.all(plays.map(play));
      },
    ),
    { numRuns: 120 },
  );
});

test('one task from several callers at once: some serial order explains every answer and what is left', async () => {
  const TASKS = 2;
  const taskIndex = fc.nat(TASKS - 1);
  const call = fc.oneof(
    {
      weight: 5,
      arbitrary: fc.record({
        via: fc.nat(2),
        wishes: fc.array(fc.record({ task: taskIndex, wish }), { minLength: 1, maxLength: 3 }),
      }),
    },
    {
      weight: 2,
      arbitrary: fc.record({
        task: taskIndex,
        version,
        what: fc.constantFrom('Processing' as const, 'Stopped' as const),
      }),
    },
  );
  const past = fc.record({ queue: queueOf, states: fc.array(fc.constantFrom(...STATUS), { maxLength: MAX_VERSION }) });

  await fc.assert(
    fc.asyncProperty(fc.tuple(past, past), fc.array(call, { minLength: 2, maxLength: 6 }), async (pasts, drawn) => {
      const named = pasts.map(({ queue }): Task => ({ queue, taskId: String(++tasks) }));
      const models = await Promise.all(pasts.map(({ states }, index) => prepare(named[index]!, states)));
      const calls = drawn.map((one) =>
        'what' in one
          ? one
          : { ...one, wishes: one.wishes.map((w) => ({ ...w, wish: { ...w.wish, payload: nextPayload() } })) },
      );
      const answers = await Promise.all(
        calls.map(async (one): Promise<Answer[]> => {
          if ('what' in one) {
            const key = { ...named[one.task]!, taskVersion: String(one.version) };
            const done =
              one.what === 'Stopped'
                ? await world.cancel(key)
                : await world.claim(key).then(
                    () => true,
                    () => false,
                  );
            return [{ outcome: String(done) }];
          }
          return tell(
            one.via,
            one.wishes.map((w) => submitOfWish(named[w.task]!, w.wish)),
          );
        }),
      );
      for (const [index, task] of named.entries()) {
        const steps = calls.map((one, n) => stepsOf(index, one, answers[n]!));
        const left = await leftOf(task);
        if (!explains(models[index]!, steps, JSON.stringify(left)))
          assert.fail(`no serial order explains ${JSON.stringify({ index, pasts, calls, answers, left }, null, 1)}`);
      }
      assert.deepEqual(await world.db.query('find_stranded_versions', []), [], 'nothing waits behind nothing');
    }),
    { numRuns: 150 },
  );
});

type Step = { run: (model: Model) => Answer; answer: Answer };
type Call = { task: number; version: number; what: Status } | { wishes: { task: number; wish: Wish }[] };

/** What a call did to one task, and what it was told. Entries of a batch for different tasks are independent. */
function stepsOf(task: number, call: Call, answers: Answer[]): Step[] {
  if ('what' in call) {
    const { version, what } = call;
    const run = (model: Model) => ({ outcome: String(happen(model, version, what)) });
    return call.task === task ? [{ run, answer: answers[0]! }] : [];
  }
  return call.wishes.flatMap(({ task: named, wish }, index) =>
    named === task ? [{ run: (model: Model) => decide(model, wish), answer: answers[index]! }] : [],
  );
}

/**
 * Whether the steps, each call's in order, can be put into one order that gives all answers and leaves `left`. A submit
 * that met a key held for 2 s (callers that deadlock hold theirs for `deadlock_timeout`, a second) did nothing.
 */
function explains(model: Model, calls: Step[][], left: string): boolean {
  if (calls.every((steps) => steps.length === 0)) return JSON.stringify(showModel(model)) === left;
  return calls.some(([step, ...rest], index) => {
    if (!step) return false;
    const next = copyOf(model);
    const answer = step.answer.outcome === 'locked' ? step.answer : step.run(next);
    return JSON.stringify(answer) === JSON.stringify(step.answer) && explains(next, calls.with(index, rest), left);
  });
}

/** Submits versions 0, 1, ... one after another and brings each to its state. */
async function prepare(task: Task, states: readonly Status[]): Promise<Model> {
  const model = newModel(task.queue);
  for (const [version, status] of states.entries()) {
    const wanted = { version, priority: 5, payload: nextPayload() };
    decide(model, wanted);
    await inserters[0].submit(submitOfWish(task, wanted));
    model.rows.get(version)!.status = status;
    if (status === 'Pending') continue;
    const key = { ...task, taskVersion: String(version) };
    const attemptId = await world.claim(key);
    if (status === 'Stopped') await world.cancel(key);
    if (status === 'Success') await world.settle(attemptId, 'success');
    if (status === 'Failed') await world.settle(attemptId, 'refused');
  }
  return model;
}

type Left = { floor: number; rows: [number, string, string, number, boolean][] };

async function leftOf({ queue, taskId }: Task): Promise<Left> {
  const rows = await world.states(taskId, queue);
  return {
    floor: Number((await world.floor(taskId, queue))?.task_version ?? -1),
    rows: rows.map((row) => [Number(row.task_version), STATUS[row.status]!, row.payload, row.priority, row.hold === 1]),
  };
}

const showModel = (model: Model): Left => ({
  floor: model.floor,
  rows: [...model.rows]
    .toSorted(([a], [b]) => a - b)
    .map(([version, row]) => [version, row.status, row.payload, row.priority, row.delayed]),
});

/** The rows of a task at rest are the model's, and its waiting versions stand in line as the contract says. */
async function compare(task: Task, model: Model): Promise<void> {
  assert.deepEqual(await leftOf(task), showModel(model));
  const rows = await world.states(task.taskId, task.queue);
  assert.deepEqual(
    rows.toSorted((a, b) => a.id - b.id).map((row) => Number(row.task_version)),
    [...model.rows].toSorted(([, a], [, b]) => a.born - b.born).map(([version]) => version),
    'a place in line is as old as its row',
  );
  const [head, ...behind] = rows.filter((row) => row.status === PENDING && row.hold !== 1).toReversed();
  if (!head) return;
  assert.equal(head.hold, 0, 'the highest that waits is claimable');
  for (const row of behind) {
    assert.equal(row.hold, 2, 'those below it wait');
    const behindHead: boolean = head.level < row.level || (head.level === row.level && head.place <= row.place);
    assert.ok(behindHead, `version ${row.task_version} stands before version ${head.task_version}`);
  }
}
