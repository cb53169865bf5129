/**
 * The pusher of one queue: claims what the free slots allow, pushes it, and acts on what the parsers answer.
 *
 *   wake -> [claim round] -> push (not awaited) -> answer -> settle | note as accepted | leave in doubt
 *
 * Never two rounds at once in a process (the trigger sees to that); pushes of earlier rounds go on meanwhile, bounded in
 * number and bytes. Killed after a push was sent: the attempt is open and holds its slot; the parser's callback or the
 * deadline ends it.
 */
import type { Db } from '../db.ts';
import { createJournal } from '../journal.ts';
import type { Log } from '../log.ts';
import type { Queue } from '../queues.ts';
import { keyColumns } from '../task.ts';
import { type ClaimedTask, type ClaimRound, NOTHING } from './claim.ts';
import { type Begin, createFront } from './front.ts';
import type { Outcomes } from './outcome.ts';
import type { Push } from './push.ts';
import { intoRequests } from './request.ts';

/** Requests on their way at once to parsers that answer soon. */
const MAX_REQUESTS = 256;
/** Tasks on their way at once, however many slots there are: a connection each to parsers that answer when done. */
const MAX_TASKS = 10_000;
/**
 * Payload on its way at once, in characters: a claim takes no more tasks than fit beside it, as far as the largest of the
 * claim before tells.
 */
const MAX_PAYLOAD = 128 * 1024 * 1024;
/** Tasks of one claim: enough to make the commit cheap, few enough that several instances share a backlog. */
const MAX_CLAIM = 128;
const MIN_CLAIM = 8;
/** What one call of the limiter and the claim takes. */
const MOST_SLOTS = 512;
/** Rounds in a row that find work but get none of it, all being claimed by others: then the next wake-up will do. */
const MAX_EMPTY_ROUNDS = 3;

export type PusherDeps = {
  db: Db;
  claim: (queue: Queue, room: number, from: number[]) => Promise<ClaimRound>;
  push: Push;
  outcomes: Outcomes;
  /** The queue's settings now. */
  queue: () => Queue | undefined;
  /** Runs another round now. */
  wake: () => void;
  observeDispatch: (queue: string, seconds: number, traceparent: string) => void;
  log: Log;
};

export type Pusher = {
  /** One round; true when there is more to claim right away. */
  runOnce(): Promise<boolean>;
  /**
   * True when the last round left nothing to claim: whether there is anything is looked up before slots are taken, and a
   * slot that is freed after it changes nothing.
   */
  isDrained(): boolean;
  /** Somebody looked, or put it there: there is something to claim. The next round takes slots without looking. */
  expectWork(): void;
  /** The next round looks at the line from its very beginning. */
  walk(): void;
  /** Resolves when no push is on its way and every answer is settled. */
  idle(): Promise<void>;
};

/** A queue that nothing is claimed from: paused, or without anybody or any slot to give a task to. */
export const isHeld = (queue: Queue): boolean =>
  queue.paused || queue.targets.length === 0 || queue.concurrency_limit < 1;

