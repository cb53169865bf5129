/**
 * A process that takes submits and redrives is killed around each commit, while another one pushes what was stored. What
 * was accepted is parsed, what was not may be said again, and nothing is parsed twice.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { type CrashScene, type Place, setCrashScene } from '../support/crash.ts';
import { eventually } from '../support/eventually.ts';
import { ended, post, submit } from '../support/installation.ts';

/** Tasks of a redrive: more than one commit takes. */
const FAILED = 600;
const A_COMMIT = 500;
/** An answer that does not wait for its commit leaves within this. */
const HELD_MS = 100;

type Point = {
  name: string;
  kill: Place;
  /** What is sent for these ids, in one request. */
  send: (scene: CrashScene, ids: string[]) => Promise<{ status: number }>;
  ids: number;
  /** Whether the tasks are stored at the kill. */
  stored: boolean;
  /** Whether the answer may have left. */
  mayAnswer?: boolean;
};

const one: Point['send'] = ({ victim }, [task_id]) => submit(victim, { task_id: task_id! });
const batch =
  (atomic: boolean): Point['send'] =>
  ({ victim }, ids) => {
    const tasks = ids.map((task_id) => ({ task_id, task_version: 1, payload: null }));
    return post(victim, '/v1/tasks/batch', { tasks, ...(atomic ? { atomic } : {}) });
  };
/** Of a commit, not the check of the sender's own listener. */
const ofWork = (sent: Buffer): boolean => sent.includes(' default');

const POINTS: Point[] = [
  {
    name: 'with a submit on its way to the database',
    kill: { at: 'submit_tasks', side: 'request', heldMs: HELD_MS },
    send: one,
    ids: 1,
    stored: false,
  },
  {
    name: 'with a submit committed and not answered',
    kill: { at: 'submit_tasks', side: 'response', heldMs: HELD_MS },
    send: one,
    ids: 1,
    stored: true,
  },
  {
    name: 'with a submit committed and nobody told that there is work',
    kill: { at: 'announce_work', side: 'request', like: ofWork },
    send: one,
    ids: 1,
    stored: true,
    mayAnswer: true,
  },
  {
    name: 'with a batch committed and not answered',
    kill: { at: 'submit_tasks', side: 'response', heldMs: HELD_MS },
    send: batch(false),
    ids: 3,
    stored: true,
  },
  {
    name: 'with a batch of all or nothing on its way to the database',
    kill: { at: 'submit_atomic', side: 'request', heldMs: HELD_MS },
    send: batch(true),
    ids: 3,
    stored: false,
  },
  {
    name: 'with a batch of all or nothing committed and not answered',
    kill: { at: 'submit_atomic', side: 'response', heldMs: HELD_MS },
    send: batch(true),
    ids: 3,
    stored: true,
  },
];

describe('a process killed around a commit', { concurrency: 2 }, () => {
  test('of a submit loses nothing that was accepted, and what was not can be said again', async (t) => {
    const scene = await setScene(t);
    for (const [index, point] of POINTS.entries())
      await t.test(point.name, async () => {
        const ids = Array.from({ length: point.ids }, (_, i) => String(100 * index + i));
        const killed = scene.killAt(point.kill);
        const answered = await point.send(scene, ids).catch(() => null);
        await killed;
        if (!point.mayAnswer) assert.equal(answered, null);
        assert.equal(await count(scene, ids), point.stored ? ids.length : 0);
        await scene.restart();
        if (point.stored) await succeed(scene, ids);
        const again = await point.send(scene, ids);
        assert.ok(again.status < 300, `${again.status}`);
        await succeed(scene, ids);
        assert.deepEqual(pushesOf(scene, ids), ids, 'each was pushed once');
      });
  });

  test('of a redrive has done a part, and calling again does the rest once', async (t) => {
    const scene = await setScene(t);
    const beyondFirst = (sent: Buffer): boolean => !sent.includes('\0\0\0\x02-1');
    const points: Record<string, Place> = {
      'with its first commit done': { at: 'redrive_tasks', side: 'response' },
      'with its second commit on its way': { at: 'redrive_tasks', side: 'request', like: beyondFirst },
    };
    for (const [index, [name, place]] of Object.entries(points).entries())
      await t.test(name, async () => {
        const ids = Array.from({ length: FAILED }, (_, i) => String(10_000 * (index + 1) + i));
        await fail(scene, ids);
        const killed = scene.killAt(place);
        const redrive = () => post(scene.victim, '/v1/queues/default/redrive', { rate_per_s: 10_000 });
        assert.equal(await redrive().catch(() => null), null);
        await killed;
        await scene.restart();
        const { body } = await redrive();
        assert.equal(body.redriven, FAILED - A_COMMIT);
        await eventually(async () => assert.equal(await count(scene, ids, 2), FAILED), { timeoutMs: 20_000 });
        assert.deepEqual(pushesOf(scene, ids), ids, 'each was pushed once');
      });
  });
});

/** The process to be killed takes what comes in; another one pushes. */
async function setScene(t: TestContext): Promise<CrashScene> {
  const env = { MAX_PROCESSING: '50' };
  const scene = await setCrashScene(t, 'postgres', { env, own: { ROLES: 'api' } });
  await scene.place.start({ ROLES: 'pusher,watcher', PUBLIC_URL: scene.toService.url });
  scene.place.parser.autoCallback();
  return scene;
}

async function count({ place }: CrashScene, ids: string[], status?: number): Promise<number> {
  const { rows } = await place.sql.query(
    `SELECT count(*)::int AS n FROM task_scheduler_tasks
     WHERE task_id = ANY ($1::bigint[]) AND status = coalesce($2, status)`,
    [ids, status ?? null],
  );
  return rows[0].n;
}

async function succeed({ victim }: CrashScene, ids: string[]): Promise<void> {
  for (const id of ids) assert.equal((await ended(victim, id)).status, 'Success');
}

/** Ids of the pushes of these tasks, sorted; one that was pushed twice stands twice. */
function pushesOf({ place }: CrashScene, ids: string[]): string[] {
  const asked = new Set(ids);
  const pushed = place.parser.pushes.map(({ body }) => body.task_id).filter((id) => asked.has(id));
  return pushed.sort((a, b) => Number(a) - Number(b));
}

/** Puts Failed tasks there behind the service's back. */
const fail = ({ place }: CrashScene, ids: string[]) =>
  place.sql.query(
    `WITH floors AS (
       INSERT INTO version_floors (queue, task_id, task_version, accepted_at)
       SELECT 'default', id, 1, docsched_now() FROM unnest($1::bigint[]) id
     )
     INSERT INTO task_scheduler_tasks (queue, task_id, task_version, place, status, reason, finished_at, priority, level,
       payload, max_retries, pending_since, create_at, update_at)
     SELECT 'default', id, 1, id, 3, 'refused', docsched_now() - 60000, 5, 5, 'null', 0, docsched_now(), docsched_now(),
            docsched_now()
     FROM unnest($1::bigint[]) id`,
    [ids],
  );
