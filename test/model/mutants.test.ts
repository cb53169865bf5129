/** The service with one place broken: each of these faults is noticed by a trace that the service itself passes. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { freshDatabase, type TestDatabase } from '../support/postgres.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';
import { follow } from './explore.ts';
import { createGround, type Ground, skipPauses } from './ground.ts';
import { MUTANTS } from './mutants.ts';
import { changed, mutate } from './mutate.ts';
import { Deviation, replay } from './replay.ts';

test('a mutant whose place is not there, or there twice, says so', () => {
  const change = { in: 'schema/functions/settle', replace: '' };
  assert.throws(() => changed({ ...change, find: 'there is no such text' }), /the anchor moved: .* 0 times/);
  assert.throws(() => changed({ ...change, find: 'attempt_id' }), /the anchor moved: .* \d+ times/);
});

describe('a trace passes and, broken in one place, the service fails it:', () => {
  let redis: TestRedis;
  let database: TestDatabase;
  let sound: Ground;
  before(async () => {
    skipPauses();
    redis = await startRedis();
    database = await freshDatabase('mutants');
    sound = await createGround(database, redis.url);
  });
  after(async () => {
    await sound?.end();
    await redis?.stop();
  });

  for (const [name, { scope, stores, steps, notices, ...change }] of Object.entries(MUTANTS))
    test(name, async (t) => {
      const trace = follow(scope, steps);
      await replay(sound, scope, stores, trace);
      const texts = await mutate(change);
      const own = texts.functions ? await freshDatabase('mutant') : database;
      const broken = await createGround(own, redis.url, texts);
      try {
        await assert.rejects(replay(broken, scope, stores, trace), (error) => {
          assert.ok(error instanceof Deviation, String(error));
          t.diagnostic(error.message.split('\n')[0]!);
          assert.equal(error.step, notices, error.message);
          return true;
        });
      } finally {
        await broken.end();
        if (own !== database) await own.drop();
      }
    });
});
