/**
 * One instance is stopped (SIGSTOP) between two steps of the slot protocol, another one takes over whatever the stopped
 * one held, and then the first is woken: it must find out before it does harm. A proxy between the instance and its
 * stores holds the message at which it is to be stopped.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { loadScripts } from '../../src/schema.ts';
import { accept } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Installation, install, LIMITERS, type LimiterName, submitMany } from '../support/installation.ts';

const LIMIT = 2;
const TASKS = 6;
/** More than ACQUIRE_TTL_MS and two reconciliations, and several rounds of the other instance. */
const QUIET_MS = 2_000;
/** What an instance had sent when it was stopped is done by then, and so are the rounds that a last callback woke. */
const SENT_MS = 150;
/** A woken instance does at once what it should not do. */
const SOON_MS = 500;
const EXPIRED_MS = 1_500;
const REACHED_TIMEOUT_MS = 10_000;

type Statement = 'acquire' | 'confirm' | 'release' | 'claim_tasks' | 'settle_attempts' | 'find_attempts';
type Side = 'request' | 'response';
/** What the other instance can do while the first is stopped: fill the slots, or nothing, as all are taken. */
type Meanwhile = 'takes over' | 'waits';
type Case = { name: string; at: Statement; side: Side; other: Meanwhile };

/** Stopped on the way to a push. */
const PUSHING: Case[] = [
  { name: 'after it acquired slots', at: 'acquire', side: 'response', other: 'takes over' },
  { name: 'while its claim is on the way', at: 'claim_tasks', side: 'request', other: 'takes over' },
  { name: 'after its claim was committed', at: 'claim_tasks', side: 'response', other: 'waits' },
  { name: 'while its confirmation is on the way', at: 'confirm', side: 'request', other: 'waits' },
  { name: 'after its slots were confirmed', at: 'confirm', side: 'response', other: 'waits' },
];
/** Stopped on the way from a callback to a free slot. */
const SETTLING: Case[] = [
  { name: 'while its settlement is on the way', at: 'settle_attempts', side: 'request', other: 'waits' },
  { name: 'after its settlement was committed', at: 'settle_attempts', side: 'response', other: 'takes over' },
  { name: 'while its release is on the way', at: 'release', side: 'request', other: 'takes over' },
  { name: 'after its release', at: 'release', side: 'response', other: 'takes over' },
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
        const heldAgain = scene.stopAt('confirm', 'request');
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
  const markersOf = (at: Statement) => (toRedis && isLimiter(at) ? redisMarkers(at) : postgresMarkers(at));
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
    stopAt: (at: Statement, side: Side) => storeOf(at).at(markersOf(at), side, 'hold', () => first.pause()),
    /** Resolves once the connection was cut at the next such message. */
    cutAt: (at: Statement, side: Side) => storeOf(at).at(markersOf(at), side, 'cut', () => {}),
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

const isLimiter = (at: Statement): boolean => ['acquire', 'confirm', 'release'].includes(at);
/** The Bind message of a prepared statement holds its name between two zero bytes. */
const postgresMarkers = (at: Statement): string[] => [`\0${isLimiter(at) ? 'limiter_' : ''}${at}\0`];
const redisMarkers = (at: Statement): string[] => {
  const script = loadScripts()[`limiter_${at}`]!;
  return [createHash('sha1').update(script).digest('hex')];
};

type Wanted = { markers: string[]; side: Side; then: 'hold' | 'cut'; reached: () => void };

/** A TCP proxy in front of the server of `url` that looks for markers in what the client sends. */
async function startProxy(t: TestContext, url: string) {
  const target = new URL(url);
  const wanted: Wanted[] = [];
  let releases: (() => void)[] = [];
  const sockets = new Set<Socket>();

  const server = createServer((client) => {
    const upstream = connect(Number(target.port), target.hostname);
    pump(client, upstream);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });

  function pump(client: Socket, upstream: Socket): void {
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    let held: { to: Socket; chunks: Buffer[] } | undefined;
    let answering: Wanted | undefined;
    const act = (one: Wanted, to: Socket, chunk: Buffer) => {
      if (one.then === 'cut') client.resetAndDestroy();
      else {
        const mine = { to, chunks: [chunk] };
        held = mine;
        releases.push(() => {
          held = undefined;
          for (const late of mine.chunks) to.write(late);
        });
      }
      one.reached();
    };
    client.on('data', (chunk: Buffer) => {
      if (held?.to === upstream) return void held.chunks.push(chunk);
      const found = wanted[0];
      if (!found?.markers.some((marker) => chunk.includes(marker))) return void upstream.write(chunk);
      wanted.shift();
      if (found.side === 'request') return act(found, upstream, chunk);
      answering = found;
      upstream.write(chunk);
    });
    upstream.on('data', (chunk: Buffer) => {
      if (held?.to === client) return void held.chunks.push(chunk);
      if (!answering) return void client.write(chunk);
      const found = answering;
      answering = undefined;
      act(found, client, chunk);
    });
  }

  const { port } = server.address() as AddressInfo;
  const proxied = new URL(url);
  proxied.host = `127.0.0.1:${port}`;
  return {
    url: proxied.href,
    /** Waits for the next request with one of the markers, after those asked for before. */
    at: (markers: string[], side: Side, then: 'hold' | 'cut', onReached: () => void) =>
      new Promise<void>((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`no ${side} with ${markers}`)), REACHED_TIMEOUT_MS);
        const reached = () => {
          clearTimeout(timer);
          onReached();
          resolve();
        };
        wanted.push({ markers, side, then, reached });
      }),
    /** Lets go of all that is held. */
    release: () => {
      const all = releases;
      releases = [];
      for (const release of all) release();
    },
  };
}
