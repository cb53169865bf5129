/** S6: S2 while a REPEATABLE READ transaction is held open, so that no dead row can be removed, against S2 undisturbed. */
import pg from 'pg';
import { startDocsched } from '../contestants/docsched.ts';
import { runLife, warmUp } from './life.ts';
import { interleave, line, type Scenario, target } from './scenario.ts';

const NAMES = ['undisturbed', 'pinned'] as const;

export const pinned: Scenario = {
  ids: ['S6'],
  run: async ({ world, sizes, say }) => {
    const { parserUrl } = world;
    const contestants = {
      undisturbed: await startDocsched(world, { parserUrl, name: 'docsched-undisturbed' }),
      pinned: await startDocsched(world, { parserUrl, name: 'docsched-pinned' }),
    };
    // A snapshot holds back only its own database. It is taken before the first task and outlives the last round.
    const holder = await holdSnapshot(contestants.pinned.database.url);
    try {
      const load = { tasks: sizes.pinnedTasks, connections: sizes.connections };
      for (const name of NAMES) await warmUp(sizes, (tasks) => runLife(world, contestants[name], { ...load, tasks }));
      const rates = await interleave(sizes.rounds, NAMES, async (name, round) => {
        const { tasksPerS } = await runLife(world, contestants[name], load);
        say(`S6 ${round + 1}/${sizes.rounds} ${name} ${Math.round(tasksPerS)}/s`);
        return tasksPerS;
      });
      const each = (name: (typeof NAMES)[number]) =>
        rates
          .get(name)!
          .map((rate) => Math.round(rate))
          .join(', ');
      return [
        {
          id: 'S6',
          title: `S2 with a REPEATABLE READ transaction held open over all rounds (${sizes.pinnedTasks} tasks each)`,
          lines: NAMES.map((name) => line(`docsched, ${name}`, 'whole lives', 'tasks/s', rates.get(name)!)),
          targets: [
            target('S6', 'pinned / undisturbed', rates.get('pinned')!, rates.get('undisturbed')!, {
              at: 'least',
              value: 0.9,
            }),
          ],
          notes: [`In order of the rounds: undisturbed ${each('undisturbed')}; pinned ${each('pinned')}.`],
        },
      ];
    } finally {
      await holder.end();
      for (const contestant of Object.values(contestants)) {
        await contestant.stop();
        await contestant.remove();
      }
    }
  },
};

/** No version of a row that is dead from now on can be removed, until the connection ends. */
export async function holdSnapshot(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, application_name: 'bench-pin' });
  await client.connect();
  await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ');
  await client.query('SELECT count(*) FROM task_scheduler_tasks');
  return client;
}
