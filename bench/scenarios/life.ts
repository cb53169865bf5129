/** Rounds of whole lives: submit over HTTP, push to the stub parser, its callback, Success. */
import type { Contestant, Ids } from '../contestants/contestant.ts';
import type { Sizes } from '../sizes.ts';
import type { Costs, World } from '../world/world.ts';
import { type Line, line } from './scenario.ts';

export type LifeLoad = {
  tasks: number;
  connections: number;
  /** Tasks a submit request. */
  batch?: number;
};
export type LifeRound = {
  contestant: string;
  tasks: number;
  elapsedMs: number;
  tasksPerS: number;
  mostOutstanding: number;
  costs: Costs;
};

/** From the first submit until the last submit and the last callback were answered. */
export async function runLife(world: World, contestant: Contestant, load: LifeLoad): Promise<LifeRound> {
  const ids: Ids = world.newIds(load.tasks);
  const { value, costs } = await world.measure(contestant, async () => {
    await world.expect({ count: load.tasks });
    const [submitted, parsed] = await Promise.all([
      world.submit({
        urls: contestant.urls,
        ...ids,
        connections: load.connections,
        ...(load.batch ? { batch: load.batch } : {}),
      }),
      world.finish(),
    ]);
    return { submitted, parsed };
  });
  const { submitted, parsed } = value;
  if (submitted.accepted !== load.tasks || parsed.applied !== load.tasks)
    throw new Error(`${contestant.name}: ${submitted.accepted} accepted, ${parsed.applied} applied of ${load.tasks}`);
  await contestant.verify(ids);
  const elapsedMs = Math.max(submitted.endedAt, parsed.endedAt) - submitted.startedAt;
  return {
    contestant: contestant.name,
    tasks: load.tasks,
    elapsedMs,
    tasksPerS: (load.tasks / elapsedMs) * 1000,
    mostOutstanding: parsed.mostOutstanding,
    costs,
  };
}

/** Runs rounds until compilers, caches and pools are warm, one at least. Resolves with the tasks that it took. */
export async function warmUp(
  { warmUpTasks, warmUpMs }: Pick<Sizes, 'warmUpTasks' | 'warmUpMs'>,
  run: (tasks: number) => Promise<unknown>,
): Promise<number> {
  const startedAt = performance.now();
  let tasks = 0;
  do {
    await run(warmUpTasks);
    tasks += warmUpTasks;
  } while (performance.now() - startedAt < warmUpMs);
  return tasks;
}

/** CPU of everything but the load, microseconds. */
export const allCpuUs = (costs: Costs): number => (costs.postgresCpuS + costs.serviceCpuS + costs.redisCpuS) * 1e6;

const COSTS: [measure: string, unit: string, read: (costs: Costs) => number][] = [
  ['WAL', 'bytes/task', (costs) => costs.walBytes],
  ['PostgreSQL CPU', 'us/task', (costs) => costs.postgresCpuS * 1e6],
  ['service CPU', 'us/task', (costs) => costs.serviceCpuS * 1e6],
  ['Redis CPU', 'us/task', (costs) => costs.redisCpuS * 1e6],
  ['all CPU', 'us/task', allCpuUs],
  ['load CPU', 'us/task', (costs) => costs.loadCpuS * 1e6],
];

/** What a task of these rounds cost, whoever paid. */
export const costLines = (contestant: string, rounds: readonly LifeRound[]): Line[] =>
  COSTS.map(([measure, unit, read]) =>
    line(
      contestant,
      measure,
      unit,
      rounds.map((round) => read(round.costs) / round.tasks),
    ),
  );
