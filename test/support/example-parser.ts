/** The example parser as a process of its own, on a free port. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { endWithThisProcess } from './process.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

export async function startExampleParser(
  env: Record<string, string> = {},
): Promise<{ url: string; stop(): Promise<void> }> {
  const child = spawn(process.execPath, ['examples/parser/main.ts'], {
    cwd: ROOT,
    env: { PATH: process.env.PATH, PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  endWithThisProcess(child);
  const url = await new Promise<string>((resolve, reject) => {
    child.once('exit', (code) => reject(new Error(`the example parser ended with ${code}`)));
    createInterface({ input: child.stdout }).on('line', (line) => {
      const event = JSON.parse(line) as { event: string; url: string };
      if (event.event === 'parser_listening') resolve(event.url);
    });
  });
  return {
    url,
    async stop() {
      if (child.exitCode !== null) return;
      // Twice: at once, without waiting for runs whose service may be gone.
      child.kill('SIGTERM');
      child.kill('SIGTERM');
      await once(child, 'exit');
    },
  };
}
