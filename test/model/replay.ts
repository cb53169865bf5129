/**
 * Does what a trace of the model says, step by step, with the real components, and compares after each step what can be
 * seen: the rows, the open attempts, the slots in each store, the epochs, and the answers that callers got.
 */
import assert from 'node:assert/strict';
import type { PushAnswer } from '../../src/pusher/answer.ts';
import { targetAt } from '../support/world.ts';
import { callbackOutcome, createClients, keysOf, submitOutcome } from './clients.ts';
import type { Ground, StoreName } from './ground.ts';
import { createInstance, type Instance } from './instance.ts';
import type { Scope, State } from './state.ts';
import * as m from './state.ts';
import { type Kind, type Step, show } from './steps.ts';

export type Taken = { step: Step; state: State };

const TARGET = targetAt('http://parser.test/parse');
const message = 'scripted';
const ANSWERS: Partial<Record<Kind, PushAnswer>> = {
  'push-accepted': { kind: 'accepted' },
  'push-in-doubt': { kind: 'in_doubt', message },
  'push-lost': { kind: 'in_doubt', message },
  'push-busy': { kind: 'busy', afterMs: 0, message },
  'push-failed': { kind: 'try_failed', message },
  'push-late': { kind: 'unsent', message },
};

export type Replay = Awaited<ReturnType<typeof createReplay>>;

