/** A run as it is kept: where, with what, and all that was measured. */
import { readFileSync } from 'node:fs';
import { arch, cpus, platform, release, totalmem } from 'node:os';
import type { Outcome } from '../scenarios/scenario.ts';
import type { Sizes } from '../sizes.ts';
import type { World } from '../world/world.ts';

export type Run = {
  startedAt: string;
  durationS: number;
  quick: boolean;
  machine: { cpu: string; cores: number; memoryGb: number; system: string };
  versions: Record<string, string>;
  /** PostgreSQL's. */
  settings: Record<string, string>;
  sizes: Sizes;
  outcomes: Outcome[];
  /** Scenarios that did not run to their end, and why. */
  failures: { ids: string[]; error: string }[];
};

export const describeMachine = (): Run['machine'] => ({
  cpu: cpus()[0]?.model ?? 'unknown',
  cores: cpus().length,
  memoryGb: Math.round(totalmem() / 2 ** 30),
  system: `${platform()} ${release().replace(/[^0-9.].*/, '')} ${arch()}`,
});

const PEERS = ['pg-boss', 'graphile-worker', 'bullmq'];
const OWN = ['express', 'pg', 'undici'];

export const describeVersions = (world: Pick<World, 'postgres' | 'redisVersion'>): Run['versions'] => ({
  docsched: versionIn('../../package.json'),
  node: process.versions.node,
  postgresql: world.postgres.version,
  redis: world.redisVersion,
  ...Object.fromEntries(PEERS.map((name) => [name, versionIn(`../node_modules/${name}/package.json`)])),
  ...Object.fromEntries(OWN.map((name) => [name, versionIn(`../../node_modules/${name}/package.json`)])),
});

const versionIn = (path: string): string => JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8')).version;
