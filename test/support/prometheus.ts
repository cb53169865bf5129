/** Prometheus and Alertmanager as child processes of a test, each with a directory and a port of its own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { eventually } from './eventually.ts';
import { freePort } from './ports.ts';
import { endWithThisProcess } from './process.ts';
import { findProgram, type Program } from './program.ts';

const program = (name: string, ...packages: [debian: string, names: string[]]): Program => ({
  names: packages[1],
  debianPackage: packages[0],
  hint: `this test needs ${name}: install it (Debian: apt-get install ${packages[0]}; macOS: brew install prometheus)`,
});
export const PROMTOOL = program('promtool', 'prometheus', ['promtool']);
export const AMTOOL = program('amtool', 'prometheus-alertmanager', ['amtool']);
const PROMETHEUS = program('Prometheus', 'prometheus', ['prometheus']);
const ALERTMANAGER = program('Alertmanager', 'prometheus-alertmanager', ['alertmanager', 'prometheus-alertmanager']);

/** One series of an answer: its labels, and its values by time. */
export type Series = { metric: Record<string, string>; values: [atS: number, value: string][] };
export type Alert = { labels: Record<string, string>; state: string };

export type TestPrometheus = {
  url: string;
  /** The `seconds` up to `endS` (now), a value a second. Throws when Prometheus does not accept the expression. */
  queryRange(expression: string, seconds: number, endS?: number): Promise<Series[]>;
  /** Names of all metrics it has seen. */
  names(): Promise<Set<string>>;
  alerts(): Promise<Alert[]>;
  stop(): Promise<void>;
};

type Started = { url: string; stop(): Promise<void> };

async function start(
  what: Program,
  files: Record<string, string>,
  args: (directory: string, listen: string) => string[],
) {
  const path = findProgram(what);
  const directory = mkdtempSync(join(tmpdir(), 'docsched-observe-'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(directory, name), text);
  const listen = `127.0.0.1:${await freePort()}`;
  const child = spawn(path, args(directory, listen), { cwd: directory, stdio: ['ignore', 'ignore', 'pipe'] });
  endWithThisProcess(child);
  let said = '';
  child.stderr.on('data', (text) => {
    said = (said + text).slice(-4_000);
  });
  const url = `http://${listen}`;
  await eventually(
    async () => {
      if (child.exitCode !== null) throw new Error(said);
      return (await fetch(`${url}/-/ready`)).ok;
    },
    { timeoutMs: 30_000 },
  );
  const stop = async () => {
    if (child.exitCode === null) {
      const exited = once(child, 'exit');
      child.kill('SIGTERM');
      await exited;
    }
    rmSync(directory, { recursive: true, force: true });
  };
  return { url, stop } satisfies Started;
}

/** `config`: prometheus.yml, as JSON, which is YAML too. */
export async function startPrometheus(config: unknown): Promise<TestPrometheus> {
  const { url, stop } = await start(PROMETHEUS, { 'prometheus.json': JSON.stringify(config) }, (directory, listen) => [
    `--config.file=${join(directory, 'prometheus.json')}`,
    `--storage.tsdb.path=${join(directory, 'data')}`,
    `--web.listen-address=${listen}`,
    '--enable-feature=exemplar-storage',
  ]);
  const get = async <T>(path: string): Promise<T> => {
    const answer = await fetch(`${url}/api/v1/${path}`);
    const body = (await answer.json()) as { status: string; error?: string; data: T };
    if (body.status !== 'success') throw new Error(`${decodeURIComponent(path)}: ${body.error}`);
    return body.data;
  };
  return {
    url,
    stop,
    async queryRange(expression, seconds, end = Date.now() / 1000) {
      const query = new URLSearchParams({ query: expression, start: `${end - seconds}`, end: `${end}`, step: '1' });
      return (await get<{ result: Series[] }>(`query_range?${query}`)).result;
    },
    names: async () => new Set(await get<string[]>('label/__name__/values')),
    alerts: async () => (await get<{ alerts: Alert[] }>('alerts')).alerts,
  };
}

/** Resolves with its URL; alerts go nowhere from it. */
export function startAlertmanager(config: unknown): Promise<Started> {
  return start(ALERTMANAGER, { 'alertmanager.json': JSON.stringify(config) }, (directory, listen) => [
    `--config.file=${join(directory, 'alertmanager.json')}`,
    `--storage.path=${join(directory, 'data')}`,
    `--web.listen-address=${listen}`,
    '--cluster.listen-address=',
  ]);
}
