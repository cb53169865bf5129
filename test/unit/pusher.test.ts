/** The pusher's rounds, with its stores scripted. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createLog } from '../../src/log.ts';
import type { ClaimRound } from '../../src/pusher/claim.ts';
import { createPusher } from '../../src/pusher/pusher.ts';
import type { Queue } from '../../src/queues.ts';

const NOTHING: ClaimRound = { tasks: [], lost: [], claimedAt: 0, more: false, waitMs: null, targetFailing: false };
const QUEUE = {
  queue: 'default',
  targets: [{ url: 'http://127.0.0.1:1/', mode: 'async', batch: 1, push_timeout_ms: 1000 }],
} as Queue;

test('an idle queue takes no slots: a round looks for work before it claims', async () => {
  let found = false;
  let claims = 0;
  const asked: string[] = [];
  const query = async (name: string) => {
    asked.push(name);
    return found ? [{ level: 5 }] : [];
  };
  const pusher = createPusher({
    db: { query } as unknown as Db,
    claim: async () => {
      claims += 1;
      return NOTHING;
    },
    client: undefined as never,
    settler: undefined as never,
    queue: () => QUEUE,
    callbackUrl: (attemptId) => attemptId,
    wake: () => {},
    observePush: () => {},
    observeDispatch: () => {},
    log: createLog('silent'),
  });
  assert.equal(await pusher.runOnce(), false);
  assert.equal(await pusher.runOnce(), false);
  assert.equal(claims, 0);
  found = true;
  await pusher.runOnce();
  assert.equal(claims, 1);
  assert.deepEqual(asked, ['find_claimable', 'find_claimable', 'find_claimable']);
  await pusher.idle();
});
