/**
 * One instance is stopped (SIGSTOP) between two steps of the slot protocol, another one takes over whatever the stopped
 * one held, and then the first is woken: it must find out before it does harm. A proxy between the instance and its
 * stores holds the message at which it is to be stopped.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { accept } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Installation, install, LIMITERS, type LimiterName, submitMany } from '../support/installation.ts';
import { type Side, script, startProxy, statement } from '../support/proxy.ts';

const LIMIT = 2;
const TASKS = 6;
/** More than ACQUIRE_TTL_MS and two reconciliations, and several rounds of the other instance. */
const QUIET_MS = 2_000;
/** What an instance had sent when it was stopped is done by then, and so are the rounds that a last callback woke. */
const SENT_MS = 150;
/** A woken instance does at once what it should not do. */
const SOON_MS = 500;
const EXPIRED_MS = 1_500;

type Statement =
  | 'limiter_acquire'
  | 'limiter_confirm'
  | 'limiter_release'
  | 'claim_tasks'
  | 'settle_attempts'
  | 'find_attempts';
/** What the other instance can do while the first is stopped: fill the slots, or nothing, as all are taken. */
type Meanwhile = 'takes over' | 'waits';
type Case = { name: string; at: Statement; side: Side; other: Meanwhile };

/** Stopped on the way to a push. */
const PUSHING: Case[] = [
  { name: 'after it acquired slots', at: 'limiter_acquire', side: 'response', other: 'takes over' },
  { name: 'while its claim is on the way', at: 'claim_tasks', side: 'request', other: 'takes over' },
  { name: 'after its claim was committed', at: 'claim_tasks', side: 'response', other: 'waits' },
  { name: 'while its confirmation is on the way', at: 'limiter_confirm', side: 'request', other: 'waits' },
  { name: 'after its slots were confirmed', at: 'limiter_confirm', side: 'response', other: 'waits' },
];
/** Stopped on the way from a callback to a free slot. */
const SETTLING: Case[] = [
  { name: 'while its settlement is on the way', at: 'settle_attempts', side: 'request', other: 'waits' },
  { name: 'after its settlement was committed', at: 'settle_attempts', side: 'response', other: 'takes over' },
  { name: 'while its release is on the way', at: 'limiter_release', side: 'request', other: 'takes over' },
  { name: 'after its release', at: 'limiter_release', side: 'response', other: 'takes over' },
];
/** Cut off from PostgreSQL instead, and stopped when it looks what became of its claim. */
const CUT: { name: string; side: Side; other: Meanwhile }[] = [
  { name: 'before its claim reached PostgreSQL', side: 'request', other: 'takes over' },
  { name: 'after its claim was committed', side: 'response', other: 'waits' },
];

