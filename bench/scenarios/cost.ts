/** S8: what a task costs (from the rounds of S2), and the service's memory with a million tasks waiting. */
import { startDocsched } from '../contestants/docsched.ts';
import { residentBytes } from '../world/cpu.ts';
import { createFilledDatabase } from '../world/fill.ts';
import type { Costs } from '../world/world.ts';
import { allCpuUs, costLines } from './life.ts';
import {
  best,
  type Context,
  interleave,
  type LifeName,
  type Line,
  line,
  type Outcome,
  POSTGRES_PEERS,
  type Scenario,
  target,
} from './scenario.ts';

const NAMES: readonly LifeName[] = ['docsched', ...POSTGRES_PEERS];

export const cost: Scenario = {
  ids: ['S8'],
  needs: () => POSTGRES_PEERS,
  run: async (context) => {
    const { rounds, commitsATask } = await context.lives();
    const each = (name: LifeName, read: (costs: Costs) => number) =>
      rounds.get(name)!.map((round) => read(round.costs) / round.tasks);
    const lines: Line[] = NAMES.flatMap((name) => [
      ...costLines(name, rounds.get(name)!),
      line(name, 'transactions', '1/task', [commitsATask.get(name)!]),
    ]);
    const againstBest = (of: string, read: (costs: Costs) => number) => {
      const values = new Map(NAMES.map((name) => [name, each(name, read)]));
      const peer = best(values, POSTGRES_PEERS, true);
      return target('S8', `docsched / ${peer}, ${of}`, values.get('docsched')!, values.get(peer)!, {
        at: 'most',
        value: 0.7,
      });
    };
    const memory = await measureMemory(context);
    return [
      {
        id: 'S8',
        title: 'Cost of a task in S2, and memory',
        lines: [...lines, ...memory.lines],
        targets: [
          againstBest('WAL', (costs) => costs.walBytes),
          againstBest('PostgreSQL CPU', (costs) => costs.postgresCpuS),
          againstBest('all CPU', allCpuUs),
          ...memory.targets,
        ],
        notes: [],
      },
    ];
  },
};

/** Resident memory after the same submits, with nothing waiting before and with many. No parser: nothing is taken out. */
async function measureMemory({ world, sizes, say }: Context): Promise<Pick<Outcome, 'lines' | 'targets'>> {
  const { database, remove } = await createFilledDatabase(
    world,
    { finished: 0, delayed: 0, pending: sizes.pending },
    say,
  );
  const keys = ['empty', 'waiting'] as const;
  try {
    const bytes = await interleave(Math.min(3, sizes.rounds), keys, async (key, round) => {
      const service = await startDocsched(world, key === 'waiting' ? { database } : { name: 'docsched-memory' });
      await world.submit({ urls: service.urls, ...world.newIds(sizes.lifeTasks), connections: sizes.connections });
      const resident = residentBytes(service.pids[0]!);
      await service.stop();
      await service.remove();
      say(`S8 memory ${round + 1} ${key} ${Math.round(resident / 1e6)} MB`);
      return resident / 1e6;
    });
    return {
      lines: [
        line('docsched, nothing waiting', 'resident memory', 'MB', bytes.get('empty')!),
        line(`docsched, ${sizes.pending / 1e6}M pending`, 'resident memory', 'MB', bytes.get('waiting')!),
      ],
      targets: [
        target('S8', 'memory with tasks waiting / without', bytes.get('waiting')!, bytes.get('empty')!, {
          at: 'most',
          value: 1.1,
        }),
      ],
    };
  } finally {
    await remove();
  }
}
