/** The timer of targets that are left alone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Db } from '../../src/db.ts';
import { createLog } from '../../src/log.ts';
import type { ClaimedTask } from '../../src/pusher/claim.ts';
import { createTargets } from '../../src/pusher/targets.ts';
import type { Queue, Target } from '../../src/queues.ts';

/** Less than the second after which there is a look in any case. */
const BUSY_MS = 900;
const targetOf = (url: string): Target => ({ url, mode: 'async', batch: 1, push_timeout_ms: 1_000 });
const TARGETS = [targetOf('http://a.test/'), targetOf('http://b.test/')];
const record = { url: TARGETS[0]!.url, failures: 0, wait_ms: BUSY_MS, failed_at: 1, error: null };

const turn = () => new Promise((resolve) => setImmediate(resolve));

test('one that comes a moment before the wait is over comes again when it is, not a second later', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let woken = 0;
  const targets = createTargets({
    db: { query: async (name: string) => (name === 'slow_target' ? [record] : []) } as unknown as Db,
    queue: () => ({ queue: 'default', targets: TARGETS.slice(0, 1) }) as Queue,
    wake: () => {
      woken += 1;
    },
    log: createLog('silent'),
  });
  t.after(targets.stop);
  await targets.look(TARGETS);
  const began = performance.now();
  await targets.busy({ target: TARGETS[0], started_at: '2' } as ClaimedTask, BUSY_MS);
  const tick = async (ms: number) => {
    t.mock.timers.tick(ms);
    await turn();
  };
  await tick(BUSY_MS);
  assert.equal(woken, 0);
  while (performance.now() - began <= BUSY_MS + 50) await turn();
  await tick(BUSY_MS);
  assert.equal(woken, 1);
});
