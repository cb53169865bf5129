/** Programs that tests run against: found on this machine, or installed from Debian when the tests run there as root. */
import { spawnSync } from 'node:child_process';
import { accessSync, constants, existsSync, rmSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';

export type Program = {
  /** Any of these will do. */
  names: string[];
  debianPackage: string;
  /** How people install it elsewhere, in one line. */
  hint: string;
};

function onPath(names: string[]): string | undefined {
  const places = `${process.env.PATH ?? ''}${delimiter}/usr/sbin${delimiter}/usr/local/bin`.split(delimiter);
  return names
    .flatMap((name) => places.map((place) => join(place, name)))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false;
      }
    });
}

/** Path of the program. Throws one line that says how to install it. */
export function findProgram({ names, debianPackage, hint }: Program): string {
  const found = onPath(names);
  if (found) return found;
  if (process.getuid?.() === 0 && existsSync('/usr/bin/apt-get')) installOnDebian(debianPackage, hint);
  const installed = onPath(names);
  if (!installed) throw new Error(hint);
  return installed;
}

/** policy-rc.d is Debian's own way to install a package without its system service being started. */
function installOnDebian(debianPackage: string, hint: string): void {
  const policy = '/usr/sbin/policy-rc.d';
  const hadPolicy = existsSync(policy);
  if (!hadPolicy) writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755 });
  try {
    for (const args of [['update'], ['install', '--yes', '--no-install-recommends', debianPackage]]) {
      const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
      const done = spawnSync('apt-get', ['-qq', ...args], { env, stdio: ['ignore', 'ignore', 'inherit'] });
      if (done.status !== 0) throw new Error(`${hint} (apt-get ${args[0]} failed)`);
    }
  } finally {
    if (!hadPolicy) rmSync(policy);
  }
}
