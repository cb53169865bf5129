/** The examples of docs/pushes.md are run, against the parser that it shows. */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { eventually } from '../support/eventually.ts';
import { install } from '../support/installation.ts';
import { freePort } from '../support/ports.ts';
import { endWithThisProcess } from '../support/process.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const TEXT = readFileSync(`${ROOT}/docs/pushes.md`, 'utf8');
const PARSER = /```js\n([^`]*)```/.exec(TEXT)![1]!;
const EXAMPLES = [...TEXT.matchAll(/```sh\n([^`]*)```\n```json\n([^`]*)```/g)];
const SECRET = `whsec_${Buffer.from('a secret of at least 24 bytes').toString('base64')}`;

test('the examples of docs/pushes.md give what it says', async (t) => {
  const service = await (await install(t, { limiter: 'postgres' })).start();
  const port = await freePort();
  const parser = spawn(process.execPath, ['--input-type=module', '--eval', PARSER], {
    cwd: ROOT,
    env: { PORT: String(port), SECRET },
    stdio: 'inherit',
  });
  endWithThisProcess(parser);
  t.after(() => void parser.kill());
  const unsigned = await eventually(() => fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body: '{"tasks":[]}' }));
  assert.equal(unsigned.status, 401);

  assert.ok(EXAMPLES.length >= 5);
  for (const [, command = '', shown = ''] of EXAMPLES) {
    const own = command
      .replaceAll('localhost:8080', new URL(service.url).host)
      .replaceAll('127.0.0.1:9191', `127.0.0.1:${port}`);
    const { stdout } = await promisify(execFile)('bash', ['-euo', 'pipefail', '-c', own]);
    assert.partialDeepStrictEqual(JSON.parse(stdout.replaceAll(String(port), '9191')), JSON.parse(shown), command);
  }
});
