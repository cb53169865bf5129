/**
 * The embedded PostgreSQL is stopped by the service, unless that was killed: then it would live on in a directory that is
 * about to be removed.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const LIMIT_MS = 5_000;

/** Stops the server under `dataDir`, if there is one. A killed service may have left a copy of its binaries behind. */
export async function stopPostgresOf(dataDir: string): Promise<void> {
  const until = performance.now() + LIMIT_MS;
  for (let pid = postmasterOf(dataDir); pid > 0; pid = postmasterOf(dataDir)) {
    if (!kill(pid, performance.now() < until ? 'SIGINT' : 'SIGQUIT')) return;
    await sleep(50);
  }
}

/** 0: none. PostgreSQL removes the file when it has stopped. */
function postmasterOf(dataDir: string): number {
  try {
    return Number(readFileSync(join(dataDir, 'postgres', 'postmaster.pid'), 'utf8').split('\n')[0]);
  } catch {
    return 0;
  }
}

function kill(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}
