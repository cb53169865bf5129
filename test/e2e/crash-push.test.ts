/**
 * The only process is killed in each gap between a free slot and a free slot again, and started anew. What must be true
 * then is read from the database, the limiter's store and what the parser saw, for both stores.
 */
import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { accept, hang, type Push } from '../support/answers.ts';
import { BACK_MS, type CrashScene, type Place, SLACK_MS, setCrashScene } from '../support/crash.ts';
import { eventually } from '../support/eventually.ts';
import { LIMITERS, type LimiterName, submitMany } from '../support/installation.ts';

const LIMIT = 2;
/** More than the slots, so that whatever is free is taken. */
const TASKS = 5;
/** Long enough for a new process to have done by then what it should not do. */
const DEADLINE_MS = 4_000;
/** No deadline passes while callbacks are what ends the attempts. */
const FAR_MS = 60_000;
/** A dead holder delays the repair of slots by 5 s at most, and it runs every second. */
const LATE_MS = 5_000 + 1_000 + SLACK_MS;
/** What does not wait for a message that is held, though it should, is done within this. */
const HELD_MS = 100;

type Point = {
  name: string;
  /** Where it is killed: at this message, once the parser has read its pushes, or when it answers a callback. */
  kill: Place | 'pushes read' | 'callback answered';
  during: 'push' | 'callback';
  /** Just after the kill: attempts open in the database, and slots held without one. */
  open: number;
  leaked: number;
  /** What ends the open attempts. */
  ends: 'deadline' | 'callback';
};

const POINTS: Point[] = [
  {
    name: 'with slots taken and the claim not sent',
    kill: { at: 'claim_tasks', side: 'request' },
    during: 'push',
    open: 0,
    leaked: LIMIT,
    ends: 'deadline',
  },
  {
    name: 'with the claim committed and its slots not confirmed',
    kill: { at: 'limiter_confirm', side: 'request', heldMs: HELD_MS },
    during: 'push',
    open: LIMIT,
    leaked: 0,
    ends: 'deadline',
  },
  {
    name: 'with the slots confirmed and nothing pushed',
    kill: { at: 'limiter_confirm', side: 'response' },
    during: 'push',
    open: LIMIT,
    leaked: 0,
    ends: 'deadline',
  },
  {
    name: 'with the pushes read by the parser and their answers not sent',
    kill: 'pushes read',
    during: 'push',
    open: LIMIT,
    leaked: 0,
    ends: 'callback',
  },
  {
    name: 'with the pushes accepted and that not noted',
    kill: { at: 'accept_attempts', side: 'request' },
    during: 'push',
    open: LIMIT,
    leaked: 0,
    ends: 'callback',
  },
  {
    name: 'with a result on its way to the database',
    kill: { at: 'settle_attempts', side: 'request', heldMs: HELD_MS },
    during: 'callback',
    open: LIMIT,
    leaked: 0,
    ends: 'callback',
  },
  {
    name: 'with a result committed and its slot not released',
    kill: { at: 'settle_attempts', side: 'response' },
    during: 'callback',
    open: LIMIT - 1,
    leaked: 1,
    ends: 'callback',
  },
  {
    name: 'with a result committed and the release of its slot on the way',
    kill: { at: 'limiter_release', side: 'request' },
    during: 'callback',
    open: LIMIT - 1,
    leaked: 1,
    ends: 'callback',
  },
  {
    name: 'with a slot released and the parser not answered',
    kill: 'callback answered',
    during: 'callback',
    open: LIMIT,
    leaked: 0,
    ends: 'callback',
  },
];

describe('a process killed between a free slot and a free slot again', { concurrency: 4 }, () => {
  for (const limiter of LIMITERS)
    for (const during of ['push', 'callback'] as const)
      test(`at a ${during} loses no task, frees no open attempt and is never above the limit (${limiter})`, async (t) => {
        const scene = await setScene(t, limiter);
        for (const point of POINTS.filter((one) => one.during === during))
          await t.test(point.name, () => crash(scene, point));
      });
});

