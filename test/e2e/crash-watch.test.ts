/**
 * A process that watches is killed while it holds the lease of a job, before and after what the job does is committed.
 * Another one in its place does the rest, at most LEASE_MS later. What pushes is another process all the time.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { loadStatements } from '../../src/schema.ts';
import { type CrashScene, type Place, SLACK_MS, setCrashScene } from '../support/crash.ts';
import { eventually } from '../support/eventually.ts';
import { setQueue, submit } from '../support/installation.ts';
import type { RunningService } from '../support/process.ts';

/** A dead holder delays a job by this at most. */
const LEASE_MS = 5_000;
/** Each job runs every second. */
const LATE_MS = LEASE_MS + 1_000 + SLACK_MS;
/** A queue that nothing is claimed from. */
const HELD = 'held';

type Scene = CrashScene & { other: RunningService };
/** A task's row, as far as it is looked at here. */
type Row = { task_version: number; status: number; reason: string | null; hold: number };

type Point = {
  name: string;
  kill: Place;
  /** Makes work for the job, about this task. */
  prepare: (scene: Scene, id: number) => Promise<unknown>;
  /** What is to be seen just after the kill. */
  killed: (scene: Scene, id: number) => Promise<void>;
  /** What is to be seen in the end. */
  mended: (scene: Scene, id: number) => Promise<void>;
};

const ofHeld = (sent: Buffer): boolean => sent.includes(HELD);
const ofHeldFailed = (sent: Buffer): boolean => sent.includes(`${HELD}\0\0\0\x013`);

const expirePending = {
  prepare: async (scene: Scene, id: number) => {
    for (const task_version of [1, 2]) await submit(scene.other, { queue: HELD, task_id: id, task_version });
    await update(scene, id, 'pending_since = 1', 2);
  },
  mended: async (scene: Scene, id: number) =>
    assert.deepEqual(await rowsOf(scene, id), [
      { task_version: 1, status: 0, reason: null, hold: 0 },
      { task_version: 2, status: 3, reason: 'pending_expired', hold: 0 },
    ]),
};
const retain = {
  prepare: async (scene: Scene, id: number) => {
    await submit(scene.other, { queue: HELD, task_id: id });
    await update(scene, id, `status = 2, finished_at = 1, result = '{}'`);
  },
  mended: (scene: Scene, id: number) => isAt(scene, id, { status: 4, reason: 'retention', hold: 0 }),
};
const promote = {
  prepare: async (scene: Scene, id: number) => {
    await submit(scene.other, { task_id: id, run_at: Date.now() + 3_600_000 });
    await update(scene, id, 'ready_at = 1');
  },
  /** Also when nobody was told that it is due. */
  mended: async (scene: Scene, id: number) => {
    await isAt(scene, id, { status: 2, reason: null, hold: 0 });
    assert.equal(scene.place.parser.pushes.filter(({ body }) => body.task_id === String(id)).length, 1);
  },
};
const clean = {
  prepare: async (scene: Scene, id: number) => {
    await submit(scene.other, { queue: HELD, task_id: id });
    await update(scene, id, `status = 3, reason = 'parser_failed', finished_at = 1`);
    await scene.place.sql.query('UPDATE version_floors SET accepted_at = 1 WHERE task_id = $1', [id]);
    await scene.place.sql.query(
      `INSERT INTO attempts (attempt_id, task_row_id, queue, task_id, task_version, number, target, claimed_at, deadline,
         max_deadline, closed_at, outcome)
       SELECT 'attempt' || task_id, id, queue, task_id, task_version, 1, '', 1, 1, 1, 1, 'parser_failed'
       FROM task_scheduler_tasks WHERE task_id = $1`,
      [id],
    );
  },
  mended: async (scene: Scene, id: number) => assert.deepEqual(await remains(scene, id), [0, 0, 0]),
};

const fold = {
  prepare: (scene: Scene, id: number) => submit(scene.other, { queue: HELD, task_id: id }),
  /** Each task is counted once, added up or still noted. */
  mended: async ({ place }: Scene) => {
    const counted = await place.sql.query(`SELECT sum(tasks)::int AS n FROM (${loadStatements().count_tasks}) c`);
    const there = await place.sql.query('SELECT count(*)::int AS n FROM task_scheduler_tasks');
    assert.deepEqual(counted.rows, there.rows);
  },
};