describe('an instance that is stopped', { concurrency: 4 }, () => {
  for (const limiter of LIMITERS) {
    test(`on its way to a push pushes nothing that the limit does not allow (${limiter})`, async (t) => {
      const scene = await setScene(t, limiter);
      for (const { name, at, side, other } of PUSHING)
        await t.test(name, async () => {
          await scene.begin();
          const held = scene.stopAt(at, side);
          scene.submit();
          await held;
          await scene.meanwhile(other, LIMIT);
          await scene.wake();
          await scene.finish();
        });

      await t.test('while its claim is on the way, and again before it confirms', async () => {
        await scene.begin();
        const heldOnce = scene.stopAt('claim_tasks', 'request');
        const heldAgain = scene.stopAt('limiter_confirm', 'request');
        scene.submit();
        await heldOnce;
        await scene.meanwhile('takes over', LIMIT);
        await scene.wake();
        await heldAgain;
        // Its attempts are open now, so they are counted, above the limit: its slots are there, and it may not use them.
        await eventually(async () => assert.equal(await scene.place.slots(), 2 * LIMIT));
        await scene.wake();
        await scene.finish();
      });

      await t.test('while the parser reads its push', async () => {
        const { parser } = scene.place;
        await scene.begin();
        const pushed = new Promise<void>((resolve) =>
          parser.answerWith((pushes, req, res) => {
            scene.first.pause();
            accept(pushes, req, res);
            resolve();
          }),
        );
        scene.submit();
        await pushed;
        parser.answerWith(accept);
        scene.second.resume();
        await sleep(QUIET_MS); // That the other pushes nothing in its place can only be seen by waiting.
        await scene.wake();
        await scene.finish();
      });
    });

    test(`and woken after the deadline sends nothing any more (${limiter})`, async (t) => {
      const scene = await setScene(t, limiter, { PROCESSING_EXPIRED_MS: String(EXPIRED_MS) });
      for (const { name, at, side } of PUSHING.slice(2))
        await t.test(name, async () => {
          await scene.begin();
          const held = scene.stopAt(at, side);
          scene.submit();
          await held;
          const { rows } = await scene.place.sql.query('SELECT attempt_id FROM attempts WHERE closed_at IS NULL');
          assert.equal(rows.length, LIMIT);
          await scene.meanwhile('takes over', LIMIT);
          await scene.wake();
          await scene.finish();
          const pushed = new Set(scene.place.parser.pushes.map(({ body }) => body.attempt_id));
          assert.ok(rows.every(({ attempt_id }) => !pushed.has(attempt_id)));
        });
    });

    test(`and woken after the slots were lost and counted anew harms nothing (${limiter})`, async (t) => {
      const scene = await setScene(t, limiter);
      for (const { name, at, side, other } of PUSHING.slice(1, 4))
        await t.test(name, async () => {
          await scene.begin();
          const held = scene.stopAt(at, side);
          scene.submit();
          await held;
          await loseSlots(scene.place, limiter);
          await scene.meanwhile(other, LIMIT);
          await scene.wake();
          await scene.finish();
        });
    });

    test(`on its way to a free slot frees none but its own (${limiter})`, async (t) => {
      const scene = await setScene(t, limiter);
      const { parser } = scene.place;
      for (const { name, at, side, other } of SETTLING)
        await t.test(name, async () => {
          await scene.begin();
          const from = parser.pushes.length;
          scene.submit();
          await parser.waitForPushes(from + LIMIT);
          const held = scene.stopAt(at, side);
          const answered = parser.callback(parser.pushes[from]!);
          await held;
          await scene.meanwhile(other, LIMIT + 1);
          await scene.wake();
          assert.equal((await answered).body.outcome, 'applied');
          await scene.finish();
        });
    });

    test(`while it looks what became of its claim leaves no attempt to its deadline (${limiter})`, async (t) => {
      const scene = await setScene(t, limiter);
      for (const { name, side, other } of CUT)
        await t.test(name, async () => {
          await scene.begin();
          const cut = scene.cutAt('claim_tasks', side);
          const held = scene.stopAt('find_attempts', 'response');
          scene.submit();
          await cut;
          await held;
          await scene.meanwhile(other, LIMIT);
          await scene.wake();
          await scene.finish();
          const { rows } = await scene.place.sql.query('SELECT sum(retry_count)::int AS n FROM task_scheduler_tasks');
          assert.equal(rows[0].n, 0);
        });
    });
  }
});

/**
 * `first` reaches its stores through proxies and has done everything once (so that every statement is prepared and every
 * script loaded); it looks for work only when told. `second` looks by itself and repairs as soon as it may; it is stopped
 * while `first` is led to where it is to be stopped.
 */
