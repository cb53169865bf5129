/** The service without DATABASE_URL: it brings its own PostgreSQL, keeps its data, and leaves no process behind. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { eventually } from '../support/eventually.ts';
import { ended, getTask, submit } from '../support/installation.ts';
import { startParser } from '../support/parser.ts';
import { type RunningService, startService } from '../support/process.ts';

test('an embedded installation keeps its tasks over a restart and a kill, and leaves nothing running', async (t) => {
  const dataDir = await mkdtemp(join(tmpdir(), 'docsched-service-'));
  await chmod(dataDir, 0o755);
  const parser = await startParser();
  const started: RunningService[] = [];
  t.after(async () => {
    await Promise.all(started.map((service) => service.stop()));
    await parser.stop();
    await rm(dataDir, { recursive: true, force: true });
  });
  const start = async (env: Record<string, string> = {}) => {
    const service = await startService({ env: { DATA_DIR: dataDir, ...env } });
    started.push(service);
    return service;
  };

  const first = await start();
  assert.equal((await submit(first, { task_id: 1, payload: { big: 1, text: 'kept' } })).status, 202);
  assert.ok(running(dataDir).length > 0, 'its PostgreSQL is seen here');
  assert.equal((await first.stop()).code, 0);
  await nothingRuns(dataDir);

  parser.autoCallback({ report: { result: 'parsed' } });
  const second = await start({ PARSER_URL: parser.url });
  const done = await ended(second, 1);
  assert.deepEqual([done.status, done.result], ['Success', 'parsed']);
  assert.deepEqual(parser.pushes[0]!.body.payload, { big: 1, text: 'kept' });

  assert.equal((await submit(second, { task_id: 2 })).status, 202);
  await second.kill();
  const third = await start({ PARSER_URL: parser.url });
  assert.equal((await getTask(third, 1)).result, 'parsed');
  assert.ok(['Pending', 'Processing', 'Success'].includes((await getTask(third, 2)).status), 'a 202 is durable');
  assert.equal((await third.stop()).code, 0);
  await nothingRuns(dataDir);
});

/** Lines of `ps` of a PostgreSQL that belongs to the directory; its children show the cluster's name only, so by parent. */
function running(dataDir: string): string[] {
  const { stdout } = spawnSync('ps', ['-eo', 'pid=,ppid=,stat=,args='], { encoding: 'utf8' });
  const lines = stdout.split('\n').filter((line) => !/^\s*\d+\s+\d+\s+Z/.test(line));
  return lines.filter((line) => line.includes(dataDir));
}

const nothingRuns = (dataDir: string) => eventually(() => assert.deepEqual(running(dataDir), []));
