/**
 * The README's examples are run: each `sh` block against a service and the example parser started as the README says,
 * and what it prints must contain what the `json` block after it shows.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { startExampleParser } from '../support/example-parser.ts';
import { freshDatabase } from '../support/postgres.ts';
import { type RunningService, startService } from '../support/process.ts';
import { startRedis, type TestRedis } from '../support/redis.ts';

const run = promisify(execFile);
const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8');
const EXAMPLE = /```sh\n([^`]*)```(?:\n```json\n([^`]*)```)?/g;
const examples = [...readme.matchAll(EXAMPLE)].map(([, command = '', shown]) => ({ command, shown }));

let redis: TestRedis;
let parser: Awaited<ReturnType<typeof startExampleParser>>;

before(async () => {
  redis = await startRedis();
  parser = await startExampleParser();
});
after(async () => {
  await parser.stop();
  await redis.stop();
});

for (const limiter of ['redis', 'postgres'] as const)
  test(`the README's examples give what it says, with the limiter in ${limiter}`, async () => {
    const { url } = await freshDatabase('readme');
    const env = { DATABASE_URL: url, PARSER_URL: `${parser.url}/parse` };
    const service = await startService({ env: limiter === 'redis' ? { ...env, REDIS_URL: redis.url } : env });
    assert.ok(examples.length >= 7);
    for (const example of examples) await runExample(example, service);
    await service.stop();
  });

async function runExample({ command, shown }: { command: string; shown: string | undefined }, service: RunningService) {
  const { stdout } = await run('bash', [
    '-euo',
    'pipefail',
    '-c',
    command.replaceAll('localhost:8080', new URL(service.url).host),
  ]);
  if (shown !== undefined) assertContains(JSON.parse(stdout), JSON.parse(shown), command);
}

/** Every member that `part` shows is in `whole` with the same value. */
function assertContains(whole: unknown, part: unknown, where: string): void {
  if (typeof part !== 'object' || part === null) assert.deepEqual(whole, part, where);
  else
    for (const [key, value] of Object.entries(part))
      assertContains((whole as Record<string, unknown> | undefined)?.[key], value, `${where} ${key}`);
}