type Scene = Awaited<ReturnType<typeof setScene>>;
type Row = { attempt_id: string; deadline: number };

async function setScene(t: TestContext, limiter: LimiterName) {
  const crashes: CrashScene = await setCrashScene(t, limiter, { env: { MAX_PROCESSING: String(LIMIT) } });
  return { ...crashes, crashes, accepted: [] as string[], applied: new Map<string, number>() };
}

async function crash(scene: Scene, point: Point): Promise<void> {
  const { place } = scene.crashes;
  const { parser, sql } = place;
  parser.answerWith(accept);
  await setDeadline(scene, point.ends === 'deadline' ? DEADLINE_MS : FAR_MS);
  const before = parser.pushes.length;
  const met = point.during === 'push' ? await killWhilePushing(scene, point) : await killWhileSettling(scene, point);

  parser.answerWith(accept);
  const { rows: open } = await sql.query<Row>(
    'SELECT attempt_id, deadline::float8 FROM attempts WHERE closed_at IS NULL',
  );
  assert.equal(open.length, point.open, 'attempts open at the kill');
  assert.equal(await place.slots(), point.open + point.leaked, 'slots held at the kill');
  const seen = parser.pushes.length;

  await scene.crashes.restart();
  await parser.waitForPushes(seen + LIMIT - point.open, LATE_MS); // Slots without an attempt are back.
  const end = point.ends === 'deadline' ? endByDeadline : endByCallback;
  if (open.length > 0) await end(scene, open, seen);
  if (met) assert.equal(await report(scene, met), 'duplicate');
  await finish(scene, parser.pushes.slice(before));
}

/** Submits and lets it be killed on the way to the parser. */
async function killWhilePushing(scene: Scene, { kill }: Point): Promise<undefined> {
  const { parser } = scene.crashes.place;
  const before = parser.pushes.length;
  if (typeof kill === 'object') {
    // That earlier ones were accepted may still be on its way to be noted.
    const ofThese = (sent: Buffer) => parser.pushes.slice(before).some(({ body }) => sent.includes(body.attempt_id));
    const killed = scene.crashes.killAt(kill.at === 'accept_attempts' ? { ...kill, like: ofThese } : kill);
    await submitAll(scene);
    return killed as Promise<undefined>;
  }
  parser.answerWith(hang);
  await submitAll(scene);
  await parser.waitForPushes(before + LIMIT);
  await scene.crashes.kill();
}

/** Submits, and lets it be killed over the callback of the first push; resolves with that. */
async function killWhileSettling(scene: Scene, { kill: at }: Point): Promise<Push> {
  const { place, toService, kill, killAt } = scene.crashes;
  const before = place.parser.pushes.length;
  await submitAll(scene);
  await place.parser.waitForPushes(before + LIMIT);
  const push = place.parser.pushes[before]!;
  if (typeof at === 'object') {
    const killed = killAt(at);
    // While its slot is being released the answer may leave.
    const answered = await report(scene, push).catch(() => null);
    if (at.at !== 'limiter_release') assert.equal(answered, null, 'the killed process answers nothing');
    await killed;
    return push;
  }
  const held = toService.at((sent) => sent.includes('POST /v1/callbacks/'), 'response', 'hold');
  const answered = report(scene, push).catch(() => null);
  await held;
  // The freed slot is taken again: it was released.
  await place.parser.waitForPushes(before + LIMIT + 1);
  await kill();
  assert.equal(await answered, null);
  return push;
}

/** In one commit. The kill may break off the answer: then they are not accepted, though they are there. */
async function submitAll({ crashes, accepted }: Scene): Promise<void> {
  const first = crashes.place.parser.pushes.length * 100;
  const ids = Array.from({ length: TASKS }, (_, i) => String(first + i));
  const tasks = ids.map((task_id) => ({ task_id }));
  const isAccepted = await submitMany(crashes.victim, tasks).then(
    () => true,
    () => false,
  );
  if (isAccepted) accepted.push(...ids);
}

