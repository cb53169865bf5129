/** S9: one, two and four instances on one store. Two cores cannot go faster with more; what counts is CPU a task. */
import { startDocsched } from '../contestants/docsched.ts';
import { runLife, warmUp } from './life.ts';
import { interleave, line, mapValues, type Scenario, target } from './scenario.ts';

const COUNTS = ['1', '2', '4'] as const;

export const instances: Scenario = {
  ids: ['S9'],
  run: async ({ world, sizes, say }) => {
    const { parserUrl } = world;
    const load = { tasks: sizes.lifeTasks, connections: sizes.connections };
    // Started for each round: idle instances would cost the others.
    const rounds = await interleave(sizes.rounds, COUNTS, async (count, round) => {
      const contestant = await startDocsched(world, { parserUrl, instances: Number(count), name: `docsched-${count}` });
      try {
        await warmUp(sizes, (tasks) => runLife(world, contestant, { ...load, tasks }));
        const { costs, tasks, tasksPerS } = await runLife(world, contestant, load);
        const cpuUs = ((costs.serviceCpuS + costs.postgresCpuS + costs.redisCpuS) * 1e6) / tasks;
        say(
          `S9 ${round + 1}/${sizes.rounds} ${count} instances ${Math.round(tasksPerS)}/s, ${Math.round(cpuUs)} us/task`,
        );
        return { tasksPerS, cpuUs };
      } finally {
        await contestant.stop();
        await contestant.remove();
      }
    });
    const cpu = mapValues(rounds, (each) => each.map(({ cpuUs }) => cpuUs));
    return [
      {
        id: 'S9',
        title: 'Instances on one store: CPU of services, PostgreSQL and Redis a task',
        lines: COUNTS.flatMap((count) => [
          line(`${count} instances`, 'CPU', 'us/task', cpu.get(count)!),
          line(
            `${count} instances`,
            'whole lives',
            'tasks/s',
            rounds.get(count)!.map(({ tasksPerS }) => tasksPerS),
          ),
        ]),
        targets: (['2', '4'] as const).map((count) =>
          target('S9', `${count} instances / 1, CPU a task`, cpu.get(count)!, cpu.get('1')!, {
            at: 'most',
            value: 1.1,
          }),
        ),
        notes: [],
      },
    ];
  },
};
