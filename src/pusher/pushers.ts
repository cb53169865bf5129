/**
 * One pusher a queue, each with rounds, targets and pushes of its own, so that a backlog or a dead parser in one queue
 * never slows another. What they share is the pool of database connections and the process.
 *
 * A wake-up for a queue is that queue's alone. One for all (the safety net, or wake-ups that may have been missed) is a
 * single look at the queues that had nothing to claim, so that idle queues cost next to nothing however many there are.
 */
import type { Db } from '../db.ts';
import type { Limiter } from '../limiter/limiter.ts';
import type { Log } from '../log.ts';
import type { Limits, Queue } from '../queues.ts';
import type { Settler } from '../receiver/settle.ts';
import type { Trigger, TriggerDeps } from '../trigger/trigger.ts';
import { createAcceptance } from './acceptance.ts';
import { createChooser } from './chooser.ts';
import { createClaimer } from './claim.ts';
import { BEGINNING } from './front.ts';
import { createOutcomes } from './outcome.ts';
import type { ParserClient } from './parser-client.ts';
import { createPush } from './push.ts';
import { createPusher, isHeld, type Pusher } from './pusher.ts';
import { createTargets, type TargetState, type Targets } from './targets.ts';

export type PushersDeps = {
  db: Db;
  limiter: Limiter;
  client: ParserClient;
  settler: Settler;
  /** src/trigger's. */
  createTrigger: (deps: TriggerDeps) => Trigger;
  /** The safety net: all queues are looked at this often, ms. */
  intervalMs: number;
  limits: (queue: Queue) => Limits;
  /** Slots that any queue may take came back unused. */
  onUnused: () => void;
  callbackUrl: (attemptId: string) => string;
  observePush: (queue: string, outcome: string, seconds: number, traceparent: string) => void;
  observeDispatch: (queue: string, seconds: number, traceparent: string) => void;
  log: Log;
};

export type Pushers = {
  /** All queues and their settings from now on. */
  set(queues: readonly Queue[]): void;
  /** Looks for work: in this queue, or everywhere. `walk`: it may stand anywhere in the line (src/pusher/front.ts). */
  wake(queue?: string, walk?: boolean): void;
  /** There is work in this queue. */
  expectWork(queue: string): void;
  /** A slot of this queue is free again. */
  slotFreed(queue: string): void;
  /** Attempts ended, whichever way. `target`: its URL. */
  closed(attempts: readonly { queue: string; target: string }[]): void;
  /** A sentence for each queue with a broken target. */
  trouble(): string[];
  /** Of each target of each queue, for the gauges. */
  states(): (TargetState & { queue: string })[];
  /** Age of the last look at all queues, or the time for which a queue waits for a round that succeeds, if longer, ms. */
  lastOkAgeMs(): number | null;
  start(): void;
  /** No further round; resolves when those under way have ended. */
  stop(): Promise<void>;
  /** Resolves when no push is on its way and every answer is settled. */
  idle(): Promise<void>;
};

type Lane = {
  pusher: Pusher;
  targets: Targets;
  trigger: Trigger;
  outcomes: { stop(): void };
  /** The first wake-up that no round has begun for (performance.now()). */
  owedSince: number | null;
  /** The first that the round under way is for. */
  servingSince: number | null;
};

/** What wakes a queue is the look at all of them; that it also wakes by itself is for what nobody thought of. */
const ANYWAY_MS = 60_000;