/** A new queue on cleared stores, with the instances as the model begins. `stores` are the scope's, by index. */
export async function createReplay(ground: Ground, scope: Scope, stores: readonly StoreName[]) {
  const queue = await ground.addQueue(scope, TARGET);
  await ground.clear();
  const storeOf = (by: number): StoreName => stores[m.storeOf(scope, by)]!;
  const create = (by: number): Instance => createInstance(ground, queue, storeOf(by));
  const instances: [Instance, Instance] = [create(0), create(1)];
  const clients = createClients(ground, queue.queue, scope);
  /** Real names of the model's attempts and epochs. */
  const ids = new Map<number, string>();
  const epochs = new Map<number, string | null>([[0, null]]);
  /** Whose result each task has. */
  const results = new Map<number, string>();
  let before = m.begin(scope);

  const idOf = (n: number): string => ids.get(n) ?? assert.fail(`attempt ${n} has no id`);
  const idsOf = (attempts: readonly m.Attempt[]): string[] => attempts.map(({ n }) => idOf(n)).sort();

  await ground.forgetProof();
  for (const one of instances.slice(0, scope.stores === 1 ? 2 : 1)) await open(one);
  if (scope.tasks === 'two') for (const index of [0, 1]) await clients.submit(index);
  await compare(before);

  return {
    take: async ({ step, state }: Taken): Promise<void> => {
      await run(step, state);
      await compareHands(state);
      await compare(state);
      before = state;
    },
    stop: () => {
      for (const one of instances) one.stop();
    },
  };

  async function open(one: Instance): Promise<void> {
    await one.begin('look');
    for (const gate of ['look', 'bump', 'read-open', 'rebuild', 'release-closed', 'look'])
      if (one.gates.isParked(gate)) await one.gates.pass(gate);
  }

  async function run({ kind, by, n }: Step, after: State): Promise<void> {
    const one = instances[by]!;
    const model = after.instances[by]!;
    switch (kind) {
      case 'submit':
        return assert.equal(await clients.submit(n), submitOutcome(before, n));
      case 'clean':
        results.delete(n);
        return await clients.clean(n);
      case 'cancel':
        return await clients.cancel(n);
      case 'acquire':
      case 'acquire-unanswered': {
        await clients.promoteHalf();
        if (kind === 'acquire-unanswered') one.loseAnswer('acquire');
        await one.begin('round');
        const known = new Set(before.attempts.map((attempt) => attempt.n));
        const fresh = after.attempts.filter((attempt) => !known.has(attempt.n));
        if (fresh.length > 0) assert.equal(one.granted().length, fresh.length, 'slots granted');
        for (const [i, attempt] of fresh.entries()) ids.set(attempt.n, one.granted()[i]!);
        return assert.equal(one.gates.isParked('claim'), model.round === 1, 'goes on to claim');
      }
      case 'claim':
      case 'claim-uncommitted':
      case 'claim-unanswered':
        await clients.promoteHalf();
        if (kind !== 'claim') one.loseAnswer(kind === 'claim-unanswered' ? 'claim after' : 'claim before');
        await one.gates.pass('claim');
        return await clients.promoteRest();
      case 'bump':
        await ground.forgetProof();
        return await one.gates.pass(kind);
      case 'look-up':
      case 'read-open':
      case 'rebuild':
        return await one.gates.pass(kind);
      case 'commit-late':
        await clients.promoteHalf();
        for (const commit of one.late.splice(0)) await commit().catch(() => {});
        return await clients.promoteRest();
      case 'confirm':
      case 'confirm-unanswered':
        if (kind === 'confirm-unanswered') one.loseAnswer('confirm');
        return await one.gates.pass('confirm');
      case 'push-accepted':
      case 'push-in-doubt':
      case 'push-lost':
      case 'push-busy':
      case 'push-failed':
      case 'push-late': {
        const answer = one.pushes.get(idOf(n)) ?? assert.fail(`attempt ${n} is not being pushed`);
        one.pushes.delete(idOf(n));
        answer(ANSWERS[kind]!);
        return await one.gates.quiet();
      }
      case 'settle':
        return await one.gates.pass(`settle ${idOf(n)}`);
      case 'callback-success':
      case 'callback-failure': {
        const attempt = before.attempts.find((known) => known.n === n)!;
        const answer = await one.callback(idOf(n), kind === 'callback-success');
        assert.equal(answer, callbackOutcome(before, attempt), 'answer to the callback');
        if (kind === 'callback-success' && answer === 'applied') results.set(attempt.task, idOf(n));
        return;
      }
      case 'release':
      case 'release-unanswered':
        if (kind === 'release-unanswered') one.loseAnswer('release');
        return await one.gates.pass(`release ${idOf(n)}`);
      case 'deadline':
        await ground.sql.query('UPDATE attempts SET deadline = docsched_now() - 1 WHERE attempt_id = $1', [idOf(n)]);
        return;
      case 'progress':
        await ground.db.query('report_progress', [idOf(n), null, null]);
        return;
      case 'find-late':
        return await one.begin('find-late');
      case 'close-late':
        return await one.gates.pass('close-late');
      case 'look':
      case 'take-over':
        return await look(one, after, by);
      case 'release-closed':
      case 'check-added':
        if (one.gates.isParked(kind)) await one.gates.pass(kind);
        return;
      case 'list':
      case 'list-stopped': {
        const old = before.attempts.filter((attempt) => kind === 'list-stopped' || !m.isInHand(attempt));
        await ground.setAges(queue.queue, storeOf(by), new Set(idsOf(old)));
        return await one.begin('reconcile');
      }
      case 'compare':
        await one.gates.pass('compare');
        // Marks put right, which the model knows nothing of.
        if (model.repair === 0)
          for (const gate of ['repair', 'check-added']) if (one.gates.isParked(gate)) await one.gates.pass(gate);
        return;
      case 'repair':
        return await one.gates.pass('repair');
      case 'crash':
        one.stop();
        instances[by] = create(by);
        return;
      case 'lose-store':
        return await ground.lose(stores[n]!);
      case 'age-store':
        return await ground.age();
      case 'expire-slot':
        return;
      default:
        kind satisfies never;
    }
  }

  async function look(one: Instance, after: State, by: number): Promise<void> {
    const waits = before.seenBy === 1 - by && after.instances[by]!.look === 0 && after.instances[by]!.epoch === 0;
    await (waits ? ground.renewProof() : ground.forgetProof());
    if (!one.gates.isParked('look')) await one.begin('look');
    await one.gates.pass('look');
    assert.equal(one.gates.isParked('bump'), after.instances[by]!.look === 1, 'goes on to rebuild');
  }

  /** What each instance has in hand. */
  async function compareHands(state: State): Promise<void> {
    for (const [by, { gates, pushes }] of instances.entries()) {
      const named = (is: (attempt: m.Attempt) => boolean) => idsOf(state.attempts.filter(is));
      await gates.quiet();
      const waiting = (gate: string) =>
        gates.parkedNames().flatMap((name) => (name.startsWith(gate) ? name.slice(gate.length) : []));
      const { round } = state.instances[by]!;
      assert.deepEqual(
        {
          round: ['claim', 'confirm', 'look-up'].filter(gates.isParked),
          pushes: [...pushes.keys()].sort(),
          settles: waiting('settle ').sort(),
          releases: waiting('release ').sort(),
        },
        {
          round: [[], ['claim'], ['confirm'], ['look-up'], ['look-up']][round],
          pushes: named(({ stage }) => stage[by] === m.TO_PUSH),
          settles: named(({ stage }) => stage[by] === m.TO_GIVE_BACK || stage[by] === m.TO_RETRY),
          releases: named(({ release }) => (release[by]! & m.DUE) !== 0),
        },
        `in hand of ${'AB'[by]}`,
      );
    }
  }

  async function compare(state: State): Promise<void> {
    const facts = await ground.observe(queue.queue, keysOf(scope), stores);
    const used = stores.map((_, index) => idsOf(state.attempts.filter((attempt) => m.holds(attempt, index))));
    assert.deepEqual(
      { tasks: facts.tasks, open: facts.open.sort(), slots: facts.slots.map((slots) => slots.sort()) },
      {
        tasks: state.tasks.map((task, index) => shown(task, results.get(index))),
        open: idsOf(state.attempts.filter(({ db }) => db === m.OPEN)),
        slots: used,
      },
    );
    compareEpoch(state.force, facts.force, 'epoch in force');
    for (const [by, { limiter }] of instances.entries())
      compareEpoch(state.instances[by]!.epoch, limiter.epoch(), `epoch of ${'AB'[by]}`);
  }

  function compareEpoch(model: number, real: string | null, what: string): void {
    if (!epochs.has(model)) epochs.set(model, real);
    assert.equal(real, epochs.get(model), what);
    assert.equal([...epochs.values()].filter((known) => known === real).length, 1, `${what} is new`);
  }
}

/** As the statement that observes has it. */
const shown = ({ status, retries }: m.Task, result = ''): string | null =>
  status === m.NO_ROW ? null : `${status} after ${retries} ${result}`;

/** The components did not do what the model did. */
export class Deviation extends Error {
  /** At this step, as `show` has it. */
  readonly step: string;

  constructor(step: string, message: string, options: ErrorOptions) {
    super(message, options);
    this.name = 'Deviation';
    this.step = step;
  }
}

/** Throws a Deviation where the components go another way. */
export async function replay(
  ground: Ground,
  scope: Scope,
  stores: readonly StoreName[],
  trace: readonly Taken[],
): Promise<void> {
  const run = await createReplay(ground, scope, stores);
  try {
    for (const [i, taken] of trace.entries())
      await run.take(taken).catch((cause: Error) => {
        const steps = trace.slice(0, i + 1).map(({ step }) => show(step));
        const where = `${scope.name} on ${stores.join(' and ')}: ${steps.join('; ')}`;
        throw new Deviation(steps[i]!, `${where}: ${cause.message}`, { cause });
      });
  } finally {
    run.stop();
  }
}
