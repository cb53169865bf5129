/**
 * The faults, one function a kind. Each looks first whether it would hit what it is meant to hit (its gap: read from
 * PostgreSQL, the limiter's store and the parsers, with the victim frozen where a moment is to be hit), waits for
 * that, strikes, and mends what it broke.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Chance } from './chance.ts';
import type { Instance } from './cluster.ts';
import { createGaps, eventuallySome } from './gaps.ts';
import { now } from './journal.ts';
import type { Parsers } from './parsers.ts';
import type { Postgres } from './postgres.ts';
import type { Way } from './proxy.ts';
import type { RedisPair } from './redis.ts';

export type FaultDeps = {
  chance: Chance;
  instances: readonly Instance[];
  postgres: Postgres;
  /** Undefined with the PostgreSQL limiter. */
  redis: RedisPair | undefined;
  parsers: Parsers;
  parserProxies: readonly Way[];
  submitters: { pause(): void; resume(): void };
};

/** held: how much was in the gap when it struck; none means that the fault missed. ids: attempts in the gap. */
export type Strike = { from: number; to: number; gap: string; held: number; ids?: string[]; trouble?: string };
export type Fault = { kind: string; lane: 'instance' | 'store'; strike: () => Promise<Strike> };

/** Longer than any lease (4.5 s), any proof that a store is in force (3 s) and the life of an attempt (4 s). */
const STOPPED_MS = 5_000;
const HALF_OPEN_MS = 5_000;
const PARSER_HALF_OPEN_MS = 3_000;
const MISLED_MS = 3_500;
const CLOCK_OFF_MS = 3_500;
const SNAPSHOT_AGE_MS = 5_000;
/** Attempts whose parser died hold their slots longer than a lull lasts. */
const FEW_SLOTS = 2;
const LULL_MS = 5_000;
const MANY_SLOTS = 15;
const CLOCK_STEPS_MS = [-86_400_000, -3_600_000, -5_000, 5_000, 90_000, 3_600_000, 86_400_000];

