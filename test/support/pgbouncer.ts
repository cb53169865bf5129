/** PgBouncer in transaction mode in front of a test database, with Debian's settings but for the pool. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { eventually } from './eventually.ts';
import { freePort } from './ports.ts';
import { endWithThisProcess } from './process.ts';
import { findProgram } from './program.ts';

export type TestPgBouncer = { url: string; stop(): Promise<void> };

const PGBOUNCER = {
  names: ['pgbouncer'],
  debianPackage: 'pgbouncer',
  hint: 'this test needs PgBouncer: install pgbouncer (Debian: apt-get install pgbouncer; macOS: brew install pgbouncer)',
};

/** `poolSize`: server connections that all clients share. */
export async function startPgBouncer(databaseUrl: string, { poolSize }: { poolSize: number }): Promise<TestPgBouncer> {
  const program = findProgram(PGBOUNCER);
  const { hostname, port: serverPort, pathname, username, password } = new URL(databaseUrl);
  const name = pathname.slice(1);
  const port = await freePort();
  const directory = mkdtempSync(join(tmpdir(), 'docsched-pgbouncer-'));
  // Read by another user: it refuses to run as root.
  chmodSync(directory, 0o755);
  const settings = join(directory, 'pgbouncer.ini');
  writeFileSync(
    settings,
    `[databases]
${name} = host=${hostname} port=${serverPort} dbname=${name} user=${username} password=${decodeURIComponent(password)}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${poolSize}
max_client_conn = 500
`,
  );
  const user = process.getuid?.() === 0 ? ['-u', 'nobody'] : [];
  const child = spawn(program, [...user, '-q', settings], { stdio: 'ignore' });
  endWithThisProcess(child);
  const url = `postgres://${username}@127.0.0.1:${port}/${name}`;
  await eventually(async () => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await client.end();
    return true;
  });
  return {
    url,
    stop: async () => {
      const exited = once(child, 'exit');
      child.kill('SIGINT');
      child.kill('SIGTERM');
      await exited;
      rmSync(directory, { recursive: true });
    },
  };
}