export function createPushers(deps: PushersDeps): Pushers {
  const { db, limiter, client, settler, createTrigger, limits, onUnused, log } = deps;
  const { callbackUrl, observePush, observeDispatch, intervalMs } = deps;
  const push = createPush({ db, client, callbackUrl, observePush, log });
  const acceptance = createAcceptance({ db, log });
  let queues = new Map<string, Queue>();
  const lanes = new Map<string, Lane>();
  let started = false;
  const look = createTrigger({ name: 'pushers', intervalMs, log, runOnce: lookEverywhere });

  return {
    set,
    wake(queue, walk = true) {
      if (queue === undefined) return look.wake();
      if (walk) lanes.get(queue)?.pusher.walk();
      wakeLane(queue);
    },
    expectWork,
    slotFreed(queue) {
      const lane = lanes.get(queue);
      if (lane && (lane.servingSince !== null || !lane.pusher.isDrained())) wakeLane(queue);
    },
    closed,
    trouble: () => [...lanes.values()].map(({ targets }) => targets.trouble()).filter((sentence) => sentence !== null),
    states: () => [...lanes].flatMap(([queue, { targets }]) => targets.states().map((one) => ({ queue, ...one }))),
    lastOkAgeMs,
    start() {
      started = true;
      for (const { trigger } of lanes.values()) trigger.start();
      look.start();
    },
    async stop() {
      started = false;
      await look.stop();
      await Promise.all([...lanes.values()].map(stopLane));
    },
    async idle() {
      await Promise.all([...lanes.values()].map(({ pusher }) => pusher.idle()));
      await acceptance.flush();
    },
  };

  function set(all: readonly Queue[]): void {
    queues = new Map(all.map((queue) => [queue.queue, queue]));
    for (const { queue } of all) {
      if (lanes.has(queue)) continue;
      const lane = createLane(queue);
      lanes.set(queue, lane);
      if (started) lane.trigger.start();
    }
    look.wake();
  }

  function createLane(name: string): Lane {
    const queue = () => queues.get(name);
    const wake = () => wakeLane(name);
    const ofQueue = log.child({ queue: name });
    const targets = createTargets({ db, queue, wake, log: ofQueue });
    const { claim } = createClaimer({
      db,
      limiter,
      chooser: createChooser(Math.random),
      targets,
      limits,
      onUnused,
      log,
    });
    const outcomes = createOutcomes({ settler, targets, acceptance, log: ofQueue });
    const pusher = createPusher({ db, claim, push, outcomes, queue, wake, observeDispatch, log });
    const runOnce = async () => {
      lane.servingSince = lane.owedSince ?? performance.now();
      lane.owedSince = null;
      try {
        return await pusher.runOnce();
      } catch (error) {
        lane.owedSince = lane.servingSince;
        throw error;
      } finally {
        lane.servingSince = null;
      }
    };
    const trigger = createTrigger({ name: `pusher ${name}`, intervalMs: ANYWAY_MS, log, runOnce });
    const lane: Lane = { pusher, targets, trigger, outcomes, owedSince: null, servingSince: null };
    return lane;
  }

  async function stopLane({ targets, trigger, outcomes }: Lane): Promise<void> {
    await trigger.stop();
    outcomes.stop();
    targets.stop();
  }

  function wakeLane(queue: string): void {
    const lane = lanes.get(queue);
    if (!lane) return;
    lane.owedSince ??= performance.now();
    lane.trigger.wake();
  }

  function expectWork(queue: string): void {
    lanes.get(queue)?.pusher.expectWork();
    wakeLane(queue);
  }

  /** Those whose last round left something to claim go on by themselves. */
  async function lookEverywhere(): Promise<boolean> {
    const names = [...queues.values()].filter((queue) => !isHeld(queue)).map(({ queue }) => queue);
    const isDrained = (queue: string) => lanes.get(queue)!.pusher.isDrained();
    for (const queue of names) if (!isDrained(queue)) wakeLane(queue);
    const drained = names.filter(isDrained);
    if (drained.length === 0) return false;
    for (const { queue } of await db.query<{ queue: string }>('find_claimable', [drained, BEGINNING])) {
      lanes.get(queue)!.pusher.walk();
      expectWork(queue);
    }
    return false;
  }

  function closed(attempts: readonly { queue: string; target: string }[]): void {
    for (const [queue, own] of Map.groupBy(attempts, (attempt) => attempt.queue)) lanes.get(queue)?.targets.closed(own);
  }

  function lastOkAgeMs(): number | null {
    const age = look.lastOkAgeMs();
    if (age === null) return null;
    const owed = [...lanes.values()]
      .flatMap(({ owedSince, servingSince }) => [owedSince, servingSince])
      .filter((since) => since !== null);
    return Math.max(age, ...owed.map((since) => Math.round(performance.now() - since)));
  }
}
