/**
 * `npm run bench -- --profile`: where docsched's time goes in S2. The service runs under node's CPU profiler, PostgreSQL
 * counts its statements; both cost a little, so the rate is lower than in a comparison.
 */
import { mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startDocsched } from './contestants/docsched.ts';
import { runLife, warmUp } from './scenarios/life.ts';
import { FULL } from './sizes.ts';
import type { Database } from './world/postgres.ts';
import { startWorld } from './world/world.ts';

const TOP = 40;
const ROUNDS = 3;

export async function profile(say: (text: string) => void): Promise<number> {
  const world = await startWorld({ preload: 'pg_stat_statements' });
  const dir = mkdtempSync(join(tmpdir(), 'docsched-profile-'));
  try {
    const nodeArgs = ['--cpu-prof', `--cpu-prof-dir=${dir}`];
    const service = await startDocsched(world, { parserUrl: world.parserUrl, nodeArgs });
    await service.database.query('CREATE EXTENSION pg_stat_statements');
    const load = { tasks: FULL.lifeTasks, connections: FULL.connections };
    await warmUp(FULL, (tasks) => runLife(world, service, { ...load, tasks }));
    await service.database.query('SELECT pg_stat_statements_reset()');
    for (let round = 0; round < ROUNDS; round++) {
      const { tasksPerS, costs, tasks } = await runLife(world, service, load);
      const us = (seconds: number) => `${Math.round((seconds * 1e6) / tasks)} us`;
      say(
        `${Math.round(tasksPerS)}/s; a task: service ${us(costs.serviceCpuS)}, PostgreSQL ${us(costs.postgresCpuS)}, ` +
          `Redis ${us(costs.redisCpuS)}, load ${us(costs.loadCpuS)}, WAL ${Math.round(costs.walBytes / tasks)} bytes`,
      );
    }
    console.log(`\nStatements of PostgreSQL, of ${ROUNDS * load.tasks} tasks:\n${await statements(service.database)}`);
    await service.stop();
    await service.remove();
    const file = join(dir, readdirSync(dir)[0]!);
    console.log(`\nThe service, self time (open ${file} in the browser's developer tools):\n${hotspots(file)}`);
    return 0;
  } finally {
    await world.stop();
  }
}

async function statements(database: Database): Promise<string> {
  const rows = await database.query<Record<string, string>>(
    `SELECT round(total_exec_time::numeric) AS exec_ms, round(total_plan_time::numeric) AS plan_ms, calls,
            round((total_exec_time / calls)::numeric, 2) AS ms_a_call, rows, wal_bytes,
            left(regexp_replace(query, '\\s+', ' ', 'g'), 100) AS query
     FROM pg_stat_statements WHERE calls > 0 ORDER BY total_exec_time + total_plan_time DESC LIMIT 12`,
  );
  return rows
    .map((row) =>
      Object.entries(row)
        .map(([name, value]) => `${name} ${value}`)
        .join('  '),
    )
    .join('\n');
}

type Profile = {
  nodes: { id: number; callFrame: { functionName: string; url: string; lineNumber: number } }[];
  samples: number[];
  timeDeltas: number[];
};

function hotspots(file: string): string {
  const { nodes, samples, timeDeltas } = JSON.parse(readFileSync(file, 'utf8')) as Profile;
  const frames = new Map(nodes.map(({ id, callFrame }) => [id, callFrame]));
  const byFunction = new Map<string, number>();
  const byFile = new Map<string, number>();
  let busyUs = 0;
  for (const [i, id] of samples.entries()) {
    const { functionName, url, lineNumber } = frames.get(id)!;
    if (functionName === '(idle)' || functionName === '(program)') continue;
    const us = timeDeltas[i]!;
    busyUs += us;
    const place = shortPlace(url);
    add(byFunction, `${functionName || '(anonymous)'} ${place}:${lineNumber + 1}`, us);
    add(byFile, groupOf(place), us);
  }
  const list = (times: Map<string, number>, count: number) =>
    [...times]
      .toSorted((a, b) => b[1] - a[1])
      .slice(0, count)
      .map(([name, us]) => `  ${((us / busyUs) * 100).toFixed(1).padStart(5)}%  ${name}`)
      .join('\n');
  return `by place\n${list(byFile, TOP / 2)}\n\nby function\n${list(byFunction, TOP)}`;
}

const add = (times: Map<string, number>, name: string, us: number) => times.set(name, (times.get(name) ?? 0) + us);

const shortPlace = (url: string): string => url.replace(/^file:\/\//, '').replace(/^.*\/(node_modules|src)\//, '$1/');

/** A package as a whole, our own code by file, node by its module's first name. */
const groupOf = (place: string): string =>
  place.startsWith('node_modules/')
    ? place
        .split('/')
        .slice(0, place.startsWith('node_modules/@') ? 3 : 2)
        .join('/')
    : place || '(native)';