export function createFaults(deps: FaultDeps): Fault[] {
  const { chance, instances, postgres, redis, parserProxies, submitters } = deps;
  const gaps = createGaps(deps);
  const { openAttempts } = gaps;
  const ofInstances: Record<string, () => Promise<Strike>> = {
    'SIGKILL between claim and push': () => killIn('claimed, not pushed', gaps.claimedNotPushed),
    'SIGKILL between push and settle': () => killIn('pushed, not settled', gaps.pushedNotSettled),
    SIGTERM: terminate,
    'SIGSTOP for 5 s': stopAndWake,
    'PostgreSQL half-open': () => halfOpen((victim) => victim.postgres),
    'parser half-open': parserHalfOpen,
    'clock step': stepClock,
  };
  const ofRedis: Record<string, () => Promise<Strike>> = {
    'Redis half-open': () => halfOpen((victim) => victim.redis),
    'other REDIS_URL': () => mislead(redis!),
  };
  const ofStores: Record<string, () => Promise<Strike>> = {
    'PostgreSQL immediate restart': restartPostgres,
    pg_terminate_backend: terminateBackends,
  };
  const ofRedisStore: Record<string, () => Promise<Strike>> = {
    'Redis killed': () => strikeRedis(redis!, killRedis),
    'Redis restarted empty': () => strikeRedis(redis!, ({ primary }) => primary().restart({ empty: true })),
    'Redis from a snapshot 5 s old': () => restoreRedis(redis!),
    'late replica promoted': () => promote(redis!),
    FLUSHALL: () => strikeRedis(redis!, ({ ask }) => ask((client) => client.flushall())),
  };
  const listed = (lane: Fault['lane'], faults: Record<string, () => Promise<Strike>>): Fault[] =>
    Object.entries(faults).map(([kind, strike]) => ({ kind, lane, strike }));
  return [
    ...listed('instance', redis ? { ...ofInstances, ...ofRedis } : ofInstances),
    ...listed('store', redis ? { ...ofStores, ...ofRedisStore } : ofStores),
  ];

  /** One that is up; waits for it. */
  async function victim(): Promise<Instance> {
    for (;;) {
      const up = instances.filter((instance) => instance.isUp());
      if (up.length > 0) return chance.pick(up);
      await sleep(20);
    }
  }

  /** An instance, frozen at a moment at which `look` finds something in its hands. */
  async function freezeIn(look: (victim: Instance) => Promise<string[]>): Promise<[Instance, string[]]> {
    const one = await victim();
    const ids = await eventuallySome(async () => {
      one.resume();
      await sleep(chance.between(5, 60));
      one.pause();
      return look(one);
    });
    return [one, ids];
  }

  async function killIn(gap: string, look: (victim: Instance) => Promise<string[]>): Promise<Strike> {
    const [one, ids] = await freezeIn(look);
    const from = now();
    await one.kill();
    const to = now();
    void one.start();
    return { from, to, gap, held: ids.length, ids };
  }

  async function terminate(): Promise<Strike> {
    const [one, ids] = await freezeIn(gaps.pushedNotSettled);
    const from = now();
    const trouble = await one.stop();
    const to = now();
    void one.start();
    return { from, to, gap: 'pushed, not settled', held: ids.length, ids, ...(trouble ? { trouble } : {}) };
  }

  async function stopAndWake(): Promise<Strike> {
    const [one, ids] = await freezeIn(gaps.pushedNotSettled);
    const from = now();
    await sleep(STOPPED_MS);
    one.resume();
    return { from, to: now(), gap: 'pushed, not settled', held: ids.length, ids };
  }

  /** Freezes the connections of the proxy while there are some and attempts are open; resolves with how many. */
  async function freeze(proxy: Way): Promise<number> {
    const [connections = 0] = await eventuallySome(async () => {
      const open = await openAttempts();
      const frozen = open.length > 0 ? proxy.freeze() : 0;
      return frozen > 0 ? [frozen] : [];
    });
    return connections;
  }

  async function halfOpen(proxyOf: (victim: Instance) => Way): Promise<Strike> {
    const proxy = proxyOf(await victim());
    const held = await freeze(proxy);
    const from = now();
    await sleep(HALF_OPEN_MS);
    mend(proxy);
    return { from, to: now(), gap: 'connections in use', held };
  }

  async function parserHalfOpen(): Promise<Strike> {
    const proxy = chance.pick(parserProxies);
    const held = await freeze(proxy);
    const from = now();
    await sleep(PARSER_HALF_OPEN_MS);
    mend(proxy);
    return { from, to: now(), gap: 'connections to a parser', held };
  }

  /** What was held back comes late, or never. */
  function mend(proxy: Way): void {
    if (chance.next() < 0.5) proxy.thaw();
    else proxy.reset();
  }

  async function stepClock(): Promise<Strike> {
    const one = await victim();
    const open = await eventuallySome(openAttempts);
    const from = now();
    one.stepClock(chance.pick(CLOCK_STEPS_MS));
    await sleep(CLOCK_OFF_MS);
    one.stepClock(0);
    return { from, to: now(), gap: 'open attempts', held: open.length };
  }

  async function mislead({ stranger }: RedisPair): Promise<Strike> {
    const one = await victim();
    const from = now();
    const trouble = await one.stop();
    await one.start({ REDIS_URL: stranger.url });
    const seesOther = await eventuallySome(() => isDegraded(one));
    const open = seesOther.length > 0 ? await openAttempts() : [];
    await sleep(MISLED_MS);
    await one.kill();
    const to = now();
    void one.start();
    const gap = 'degraded beside open attempts';
    return { from, to, gap, held: open.length, ...(trouble ? { trouble } : {}) };
  }

  async function isDegraded({ url }: Instance): Promise<string[]> {
    try {
      const { status } = (await (await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(1_000) })).json()) as {
        status: string;
      };
      return status === 'degraded' ? [status] : [];
    } catch {
      return [];
    }
  }

  async function restartPostgres(): Promise<Strike> {
    const open = await eventuallySome(openAttempts);
    const from = now();
    await postgres.restartImmediately(chance.between(0, 1_000));
    return { from, to: now(), gap: 'open attempts', held: open.length };
  }

  async function terminateBackends(): Promise<Strike> {
    const open = await eventuallySome(openAttempts);
    const from = now();
    const ended = await gaps.ask(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'docsched%'",
    );
    return { from, to: now(), gap: 'connections in use', held: Math.min(ended.length, open.length) };
  }

  async function strikeRedis(pair: RedisPair, strike: (pair: RedisPair) => Promise<unknown>): Promise<Strike> {
    const held = await eventuallySome(pair.slots);
    const from = now();
    await strike(pair);
    return { from, to: now(), gap: 'slots held', held: held.length };
  }

  async function killRedis({ primary }: RedisPair): Promise<void> {
    await primary().kill();
    await sleep(chance.between(200, 2_500));
    await primary().restart({ empty: true });
  }

  /** Old data does most harm when it knows of few slots: it is taken while little is under way. */
  async function takenInLull(pair: RedisPair, take: () => unknown): Promise<Set<string>> {
    submitters.pause();
    try {
      await eventuallySome(async () => ((await pair.slots()).length <= FEW_SLOTS ? [true] : []), LULL_MS);
      const held = new Set(await pair.slots());
      await take();
      return held;
    } finally {
      submitters.resume();
    }
  }

  function missingIn(pair: RedisPair, known: Set<string>): Promise<string[]> {
    return eventuallySome(async () => {
      const missing = (await pair.slots()).filter((id) => !known.has(id));
      return missing.length >= MANY_SLOTS ? missing : [];
    });
  }

  async function promote(pair: RedisPair): Promise<Strike> {
    const known = await takenInLull(pair, pair.cutReplica);
    const missing = await missingIn(pair, known);
    const from = now();
    await pair.promote();
    for (const { redis: proxy } of instances) proxy.leadTo(pair.primary().port);
    const to = now();
    await pair.mend();
    return { from, to, gap: 'slots the replica does not have', held: missing.length };
  }

  async function restoreRedis(pair: RedisPair): Promise<Strike> {
    let snapshot = '';
    const known = await takenInLull(pair, async () => {
      snapshot = await pair.primary().save();
    });
    await sleep(SNAPSHOT_AGE_MS);
    const missing = await missingIn(pair, known);
    const from = now();
    await pair.primary().restartFrom(snapshot);
    return { from, to: now(), gap: 'slots the snapshot does not have', held: missing.length };
  }
}