async function setScene(t: TestContext, limiter: LimiterName, env: Record<string, string> = {}) {
  const place = await install(t, {
    limiter,
    env: {
      MAX_PROCESSING: String(LIMIT),
      MAX_RETRIES: '100',
      RETRY_BASE_MS: '100',
      ACQUIRE_TTL_MS: '500',
      RECONCILE_CRON: '* * * * * *',
      ...env,
    },
  });
  const toPostgres = await startProxy(t, place.database.url);
  const toRedis = place.redis ? await startProxy(t, place.redis.url) : undefined;
  const first = await place.start({
    DATABASE_URL: toPostgres.url,
    ...(toRedis ? { REDIS_URL: toRedis.url } : {}),
    ROLES: 'api,pusher',
    TRIGGER_INTERVAL_MS: '60000',
  });
  const { parser } = place;
  await submitMany(first, [{ task_id: 1_000_000 }]);
  await parser.waitForPushes(1);
  await parser.callback(parser.pushes[0]!);
  const second = await place.start();

  let submitted = 1;
  let answered: Promise<void> = Promise.resolve();
  let from = 0;
  const noSlots = () => eventually(async () => assert.equal(await place.slots(), 0));
  const storeOf = (at: Statement) => (toRedis && isLimiter(at) ? toRedis : toPostgres);
  const matcherOf = (at: Statement) => (toRedis && isLimiter(at) ? script(at) : statement(at));
  return {
    place,
    first,
    second,
    /** Both idle, and `second` stopped while it holds no slot. */
    begin: async () => {
      parser.answerWith(accept);
      await noSlots();
      await eventually(async () => {
        second.pause();
        await sleep(SENT_MS);
        const none = (await place.slots()) === 0;
        if (!none) second.resume();
        return none;
      });
      from = parser.pushes.length;
    },
    /** To `first`, which may be stopped before it answers. */
    submit: () => {
      const tasks = Array.from({ length: TASKS }, (_, i) => ({ task_id: submitted + i }));
      answered = submitMany(first, tasks);
      submitted += TASKS;
    },
    /** Resolves once `first` is stopped at the next such message, which is held until `wake`. */
    stopAt: (at: Statement, side: Side) => storeOf(at).at(matcherOf(at), side, 'hold', () => first.pause()),
    /** Resolves once the connection was cut at the next such message. */
    cutAt: (at: Statement, side: Side) => storeOf(at).at(matcherOf(at), side, 'cut'),
    /** `pushes` of this case will have come once `second` has taken over. */
    meanwhile: async (other: Meanwhile, pushes: number) => {
      const before = parser.pushes.length;
      second.resume();
      if (other === 'takes over') return void (await parser.waitForPushes(from + pushes));
      await sleep(QUIET_MS); // That nothing happens can only be seen by waiting.
      assert.equal(parser.pushes.length, before, 'open attempts keep their slots');
    },
    wake: async () => {
      first.resume();
      toPostgres.release();
      toRedis?.release();
      await sleep(SOON_MS); // Whatever it does now that it should not.
    },
    /** Everything is parsed, nothing is left, and there were never too many. */
    finish: async () => {
      await answered;
      parser.autoCallback({ afterMs: 20 });
      const open = new Set(parser.outstanding.attemptIds());
      const left = parser.pushes.filter(({ body }) => open.has(body.attempt_id));
      await Promise.all(left.map((push) => parser.callback(push)));
      const all = async () => assert.deepEqual(await place.countTasks(), { Success: submitted });
      await eventually(all, { timeoutMs: 20_000 });
      assert.ok(parser.outstanding.surely.max <= LIMIT, `${parser.outstanding.surely.max} outstanding`);
      await noSlots();
      const { rows } = await place.sql.query('SELECT count(*)::int AS open FROM attempts WHERE closed_at IS NULL');
      assert.equal(rows[0].open, 0);
    },
  };
}

/** As if the store had been restarted: a crash of PostgreSQL empties its unlogged tables. */
async function loseSlots(place: Installation, limiter: LimiterName): Promise<void> {
  if (limiter === 'postgres') {
    await place.sql.query('TRUNCATE limiter_store, limiter_usage, limiter_slots');
    return;
  }
  const client = new Redis(place.redis.url);
  await client.flushall();
  client.disconnect();
}

const isLimiter = (at: Statement): boolean => at.startsWith('limiter_');
