/**
 * `npm run bench -- --long-transaction 10`: S2 at saturation while one REPEATABLE READ transaction is held open, in turn
 * with a service of its own that nothing disturbs. No row version of the first can be removed, so all that was claimed
 * and settled since stays in tables and indexes: what is looked at is whether claims have to walk over it.
 */
import type { Limiter, Options } from './arguments.ts';
import { startDocsched } from './contestants/docsched.ts';
import { writeParts } from './report/documents.ts';
import { describeMachine } from './report/run.ts';
import { summarise } from './report/stats.ts';
import { shown } from './report/table.ts';
import { runLife, warmUp } from './scenarios/life.ts';
import { holdSnapshot } from './scenarios/pinned.ts';
import { FULL } from './sizes.ts';
import type { Database } from './world/postgres.ts';
import { startWorld } from './world/world.ts';

/** About ten seconds a round. */
const TASKS = 40_000;
const NAMES = ['undisturbed', 'held'] as const;
type Name = (typeof NAMES)[number];
type Round = { minute: number; tasksPerS: number; claimUs: number; deadRows: number };

export async function longTransaction(
  minutes: number,
  { limiter, record }: Pick<Options, 'limiter' | 'record'>,
  say: (text: string) => void,
): Promise<number> {
  const world = await startWorld({ preload: 'pg_stat_statements' });
  const services = new Map<Name, Awaited<ReturnType<typeof startDocsched>>>();
  let holder: Awaited<ReturnType<typeof holdSnapshot>> | undefined;
  try {
    for (const name of NAMES) {
      const service = await startDocsched(world, { parserUrl: world.parserUrl, name: `docsched_${name}`, limiter });
      await service.database.query('CREATE EXTENSION pg_stat_statements');
      services.set(name, service);
    }
    const load = { connections: FULL.connections };
    for (const service of services.values()) await warmUp(FULL, (tasks) => runLife(world, service, { ...load, tasks }));
    holder = await holdSnapshot(services.get('held')!.database.url);
    const startedAt = performance.now();
    const elapsed = () => (performance.now() - startedAt) / 60_000;
    const rounds: Record<Name, Round[]> = { undisturbed: [], held: [] };
    while (elapsed() < minutes)
      for (const [name, service] of services) {
        const minute = elapsed();
        const before = await claims(service.database);
        const { tasksPerS } = await runLife(world, service, { ...load, tasks: TASKS });
        const after = await claims(service.database);
        const claimUs = ((after.ms - before.ms) * 1000) / (after.tasks - before.tasks);
        const { deadRows } = await tableStats(service.database);
        rounds[name].push({ minute, tasksPerS, claimUs, deadRows });
        say(`${name} ${Math.round(tasksPerS)}/s, claim ${Math.round(claimUs)} us a task, ${deadRows} dead rows`);
      }
    const { vacuums } = await tableStats(services.get('held')!.database);
    const report = describe(limiter, rounds, elapsed(), vacuums);
    console.log(`\n${report}\n`);
    if (record) writeParts('reliability.md', { [`long transaction ${limiter}`]: report });
    return 0;
  } finally {
    await holder?.end();
    for (const service of services.values()) {
      await service.stop();
      await service.remove();
    }
    await world.stop();
  }
}

/** Time that PostgreSQL spent in claims so far, and the tasks that they returned. */
async function claims(database: Database): Promise<{ ms: number; tasks: number }> {
  const [row] = await database.query<{ ms: number; tasks: string }>(
    `SELECT sum(total_exec_time + total_plan_time) AS ms, sum(rows) AS tasks FROM pg_stat_statements s
     JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
     WHERE query LIKE '%docsched_claim(%'`,
  );
  if (!row?.tasks) throw new Error('no claim was counted');
  return { ms: row.ms, tasks: Number(row.tasks) };
}

async function tableStats(database: Database): Promise<{ deadRows: number; vacuums: number }> {
  const [row] = await database.query<{ dead: string; vacuums: string }>(
    'SELECT sum(n_dead_tup) AS dead, sum(autovacuum_count) AS vacuums FROM pg_stat_user_tables',
  );
  return { deadRows: Number(row!.dead), vacuums: Number(row!.vacuums) };
}

function describe(limiter: Limiter, rounds: Record<Name, Round[]>, minutes: number, vacuums: number): string {
  const median = (name: Name, read: (round: Round) => number, part: (round: Round) => boolean = () => true) =>
    summarise(rounds[name].filter(part).map(read)).median;
  const rate = (round: Round) => round.tasksPerS;
  const { cpu, cores, memoryGb } = describeMachine();
  const rows = Array.from({ length: Math.ceil(minutes / 2) }, (_, i) => {
    const within = ({ minute }: Round) => minute >= i * 2 && minute < (i + 1) * 2;
    if (NAMES.some((name) => !rounds[name].some(within))) return null;
    const cells = [
      `${i * 2} to ${(i + 1) * 2}`,
      ...NAMES.map((name) => shown(median(name, rate, within))),
      ...NAMES.map((name) => `${shown(median(name, ({ claimUs }) => claimUs, within))} us`),
      shown(Math.max(...rounds.held.filter(within).map(({ deadRows }) => deadRows))),
    ];
    return `| ${cells.join(' | ')} |`;
  }).filter((row) => row !== null);
  const [tasks, ratio] = [rounds.held.length * TASKS, median('held', rate) / median('undisturbed', rate)];
  return [
    `${new Date().toISOString().slice(0, 10)}, limiter in ${limiter === 'redis' ? 'Redis' : 'PostgreSQL'}, ` +
      `${cores} cores (${cpu}), ${memoryGb} GB: the transaction was open for ${minutes.toFixed(1)} minutes, in which ` +
      `${shown(tasks)} tasks of its service lived their lives and autovacuum ran ${vacuums} times. ` +
      `Throughput ${ratio.toFixed(2)} of undisturbed (medians of ${rounds.held.length} rounds in turn).`,
    '',
    '| minutes | undisturbed, tasks/s | held, tasks/s | claim of a task, undisturbed | held | dead rows (n_dead_tup) |',
    '|---|---|---|---|---|---|',
    ...rows,
  ].join('\n');
}