/** Points of different jobs, so that none waits for the lease of the one before. */
const ROUNDS: Point[][] = [
  [
    {
      name: 'with the failing of a pending task on its way',
      kill: { at: 'expire_pending', side: 'request', like: ofHeld },
      ...expirePending,
      killed: async (scene, id) => assert.deepEqual((await rowsOf(scene, id)).at(-1)!.status, 0),
    },
    {
      name: 'with a retirement on its way',
      kill: { at: 'retain_results', side: 'request', like: ofHeld },
      ...retain,
      killed: (scene, id) => isAt(scene, id, { status: 2, reason: null, hold: 0 }),
    },
    {
      name: 'with a promotion on its way',
      kill: { at: 'promote_tasks', side: 'request' },
      ...promote,
      killed: (scene, id) => isAt(scene, id, { status: 0, reason: null, hold: 1 }),
    },
    {
      name: 'with the deletion of a task on its way',
      kill: { at: 'delete_tasks', side: 'request', like: ofHeldFailed },
      ...clean,
      killed: async (scene, id) => assert.deepEqual(await remains(scene, id), [1, 1, 1]),
    },
    {
      name: 'with counts to be added up',
      kill: { at: 'fold_counts', side: 'request' },
      ...fold,
      killed: fold.mended,
    },
  ],
  [
    {
      name: 'with a pending task failed, and the version behind it still blocked',
      kill: { at: 'expire_pending', side: 'response', like: ofHeld },
      ...expirePending,
      killed: async (scene, id) =>
        assert.deepEqual(
          (await rowsOf(scene, id)).map(({ status, hold }) => [status, hold]),
          [
            [0, 2],
            [3, 0],
          ],
        ),
    },
    {
      name: 'with a result retired',
      kill: { at: 'retain_results', side: 'response', like: ofHeld },
      ...retain,
      killed: retain.mended,
    },
    {
      name: 'with a task promoted, and nobody told',
      kill: { at: 'promote_tasks', side: 'response' },
      ...promote,
      killed: async (scene, id) => assert.equal((await rowsOf(scene, id))[0]!.hold, 0),
    },
    {
      name: 'with a task deleted, and its attempts and floor still there',
      kill: { at: 'delete_tasks', side: 'response', like: ofHeldFailed },
      ...clean,
      killed: async (scene, id) => assert.deepEqual(await remains(scene, id), [0, 1, 1]),
    },
    {
      name: 'with counts added up',
      kill: { at: 'fold_counts', side: 'response' },
      ...fold,
      killed: fold.mended,
    },
  ],
  [
    {
      name: 'with the attempts of a task deleted',
      kill: { at: 'delete_attempts', side: 'response' },
      ...clean,
      killed: async (scene, id) => assert.deepEqual(await remains(scene, id), [0, 0, 1]),
    },
  ],
];

test('a watcher killed at its work leaves nothing that another one does not do', async (t) => {
  const scene = await setScene(t);
  scene.place.parser.autoCallback();
  await setQueue(scene.other, HELD, { paused: true });
  let id = 0;
  for (const points of ROUNDS) {
    const begun: (readonly [Point, number])[] = [];
    for (const point of points)
      await t.test(point.name, async () => {
        id += 1;
        await scene.killAtWork(point.kill, () => point.prepare(scene, id));
        await point.killed(scene, id);
        await scene.restart();
        begun.push([point, id]);
      });
    for (const [{ name, mended }, of] of begun)
      await t.test(`${name}: it is mended`, () => eventually(() => mended(scene, of), { timeoutMs: LATE_MS }));
  }
});

async function setScene(t: TestContext): Promise<Scene> {
  const env = { CLEANUP_CRON: '* * * * * *' };
  const scene = await setCrashScene(t, 'redis', { env, own: { ROLES: 'watcher' } });
  const other = await scene.place.start({ ROLES: 'api,pusher' });
  return Object.assign(scene, { other });
}

const update = ({ place }: Scene, id: number, set: string, version = 1) =>
  place.sql.query(`UPDATE task_scheduler_tasks SET ${set} WHERE task_id = $1 AND task_version = $2`, [id, version]);

async function rowsOf({ place }: Scene, id: number): Promise<Row[]> {
  const { rows } = await place.sql.query<Row>(
    `SELECT task_version::int, status, reason, hold FROM task_scheduler_tasks WHERE task_id = $1 ORDER BY task_version`,
    [id],
  );
  return rows;
}

async function isAt(scene: Scene, id: number, row: Omit<Row, 'task_version'>): Promise<void> {
  assert.deepEqual(await rowsOf(scene, id), [{ task_version: 1, ...row }]);
}

/** How many tasks, attempts and floors of this id there are. */
async function remains({ place }: Scene, id: number): Promise<number[]> {
  const tables = ['task_scheduler_tasks', 'attempts', 'version_floors'];
  return Promise.all(
    tables.map(async (table) => (await place.sql.query(`SELECT 1 FROM ${table} WHERE task_id = $1`, [id])).rowCount!),
  );
}
