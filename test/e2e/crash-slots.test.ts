/**
 * A process that watches is killed while it ends what is past its deadline, between closing an attempt and releasing its
 * slot, and while it repairs slots, for both stores of the limiter. What pushes is another process all the time.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { accept } from '../support/answers.ts';
import { type CrashScene, type Place, SLACK_MS, setCrashScene } from '../support/crash.ts';
import { eventually } from '../support/eventually.ts';
import { LIMITERS, type LimiterName, submit, submitMany } from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

/** A dead holder delays a job by 5 s at most, and each job runs every second. */
const LATE_MS = 5_000 + 1_000 + SLACK_MS;
const LIMIT = 2;
const EXPIRED_MS = 2_000;

type Scene = CrashScene & { other: RunningService };

describe('a watcher killed', { concurrency: 2 }, () => {
  for (const limiter of LIMITERS)
    test(`while it closes what is past its deadline, or repairs slots, leaves none held and frees none twice (${limiter})`, async (t) => {
      const scene = await setScene(t, limiter);
      await t.test('with the closing on its way', () =>
        expire(scene, { at: 'settle_attempts', side: 'request' }, { open: LIMIT, slots: LIMIT }),
      );
      await t.test('with the attempts closed and their slots not released', () =>
        expire(scene, { at: 'settle_attempts', side: 'response' }, { open: 0, slots: LIMIT }),
      );
      await t.test('with a repair of slots on its way', () =>
        repair(scene, { at: 'limiter_repair', side: 'request' }, 1),
      );
      await t.test('with slots repaired', () => repair(scene, { at: 'limiter_repair', side: 'response' }, 0));
    });
});

async function setScene(t: TestContext, limiter: LimiterName): Promise<Scene> {
  const env = { MAX_PROCESSING: String(LIMIT) };
  const scene = await setCrashScene(t, limiter, { env, own: { ROLES: 'watcher' } });
  const other = await scene.place.start({ ROLES: 'api,pusher' });
  return Object.assign(scene, { other });
}

/** All slots are held by attempts that end by their deadline, the watcher is killed over them. */
async function expire(scene: Scene, at: Place, killed: { open: number; slots: number }): Promise<void> {
  const { place } = scene;
  const { parser, sql } = place;
  const from = parser.pushes.length;
  parser.answerWith(accept);
  await scene.killAtWork(at, async () => {
    await setDeadline(scene, EXPIRED_MS);
    await submitMany(scene.other, [{ task_id: from }, { task_id: from + 1 }, { task_id: from + 2 }]);
    await parser.waitForPushes(from + LIMIT);
    await setDeadline(scene, 60_000);
    const isOver = `SELECT 1 FROM attempts WHERE closed_at IS NULL AND deadline >= docsched_now() - 100`;
    await eventually(async () => assert.equal((await sql.query(isOver)).rowCount, 0));
  });
  const { rows } = await sql.query('SELECT count(*)::int AS open FROM attempts WHERE closed_at IS NULL');
  assert.deepEqual({ open: rows[0].open, slots: await place.slots() }, killed);
  assert.equal(parser.pushes.length, from + LIMIT, 'nothing was pushed in their place');
  await scene.restart();
  await parser.waitForPushes(from + 2 * LIMIT, LATE_MS);
  const late = await parser.callback(parser.pushes[from]!);
  assert.deepEqual([late.status, late.body.code], [409, 'stale_attempt']);
  parser.autoCallback();
  for (const push of parser.pushes.slice(from + LIMIT)) await parser.callback(push);
  await isIdle(scene);
}

/** A slot whose attempt ended without giving it back, as when its process died in between. */
async function repair(scene: Scene, at: Place, slots: number): Promise<void> {
  const { place } = scene;
  const from = place.parser.pushes.length;
  place.parser.answerWith(accept);
  await scene.killAtWork(at, async () => {
    await submit(scene.other, { task_id: 1_000 + from });
    await place.parser.waitForPushes(from + 1);
    await place.sql.query(
      `WITH closed AS (
         UPDATE attempts SET closed_at = docsched_now(), outcome = 'success' WHERE closed_at IS NULL
         RETURNING attempt_id
       )
       UPDATE task_scheduler_tasks SET status = 2, finished_at = docsched_now(), attempt_id = NULL
       WHERE attempt_id IN (SELECT attempt_id FROM closed)`,
    );
  });
  assert.equal(await place.slots(), slots);
  await scene.restart();
  await eventually(async () => assert.equal(await place.slots(), 0), { timeoutMs: LATE_MS });
  assert.equal((await place.parser.callback(place.parser.pushes[from]!)).body.outcome, 'duplicate');
  await isIdle(scene);
}

async function isIdle({ place }: Scene): Promise<void> {
  await eventually(async () => assert.deepEqual(Object.keys(await place.countTasks()), ['Success']));
  await eventually(async () => assert.equal(await place.slots(), 0), { timeoutMs: LATE_MS });
  assert.ok(place.parser.outstanding.surely.max <= LIMIT, `${place.parser.outstanding.surely.max} outstanding`);
}

/** Of the attempts claimed from now on. */
const setDeadline = ({ place }: Scene, ms: number) =>
  place.sql.query(`UPDATE queues SET own = own || jsonb_build_object('processing_expired_ms', $1::bigint)`, [ms]);