/** Of the attempts claimed from now on. */
const setDeadline = ({ crashes }: Scene, ms: number) =>
  crashes.place.sql.query(`UPDATE queues SET own = own || jsonb_build_object('processing_expired_ms', $1::bigint)`, [
    ms,
  ]);

/** Nothing is pushed in their place before. */
async function endByDeadline({ crashes }: Scene, open: Row[], seen: number): Promise<void> {
  const { parser, sql, slots } = crashes.place;
  const first = Math.min(...open.map(({ deadline }) => deadline));
  const ids = open.map(({ attempt_id }) => attempt_id);
  while (Date.now() < first - 1_000) {
    assert.equal(await slots(), LIMIT, 'the slots are held until the deadline');
    await sleep(100);
  }
  await parser.waitForPushes(seen + LIMIT, DEADLINE_MS + LATE_MS);
  const early = parser.pushes.slice(seen).filter(({ atMs }) => performance.timeOrigin + atMs < first);
  assert.equal(early.length, LIMIT - open.length, 'no push before the deadline');
  const { rows } = await sql.query(
    `SELECT outcome, closed_at >= deadline AS late FROM attempts WHERE attempt_id = ANY ($1)`,
    [ids],
  );
  assert.deepEqual(
    rows,
    ids.map(() => ({ outcome: 'in_doubt_expired', late: true })),
  );
}

/** Nothing is pushed in their place while they are open, and for each that ends there is one. */
async function endByCallback(scene: Scene, open: Row[], seen: number): Promise<void> {
  const { parser, slots } = scene.crashes.place;
  await sleep(BACK_MS + 500); // That nothing is freed can only be seen by waiting.
  assert.equal(parser.pushes.length, seen + LIMIT - open.length, 'no push in place of an open attempt');
  assert.equal(await slots(), LIMIT);
  const isOpen = new Set(open.map(({ attempt_id }) => attempt_id));
  for (const push of parser.pushes.filter(({ body }) => isOpen.has(body.attempt_id))) {
    const pushes = parser.pushes.length;
    assert.equal(await report(scene, push), 'applied');
    await parser.waitForPushes(pushes + 1);
  }
}

/** The outcome of a callback. */
async function report({ crashes, applied }: Scene, push: Push): Promise<string> {
  const { status, body } = await crashes.place.parser.callback(push);
  const outcome = String(body.outcome ?? body.code);
  if (status === 200 && outcome === 'applied')
    applied.set(push.body.attempt_id, (applied.get(push.body.attempt_id) ?? 0) + 1);
  return outcome;
}

/** Everything accepted is parsed, nothing is held, there were never too many, and no attempt was applied twice. */
async function finish(scene: Scene, pushes: Push[]): Promise<void> {
  const { place } = scene.crashes;
  const { parser, sql } = place;
  const reported = new Set<string>();
  await eventually(
    async () => {
      for (const push of parser.pushes) {
        const { attempt_id } = push.body;
        if (reported.has(attempt_id) || !parser.outstanding.attemptIds().includes(attempt_id)) continue;
        await report(scene, push);
        reported.add(attempt_id);
      }
      const { Success, ...others } = await place.countTasks();
      assert.deepEqual(others, {});
      assert.ok(Success);
    },
    { timeoutMs: 20_000 },
  );
  const { rows } = await sql.query('SELECT task_id FROM task_scheduler_tasks WHERE status = 2');
  const succeeded = new Set(rows.map(({ task_id }) => String(task_id)));
  assert.deepEqual(
    scene.accepted.filter((id) => !succeeded.has(id)),
    [],
  );
  assert.ok(parser.outstanding.surely.max <= LIMIT, `${parser.outstanding.surely.max} outstanding`);
  await eventually(async () => assert.equal(await place.slots(), 0));
  for (const push of pushes.filter(({ body }) => scene.applied.has(body.attempt_id)))
    assert.equal(await report(scene, push), 'duplicate');
  assert.ok([...scene.applied.values()].every((times) => times === 1));
}
