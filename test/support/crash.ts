/**
 * A process that is killed (SIGKILL) at a message between it and its stores, and started again. There is a proxy between
 * it and each store, and one in front of it, where parsers find the new process when the old one is gone.
 */
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { loadScripts } from '../../src/schema.ts';
import { type Installation, install, type LimiterName } from './installation.ts';
import { freePort } from './ports.ts';
import type { RunningService } from './process.ts';
import { type Matches, type Side, script, startProxy, statement } from './proxy.ts';

export type CrashScene = Awaited<ReturnType<typeof setCrashScene>>;
/**
 * A message of the process to a store (`limiter_..`: to the limiter's) or its answer. `heldMs`: for how long it is held
 * before the kill, so that what does not wait for it, though it should, is done by then.
 */
export type Place = { at: string; side: Side; like?: Matches; heldMs?: number };

export const ACQUIRE_TTL_MS = 500;
export const RECONCILE_EVERY_MS = 1_000;
/** When the slots without an open attempt are back, counted from when a process is there to do it. */
export const BACK_MS = ACQUIRE_TTL_MS + RECONCILE_EVERY_MS;
/** What a slow machine may take on top of any bound here: what is looked for would otherwise never be done. */
export const SLACK_MS = 10_000;
/** What a stopped process had sent is done by then. */
const SENT_MS = 150;

const QUICK = {
  ACQUIRE_TTL_MS: String(ACQUIRE_TTL_MS),
  RECONCILE_CRON: '* * * * * *',
  MAX_RETRIES: '100',
  RETRY_BASE_MS: '100',
};

/** `env` is everybody's, `own` that of the process to be killed. */
export async function setCrashScene(
  t: TestContext,
  limiter: LimiterName,
  { env = {}, own = {} }: { env?: Record<string, string>; own?: Record<string, string> } = {},
) {
  const place: Installation = await install(t, { limiter, env: { ...QUICK, ...env } });
  const toPostgres = await startProxy(t, place.database.url);
  const toRedis = place.redis ? await startProxy(t, place.redis.url) : undefined;
  if (place.redis) await loadAll(place.redis.url);
  const port = await freePort();
  const toService = await startProxy(t, `http://127.0.0.1:${port}`);
  const settings = {
    DATABASE_URL: toPostgres.url,
    ...(toRedis ? { REDIS_URL: toRedis.url } : {}),
    PORT: String(port),
    PUBLIC_URL: toService.url,
    ...own,
  };
  let victim = await place.start(settings);

  /** Resolves once the process was killed at the next such message; a request then never arrives. */
  async function killAt({ at, side, like, heldMs = 0 }: Place): Promise<void> {
    const inRedis = toRedis !== undefined && at.startsWith('limiter_');
    const isIt = inRedis ? script(at) : statement(at);
    const matches: Matches = (sent) => isIt(sent) && (like?.(sent) ?? true);
    const doomed = victim;
    const kill = () => void doomed.kill();
    await (inRedis ? toRedis : toPostgres).at(matches, side, 'hold', heldMs === 0 ? kill : undefined);
    if (heldMs > 0) await sleep(heldMs);
    await doomed.kill();
  }

  return {
    place,
    get victim(): RunningService {
      return victim;
    },
    /** Between the parser's callbacks and the process. */
    toService,
    kill: () => victim.kill(),
    killAt,
    /** The same at what the process does about the work that is made meanwhile; it is stopped until then. */
    killAtWork: async (at: Place, makeWork: () => Promise<unknown>): Promise<void> => {
      victim.pause();
      await sleep(SENT_MS);
      await makeWork();
      const killed = killAt(at);
      victim.resume();
      await killed;
    },
    /** Another process in its place; resolves when it listens. */
    restart: async (): Promise<void> => {
      victim = await place.start(settings);
    },
  };
}

/** Scripts are known by what stands for them from the first call on. */
async function loadAll(url: string): Promise<void> {
  const client = new Redis(url);
  for (const lua of Object.values(loadScripts())) await client.script('LOAD', lua);
  client.disconnect();
}
