/**
 * The examples of the README and of docs are run: each `sh` block against a service and the example parser started as the
 * README says, and what it prints must contain what the `json` block after it shows.
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
/** document -> how many examples it has at least. */
const DOCUMENTS = { 'README.md': 7, 'docs/callbacks.md': 4, 'docs/queues.md': 8, 'docs/events.md': 2 };
const EXAMPLE = /```sh\n([^`]*)```(?:\n```json\n([^`]*)```)?/g;

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

for (const [document, least] of Object.entries(DOCUMENTS))
  for (const limiter of ['redis', 'postgres'] as const)
    test(`the examples of ${document} give what it says, with the limiter in ${limiter}`, async (t) => {
      const text = readFileSync(new URL(`../../${document}`, import.meta.url), 'utf8');
      const examples = [...text.matchAll(EXAMPLE)].map(([, command = '', shown]) => ({ command, shown }));
      assert.ok(examples.length >= least);
      const { url } = await freshDatabase('readme');
      const env = { DATABASE_URL: url, PARSER_URL: `${parser.url}/parse` };
      const service = await startService({ env: limiter === 'redis' ? { ...env, REDIS_URL: redis.url } : env });
      t.after(service.stop);
      for (const example of examples) await runExample(example, service);
    });

async function runExample({ command, shown }: { command: string; shown: string | undefined }, service: RunningService) {
  const { stdout } = await run('bash', [
    '-euo',
    'pipefail',
    '-c',
    command
      .replaceAll('localhost:8080', new URL(service.url).host)
      .replaceAll('127.0.0.1:9090', new URL(parser.url).host),
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
