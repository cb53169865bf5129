/** Traces of the model, done by the real components on a real PostgreSQL and a real Redis. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { freshDatabase } from '../support/postgres.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';
import { findPairs } from './explore.ts';
import { createGround, type Ground, type StoreName, skipPauses } from './ground.ts';
import { replay, type Taken } from './replay.ts';
import { RETRIES, STORES, TWO_SLOTS, VERSIONS, WATCHERS } from './scopes.ts';
import type { Scope } from './state.ts';
import { KINDS, type Kind } from './steps.ts';
import { draw } from './traces.ts';

const FEWEST_TRACES = 100;
/** In a trace; one is enough for each pair, more of them show more pairs in fewer traces. */
const FAULTS = 3;
/** Only a mutant of the model takes it. */
const ONLY_BROKEN: Kind = 'expire-slot';
/** PostgreSQL's slots vanish whole. */
const ONLY_REDIS: Kind = 'age-store';
/** Traces at once, each on stores of its own. */
const LANES = 3;

type Way = { scope: Scope; way: Taken[] };

describe('the real components', () => {
  const servers: TestRedis[] = [];
  const grounds: Ground[] = [];
  before(async () => {
    skipPauses();
    for (let lane = 0; lane < LANES; lane++) {
      servers.push(await startRedis());
      grounds.push(await createGround(await freshDatabase('replay'), servers[lane]!.url));
    }
  });
  after(async () => {
    for (const ground of grounds) await ground.end();
    for (const redis of servers) await redis.stop();
  });

  test('do what the model does, step by step, for every pair of steps that can follow each other', async (t) => {
    const { ways, pairs } = drawAll();
    assert.ok(ways.length >= FEWEST_TRACES, `only ${ways.length} traces`);

    const began = performance.now();
    const kinds = { redis: new Set<Kind>(), postgres: new Set<Kind>() };
    const left = ways.map((way) => ({ ...way, stores: chooseStores(way, kinds) }));
    await Promise.all(
      grounds.map(async (ground) => {
        for (let next = left.shift(); next; next = left.shift()) {
          await replay(ground, next.scope, next.stores, next.way);
        }
      }),
    );
    const steps = ways.reduce((sum, { way }) => sum + way.length, 0);
    const ms = Math.round(performance.now() - began);
    t.diagnostic(`${ways.length} traces, ${steps} steps, ${pairs} pairs of steps, replayed in ${ms} ms`);
    const all = KINDS.filter((kind) => kind !== ONLY_BROKEN);
    assert.deepEqual(
      all.filter((kind) => !kinds.redis.has(kind)),
      [],
    );
    assert.deepEqual(
      all.filter((kind) => kind !== ONLY_REDIS && !kinds.postgres.has(kind)),
      [],
    );
  });
});

/** The store, or the order of both, that has seen less of what the way holds; but only Redis keeps data that count as lost. */
function chooseStores({ scope, way }: Way, kinds: Record<StoreName, Set<Kind>>): StoreName[] {
  const unseen = (store: StoreName) => way.filter(({ step }) => !kinds[store].has(step.kind)).length;
  const size = kinds.redis.size + kinds.postgres.size + way.length;
  const first = unseen('redis') - unseen('postgres') || (size % 2) - 0.5;
  const ages = way.some(({ step }) => step.kind === ONLY_REDIS);
  const stores: StoreName[] = ages || first > 0 ? ['redis', 'postgres'] : ['postgres', 'redis'];
  const used = stores.slice(0, scope.stores);
  for (const store of used) for (const { step } of way) kinds[store].add(step.kind);
  return used;
}

/** Ways that show every pair of steps of every scope; the same each time. */
function drawAll(): { ways: Way[]; pairs: number } {
  const shown = new Set<string>();
  const possible = new Set<string>();
  const ways: Way[] = [];
  for (const [seed, one] of [VERSIONS, STORES, RETRIES, WATCHERS, TWO_SLOTS].entries()) {
    const pairs = findPairs(one);
    for (const pair of pairs.keys()) possible.add(pair);
    const scope = { ...one, faults: FAULTS };
    for (const way of draw(scope, pairs, shown, seed)) ways.push({ scope, way });
  }
  assert.deepEqual(
    [...possible].filter((pair) => !shown.has(pair)),
    [],
  );
  return { ways, pairs: possible.size };
}
