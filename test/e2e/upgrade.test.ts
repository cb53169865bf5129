/** Two versions on one database, as in every rolling upgrade. The newer one is this one with a change to its schema. */
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { eventually } from '../support/eventually.ts';
import { type Installation, install, submit } from '../support/installation.ts';
import { type RunningService, startService } from '../support/process.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const SUBMITTERS = 6;
const LIMIT = 10;
/** Holds the tables for a second, as a migration of a large database may. */
const ADDITIVE = `-- Up Migration
ALTER TABLE task_scheduler_tasks ADD COLUMN shelf text;
ALTER TABLE attempts ADD COLUMN shelf text;
SELECT pg_sleep(1);
CREATE TABLE shelves (shelf text CONSTRAINT shelves_pkey PRIMARY KEY);
`;

test('while a newer version migrates and joins in, nothing is lost and both push', async (t) => {
  // Each instance is called back at its own address: what one pushed that then stops comes back after the deadline.
  const env = { MAX_PROCESSING: String(LIMIT), PROCESSING_EXPIRED_MS: '4000', RETRY_BASE_MS: '100' };
  const place = await install(t, { limiter: 'postgres', env });
  place.parser.autoCallback({ afterMs: 15 });
  const old = await place.start();
  const running = [old];
  const traffic = submitTo(running);
  await eventually(() => traffic.accepted.size >= 50);

  const newer = await newerVersion(t, { migration: ['9001_shelves', ADDITIVE], functionsRevision: 9_001 });
  running.push(await newer(place));
  const before = traffic.accepted.size;
  await eventually(() => traffic.accepted.size >= before + 200, { timeoutMs: 20_000 });
  for (const { url } of running)
    await eventually(() => place.parser.pushes.slice(before).some(({ body }) => body.callback_url.startsWith(url)));

  await t.test('an old instance that restarts uses the database as it is', async () => {
    running.shift();
    await old.stop();
    const again = await place.start();
    running.push(again);
    assert.equal(await functionsInForce(place), 9_001);
    const pushed = place.parser.pushes.length;
    await eventually(() =>
      place.parser.pushes.slice(pushed).some(({ body }) => body.callback_url.startsWith(again.url)),
    );
  });

  await traffic.stop();
  assert.ok(traffic.accepted.size > 300, `${traffic.accepted.size} submits were accepted`);
  await eventually(async () => assert.deepEqual(await place.countTasks(), { Success: traffic.accepted.size }), {
    timeoutMs: 40_000,
  });
  assert.ok(place.parser.outstanding.surely.max <= LIMIT, `${place.parser.outstanding.surely.max} at once`);
  await eventually(async () => assert.equal(await place.slots(), 0));
});

test('functions alone that are newer are not replaced by an old instance that restarts', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const newer = await newerVersion(t, { functionsRevision: 9_001 });
  await newer(place);
  assert.equal(await functionsInForce(place), 9_001);
  await place.start();
  assert.equal(await functionsInForce(place), 9_001);
});

test('a version does not start on the database of a newer one that broke with it', async (t) => {
  const place = await install(t, { limiter: 'postgres' });
  const newer = await newerVersion(t, { migration: ['9002_shelves_breaking', '-- Up Migration\nSELECT 1;\n'] });
  await newer(place);
  const refused = await startService({ env: place.env, ready: false });
  assert.equal((await refused.exited).code, 57);
  assert.match(refused.lines.join('\n'), /9002_shelves_breaking.*upgrade/);
});

/** Starts instances of a copy of this version, with a migration more, or functions of a higher revision that say so. */
async function newerVersion(
  t: TestContext,
  { migration, functionsRevision }: { migration?: [name: string, sql: string]; functionsRevision?: number },
): Promise<(place: Installation) => Promise<RunningService>> {
  const root = mkdtempSync(join(tmpdir(), 'docsched-newer-'));
  for (const part of ['src', 'schema', 'package.json']) cpSync(join(ROOT, part), join(root, part), { recursive: true });
  symlinkSync(join(ROOT, 'node_modules'), join(root, 'node_modules'));
  if (migration) writeFileSync(join(root, 'schema/migrations', `${migration[0]}.sql`), migration[1]);
  if (functionsRevision !== undefined) {
    const path = join(root, 'schema/functions/now.sql');
    const text = readFileSync(path, 'utf8');
    const marked = text.replace('* 1000)', `* 1000 + 0 * ${functionsRevision})`);
    assert.notEqual(marked, text);
    writeFileSync(path, marked);
    writeFileSync(join(root, 'schema/functions/REVISION'), `${functionsRevision}\n`);
  }
  const started: RunningService[] = [];
  t.after(async () => {
    await Promise.all(started.map((one) => one.kill()));
    rmSync(root, { recursive: true, force: true });
  });
  return async ({ env }) => {
    const one = await startService({ env, root });
    started.push(one);
    return one;
  };
}

/** Revision that the functions of the database are marked with; 0 when they are not of a newer version. */
async function functionsInForce({ sql }: Installation): Promise<number> {
  const { rows } = await sql.query(`SELECT pg_get_functiondef('docsched_now()'::regprocedure) AS text`);
  return Number(/ 0 \* (\d+)/.exec(rows[0].text)?.[1] ?? /\(0 \* (\d+)\)/.exec(rows[0].text)?.[1] ?? 0);
}

/** Each submits to any of `running`, and what is refused or breaks off again, as clients do. */
function submitTo(running: RunningService[]) {
  const accepted = new Set<number>();
  let stopped = false;
  const work = async (lane: number) => {
    for (let id = lane; !stopped; id += SUBMITTERS)
      for (let answer = 0; answer >= 500 || answer === 0; ) {
        const instance = running[Math.floor(Math.random() * running.length)]!;
        answer = (await submit(instance, { task_id: id }).catch(() => null))?.status ?? 0;
        if (answer === 200 || answer === 202) accepted.add(id);
        else assert.ok(answer === 0 || answer === 503, `answered ${answer}`);
      }
  };
  const working = Promise.all(Array.from({ length: SUBMITTERS }, (_, lane) => work(lane)));
  return {
    accepted,
    stop: () => {
      stopped = true;
      return working;
    },
  };
}
