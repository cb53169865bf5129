/**
 * One instance of the service, made of the real components, whose calls wait at gates: between acquire, claim, confirm,
 * push, settle and release, and between the parts of a rebuild and of a reconciliation.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import type { Db, Row } from '../../src/db.ts';
import type { Backend } from '../../src/limiter/backend.ts';
import type { PushAnswer } from '../../src/pusher/answer.ts';
import { limitsOf, type Queue } from '../../src/queues.ts';
import { createGates } from './gates.ts';
import { type Ground, log, type StoreName } from './ground.ts';

export type Instance = ReturnType<typeof createInstance>;

/** Which of two things a statement used by both is run for. */
const doing = new AsyncLocalStorage<'look' | 'reconcile'>();

export function createInstance(ground: Ground, queue: Queue, store: StoreName) {
  const { parts } = ground;
  const gates = createGates();
  /** Answers of the parser, by attempt. */
  const pushes = new Map<string, (answer: PushAnswer) => void>();
  /** A claim whose answer was lost before the server had it. */
  const late: (() => Promise<unknown>)[] = [];
  let lost: 'acquire' | 'confirm' | 'release' | 'claim before' | 'claim after' | null = null;
  let granted: string[] = [];
  const instanceId = randomBytes(8).toString('hex');

  const db: Db = { ...ground.db, query };
  const limiter = parts.createLimiter({
    backend: watched(ground.backend(store)),
    db,
    log,
    instanceId,
    acquireTtlMs: 10_000,
    wantTtlMs: 10_000,
    onOpen: () => {},
  });
  const settler = parts.createSettler({
    db,
    limiter: {
      ...limiter,
      release: async (name, ids) => {
        await Promise.all(ids.map((id) => gates.at(`release ${id}`, () => limiter.release(name, [id]))));
      },
    },
    onClosed: () => {},
  });
  const chooser = parts.createChooser(() => 0);
  const targets = parts.createTargets({ db, queue: () => queue, wake: () => {}, log });
  const { claim } = parts.createClaimer({
    db,
    limiter: { ...limiter, confirm: (...args) => gates.at('confirm', () => limiter.confirm(...args)) },
    // Strictly by level: which task is claimed is then no choice.
    chooser: { ...chooser, line: (weights) => chooser.line(weights, false) },
    targets,
    limits: (one) => limitsOf(one, [one], 0),
    onUnused: () => {},
    log,
  });
  const outcomes = parts.createOutcomes({
    settler: { settle: (one) => gates.at(`settle ${one.attemptId}`, () => settler.settle(one)) },
    // Targets that are left alone are no part of the protocol.
    targets: { answered: () => {}, failed: async () => {}, broken: async () => {}, busy: async () => {} },
    acceptance: { note: () => {} },
    log,
  });
  const pusher = parts.createPusher({
    db,
    claim,
    push: (_, tasks) =>
      new Promise((resolve) => pushes.set(tasks[0]!.attempt_id, (answer) => resolve(tasks.map(() => answer)))),
    outcomes,
    queue: () => queue,
    wake: () => {},
    observeDispatch: () => {},
    log,
  });
  const expire = parts.createExpireProcessing({
    db,
    settler: { ...settler, settle: (one) => gates.at('close-late', () => settler.settle(one)) },
  });

  return {
    gates,
    limiter,
    settler,
    pushes,
    late,
    /** What the last acquire got, answered or not. */
    granted: () => granted,
    /** The next call of this kind is done, or not, and its answer lost. */
    loseAnswer: (of: typeof lost) => {
      lost = of;
    },
    /** It goes on by itself until its first gate. */
    begin: async (work: 'round' | 'look' | 'reconcile' | 'find-late'): Promise<void> => {
      const run: Record<typeof work, () => Promise<unknown>> = {
        round: pusher.runOnce,
        look: () => doing.run('look', limiter.runOnce),
        reconcile: () => doing.run('reconcile', limiter.reconcile),
        'find-late': expire.runOnce,
      };
      run[work]().catch(() => {});
      await gates.quiet();
    },
    /** Its answer; null when it got none while nothing else was let pass. */
    callback: async (attemptId: string, success: boolean): Promise<string | null> => {
      let answer: string | null = null;
      const settling = settler.settle({
        attemptId,
        verdict: success ? 'success' : 'parser_failed',
        statusCode: success ? '0' : '7',
        statusMsg: null,
        result: success ? JSON.stringify(attemptId) : null,
      });
      settling.then(
        ({ outcome }) => {
          answer = outcome;
        },
        () => {},
      );
      await gates.quiet();
      return answer;
    },
    stop: () => targets.stop(),
  };

  function query<R extends Row>(name: string, params: readonly unknown[]): Promise<R[]> {
    const run = () => gates.through(() => ground.db.query<R>(name, params));
    const looking = doing.getStore() === 'look';
    switch (name) {
      case 'claim_tasks':
        return gates.at('claim', () => answered(run));
      case 'find_attempts':
        return gates.at('look-up', run);
      case 'limiter_bump_epoch':
        return gates.at('bump', run);
      case 'limiter_find_open':
        return gates.at(looking ? 'read-open' : 'compare', run);
      case 'limiter_find_closed':
        return gates.at(looking ? 'release-closed' : 'check-added', run);
      default:
        return run();
    }
  }

  async function answered<T>(run: () => Promise<T>): Promise<T> {
    const when = lost;
    lost = null;
    if (when === 'claim before') late.push(run);
    else if (when !== 'claim after') return await run();
    else await run();
    throw new Error('Connection terminated unexpectedly');
  }

  function watched(backend: Backend): Backend {
    const unanswered = (call: typeof lost) => {
      if (lost !== call) return;
      lost = null;
      throw new Error('Command timed out');
    };
    return {
      ...backend,
      check: () => gates.at('look', () => gates.through(backend.check)),
      rebuild: (...args) => gates.at('rebuild', () => gates.through(() => backend.rebuild(...args))),
      repair: (epoch, name, ...rest) => {
        const run = () => gates.through(() => backend.repair(epoch, name, ...rest));
        return name === queue.queue ? gates.at('repair', run) : run();
      },
      list: (epoch) => gates.through(() => backend.list(epoch)),
      release: (...args) =>
        gates.through(async () => {
          const answer = await backend.release(...args);
          unanswered('release');
          return answer;
        }),
      acquire: (...args) =>
        gates.through(async () => {
          const answer = await backend.acquire(...args);
          granted = answer?.ids ?? [];
          unanswered('acquire');
          return answer;
        }),
      confirm: (...args) =>
        gates.through(async () => {
          const answer = await backend.confirm(...args);
          unanswered('confirm');
          return answer;
        }),
    };
  }
}