export function createPusher(deps: PusherDeps): Pusher {
  const { db, claim, push, outcomes, wake, log } = deps;
  const journal = createJournal(log);
  const front = createFront();
  let later: NodeJS.Timeout | undefined;
  let want = 0;
  let emptyRounds = 0;
  let drained = true;
  let expected = false;
  /** The last round had no room for more. */
  let full = false;
  const onTheWay = new Set<Promise<void>>();
  let tasksOnTheWay = 0;
  let payloadOnTheWay = 0;
  let largestPayload = 1;

  return {
    runOnce,
    isDrained: () => drained && !expected,
    expectWork() {
      expected = true;
    },
    walk: front.walk,
    idle,
  };

  async function runOnce(): Promise<boolean> {
    const mustLook = drained && !expected;
    expected = false;
    const begin = front.begin();
    const round = await claimFrom(begin, mustLook);
    if (!round) return false;
    const claimed = round.tasks.length + round.lost.length;
    drained = round.drained;
    emptyRounds = claimed > 0 || !round.more ? 0 : emptyRounds + 1;
    want = claimed * 2;
    // What stands before the marks is waited for no longer than until the next walk.
    clearTimeout(later);
    if (drained && !begin.full) later = setTimeout(wake, front.walkInMs()).unref();
    return round.more && emptyRounds <= MAX_EMPTY_ROUNDS;
  }

  /** Undefined where nothing may be claimed now, whatever there is. */
  async function claimFrom(begin: Begin, mustLook: boolean): Promise<ClaimRound | undefined> {
    let queue = queueWithRoom();
    if (!queue) return undefined;
    const since = performance.now();
    if (mustLook) {
      // An idle queue takes no slots only to give them back. Its settings may have changed while it was looked.
      if (!(await hasClaimable(queue, begin))) {
        front.found(begin, [], performance.now() - since);
        return { ...NOTHING, drained: true };
      }
      queue = queueWithRoom();
      if (!queue) return undefined;
    }
    const { fewest, most } = claimSizes(queue);
    const round = await claim(queue, Math.min(Math.max(want, fewest), most, roomOf(queue)), begin.places);
    front.found(begin, [...round.tasks, ...round.lost], performance.now() - since);
    send(round, queue);
    return round;
  }

  /** The queue as it is now, when its settings and the pushes on their way leave room for a claim. */
  function queueWithRoom(): Queue | undefined {
    const queue = deps.queue();
    if (!queue || isHeld(queue)) return undefined;
    full = roomOf(queue) < 1;
    return full ? undefined : queue;
  }

  async function hasClaimable({ queue }: Queue, { places }: Begin): Promise<boolean> {
    return (await db.query('find_claimable', [[queue], places])).length > 0;
  }

  function roomOf(queue: Queue): number {
    const left = MAX_PAYLOAD - payloadOnTheWay;
    if (left <= 0) return 0;
    return Math.min(mostOnTheWay(queue) - tasksOnTheWay, Math.max(1, Math.floor(left / largestPayload)));
  }

  function send({ tasks: claimed, lost, claimedAt }: ClaimRound, before: Queue): void {
    // Claiming took a while: the pushes go by the settings of now.
    const queue = deps.queue() ?? before;
    const targetNow = ({ target }: ClaimedTask) => queue.targets.find(({ url }) => url === target.url) ?? target;
    const tasks = queue === before ? claimed : claimed.map((task) => ({ ...task, target: targetNow(task) }));
    if (tasks.length > 0) largestPayload = Math.max(1, ...tasks.map(({ payload }) => payload.length));
    journal.claimed(queue.queue, tasks);
    journal.claimed(queue.queue, lost);
    for (const task of lost) start([task], outcomes.giveBack(task, claimedAt, 'its slot was taken by others'));
    for (const together of intoRequests(tasks)) start(together, deliver(queue, together, claimedAt));
    const heads = [...tasks, ...lost].filter((task) => task.has_blocked);
    if (heads.length > 0) start([], freeBlocked(queue, heads));
    for (const { started_at, pending_since, traceparent } of tasks) {
      const ms = Number(started_at) - Number(pending_since);
      deps.observeDispatch(queue.queue, Math.max(0, ms) / 1000, traceparent ?? '');
    }
  }

  async function deliver(queue: Queue, tasks: readonly ClaimedTask[], claimedAt: number): Promise<void> {
    const answers = await push(queue, tasks, claimedAt);
    await outcomes.act(queue, tasks, answers, claimedAt);
  }

  function start(tasks: readonly ClaimedTask[], work: Promise<void>): void {
    const payload = tasks.reduce((sum, task) => sum + task.payload.length, 0);
    tasksOnTheWay += tasks.length;
    payloadOnTheWay += payload;
    const tracked = work.finally(() => {
      onTheWay.delete(tracked);
      tasksOnTheWay -= tasks.length;
      payloadOnTheWay -= payload;
      if (full) wake();
    });
    onTheWay.add(tracked);
  }

  async function idle(): Promise<void> {
    while (onTheWay.size > 0) await Promise.all(onTheWay);
  }

  /** What waited behind the claimed versions moves up. A crash before this leaves it to the clean-up job. */
  async function freeBlocked(queue: Queue, heads: ClaimedTask[]): Promise<void> {
    try {
      await db.query('order_versions', keyColumns(heads.map((task) => ({ ...task, queue: queue.queue }))));
      front.walk();
      wake();
    } catch (error) {
      log.warn({ event: 'order_versions_failed', queue: queue.queue, error: (error as Error).message });
    }
  }
}

/**
 * Tasks on their way at once. Parsers that answer when they are done hold a push as long as they work: then as many go
 * out as the limit allows.
 */
export function mostOnTheWay({ targets, concurrency_limit }: Queue): number {
  const soon = MAX_REQUESTS * Math.max(...targets.map(({ batch }) => batch));
  const longest = targets.some(({ mode }) => mode === 'sync') ? concurrency_limit : 0;
  return Math.min(MAX_TASKS, Math.max(soon, longest));
}

/** A claim asks for whole batches of each target, and for more at a time while there is more. */
export function claimSizes({ targets }: Queue): { fewest: number; most: number } {
  const batches = targets.reduce((sum, { batch }) => sum + batch, 0);
  const fewest = Math.min(Math.max(MIN_CLAIM, batches), MOST_SLOTS);
  return { fewest, most: fewest * Math.max(1, Math.floor(MAX_CLAIM / fewest)) };
}
