/** `npm run chaos`: see arguments.ts for what it does. */
import { chmodSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { exitOnSignals } from '../support/process.ts';
import { findRedis } from '../support/redis.ts';
import { readArguments, USAGE } from './arguments.ts';
import { record } from './record.ts';
import { tableOf } from './report.ts';
import { runChaos } from './run.ts';

const REMOVE_TRIES = 50;
const REMOVE_AGAIN_MS = 100;

async function main(given: string[]): Promise<number> {
  const read = understood(given);
  if (typeof read === 'string') {
    (read === USAGE ? console.log : console.error)(read);
    return read === USAGE ? 0 : 78;
  }
  findRedis();
  // Passable by every user: PostgreSQL, started by root, runs as another one.
  const directory = mkdtempSync(join(tmpdir(), 'docsched-chaos-'));
  chmodSync(directory, 0o755);
  // Whatever the programs of the run keep elsewhere is kept, and removed, with the rest.
  process.env.TMPDIR = directory;
  let keep = false;
  exitOnSignals();
  process.once('exit', () => {
    if (!keep) remove(directory);
  });
  const { minutes, seed, limiter } = read;
  const command = `npm run chaos -- --minutes ${minutes} --seed ${seed} --limiter ${limiter}`;
  console.log(command);
  const startedAt = new Date();
  const { verdict, stores } = await runChaos({ ...read, directory, say: (line) => console.log(line) }).catch(
    (error) => {
      keep = true;
      console.error(`the run itself failed; its logs are kept in ${directory}`);
      throw error;
    },
  );
  console.log(`\n${tableOf(verdict)}`);
  if (read.record) record({ ...read, startedAt, verdict, stores, command });
  if (verdict.breaches.length === 0) return 0;
  keep = true;
  console.error(`\nkept for inspection: ${directory}\nagain with: ${command}`);
  return 1;
}

/** What was told to end a moment ago may still write; then rmSync leaves some of it, with or without a word. */
function remove(directory: string): void {
  for (let tries = 1; tries <= REMOVE_TRIES; tries++) {
    try {
      rmSync(directory, { recursive: true, force: true });
    } catch {}
    if (!existsSync(directory)) return;
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, REMOVE_AGAIN_MS);
  }
  console.error(`could not be removed: ${directory}`);
}

function understood(given: string[]): ReturnType<typeof readArguments> | string {
  try {
    const read = readArguments(given);
    return read === 'help' ? USAGE : read;
  } catch (error) {
    return `${(error as Error).message}\n\n${USAGE}`;
  }
}

process.exitCode = await main(process.argv.slice(2)).catch((error: Error) => {
  console.error(error.stack);
  return 1;
});
process.exit();
