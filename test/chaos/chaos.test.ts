/** A minute of chaos: everything of `npm run chaos`, with the exit code as the verdict. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { endWithThisProcess } from '../support/process.ts';

const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url));

async function run(...args: string[]): Promise<{ code: number; output: string }> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  endWithThisProcess(child);
  const [output, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  return { code, output: output + errors };
}

/** The run did not do enough to judge by: luck, or a slow machine. */
const TOO_LITTLE = ['too few faults', 'did too little'];

/** The rules that were broken, as listed below the table of a run. */
function brokenIn(output: string): string[] {
  const [, list = ''] = output.split(/^promises broken .*$/m);
  return [...list.matchAll(/^ {2}(\S.*): \d+$/gm)].map(([, rule]) => rule!);
}

test('a minute in which every kind of fault strikes breaks no promise', async (t) => {
  const minute = () => run('--minutes', '1', '--seed', String(Date.now() % 1_000_000));
  let { code, output } = await minute();
  t.diagnostic(output);
  const broken = brokenIn(output);
  if (code === 1 && broken.length > 0 && broken.every((rule) => TOO_LITTLE.includes(rule))) {
    ({ code, output } = await minute());
    t.diagnostic(output);
  }
  assert.equal(code, 0, output);
});

test('whoever asks how is told, and so is who asks wrongly', async () => {
  const help = await run('--help');
  assert.equal(help.code, 0);
  assert.match(help.output, /--limiter L +redis \(default\) or postgres/);
  const wrong = await run('--limiter', 'paper');
  assert.equal(wrong.code, 78);
  assert.match(wrong.output, /^--limiter: expected redis or postgres, got 'paper'/);
});
