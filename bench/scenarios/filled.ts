/** S5: S2 over a table with millions of finished, waiting and delayed rows, against S2 on an empty table. */
import type { Contestant } from '../contestants/contestant.ts';
import { startDocsched } from '../contestants/docsched.ts';
import { createFilledDatabase } from '../world/fill.ts';
import type { Database } from '../world/postgres.ts';
import { runLife, warmUp } from './life.ts';
import { type Context, interleave, line, type Scenario, target } from './scenario.ts';

const NAMES = ['empty', 'filled'] as const;

export const filled: Scenario = {
  ids: ['S5'],
  run: async (context) => {
    const { world, sizes, say } = context;
    const { parserUrl } = world;
    const { database, bytesARow, remove } = await createFilledDatabase(world, sizes, say);
    const empty = await startDocsched(world, { parserUrl, name: 'docsched-empty' });
    // Paused outside of its rounds: its backlog must not take the machine from the other.
    const full = await startDocsched(world, { database, parserUrl, name: 'docsched-filled' });
    const load = { tasks: sizes.lifeTasks, connections: sizes.connections };
    const run = {
      empty: async (tasks: number) => (await runLife(world, empty, { ...load, tasks })).tasksPerS,
      filled: (tasks: number) => runOverBacklog(context, full, database, tasks),
    };
    try {
      await setPaused(full, true);
      await world.drained();
      for (const name of NAMES) await warmUp(sizes, run[name]);
      const rates = await interleave(sizes.rounds, NAMES, async (name, round) => {
        const rate = await run[name](sizes.lifeTasks);
        say(`S5 ${round + 1}/${sizes.rounds} ${name} ${Math.round(rate)}/s`);
        return rate;
      });
      const millions = (count: number) => `${count / 1e6}M`;
      const rows = `${millions(sizes.finished)} finished, ${millions(sizes.pending)} pending, ${millions(sizes.delayed)} delayed rows`;
      return [
        {
          id: 'S5',
          title: `S2 over a table with ${rows}`,
          lines: [
            ...NAMES.map((name) => line(`docsched, ${name} table`, 'whole lives', 'tasks/s', rates.get(name)!)),
            line('docsched, filled table', 'stored size', 'bytes/task', [bytesARow]),
          ],
          targets: [
            target('S5', 'filled / empty', rates.get('filled')!, rates.get('empty')!, { at: 'least', value: 0.9 }),
          ],
          notes: [],
        },
      ];
    } finally {
      for (const contestant of [empty, full]) await contestant.stop();
      await empty.remove();
      await remove();
    }
  },
};

/**
 * As many submits and as many whole lives as in S2, until both are done. What is pushed is mostly the backlog, whose
 * tasks are older. Afterwards: every task that was pushed has succeeded at its first attempt.
 */
async function runOverBacklog(
  { world, sizes }: Context,
  contestant: Contestant,
  database: Database,
  tasks: number,
): Promise<number> {
  const ids = world.newIds(tasks);
  const successes = await countSuccesses(database);
  const { value } = await world.measure(contestant, async () => {
    await world.expect({ count: tasks });
    await setPaused(contestant, false);
    const [submitted, parsed] = await Promise.all([
      world.submit({ urls: contestant.urls, ...ids, connections: sizes.connections }),
      world.finish(),
    ]);
    return { submitted, parsed };
  });
  await setPaused(contestant, true);
  const pushed = await world.drained();
  const gained = (await countSuccesses(database)) - successes;
  if (gained !== pushed) throw new Error(`${pushed} pushed, ${gained} more succeeded`);
  const { submitted, parsed } = value;
  return (tasks / (Math.max(submitted.endedAt, parsed.endedAt) - submitted.startedAt)) * 1000;
}

/** Attempts that succeeded, less those that were second ones. */
async function countSuccesses(database: Database): Promise<number> {
  const [row] = await database.query<{ n: string }>(
    `SELECT count(*) FILTER (WHERE outcome = 'success' AND number = 1) - count(*) FILTER (WHERE number > 1) AS n
     FROM attempts WHERE attempt_id < 'filled-' OR attempt_id > 'filled-~'`,
  );
  return Number(row!.n);
}

async function setPaused({ urls }: Contestant, paused: boolean): Promise<void> {
  const answer = await fetch(`${urls[0]}/v1/queues/default`, {
    method: 'PATCH',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ paused }),
  });
  if (!answer.ok) throw new Error(`pausing was not accepted: ${answer.status} ${await answer.text()}`);
}
