/** S4: batch submit, batch push, batch callback, against single calls of the same service. */
import { startDocsched } from '../contestants/docsched.ts';
import { costLines, runLife, warmUp } from './life.ts';
import { type Context, interleave, line, mapValues, type Scenario, target, withContestants } from './scenario.ts';

const NAMES = ['single', 'batch'] as const;
/** A batch request holds `batch` tasks; so few connections keep the service as busy as 64 single ones. */
const BATCH_CONNECTIONS = 4;

export const batch: Scenario = {
  ids: ['S4'],
  run: async (context) => {
    const { world, sizes, say } = context;
    const { parserUrl } = world;
    const rounds = await withContestants(
      context,
      NAMES.map((name) => [name, startDocsched, { parserUrl, name: `docsched-${name}` }] as const),
      async (contestants) => {
        await setBatchTarget(context, contestants.get('batch')!.urls[0]!);
        const loads = {
          single: { tasks: sizes.lifeTasks, connections: sizes.connections },
          batch: { tasks: sizes.batchTasks, connections: BATCH_CONNECTIONS, batch: sizes.batch },
        };
        for (const name of NAMES)
          await warmUp(sizes, (tasks) => runLife(world, contestants.get(name)!, { ...loads[name], tasks }));
        return interleave(sizes.rounds, NAMES, async (name, round) => {
          const result = await runLife(world, contestants.get(name)!, loads[name]);
          say(`S4 ${round + 1}/${sizes.rounds} ${name} ${Math.round(result.tasksPerS)}/s`);
          return result;
        });
      },
    );
    const rates = mapValues(rounds, (each) => each.map(({ tasksPerS }) => tasksPerS));
    return [
      {
        id: 'S4',
        title: `Batch submit, batch push, batch callback (${sizes.batch} tasks each); limit 256`,
        lines: [
          ...NAMES.map((name) => line(`docsched, ${name}`, 'whole lives', 'tasks/s', rates.get(name)!)),
          ...costLines('docsched, batch', rounds.get('batch')!),
        ],
        targets: [target('S4', 'batch / single', rates.get('batch')!, rates.get('single')!, { at: 'least', value: 4 })],
        notes: [],
      },
    ];
  },
};

/** Queue settings named here win over the environment; the others keep their defaults. */
async function setBatchTarget({ world, sizes }: Context, url: string): Promise<void> {
  const answer = await fetch(`${url}/v1/queues/default`, {
    method: 'PATCH',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ targets: [{ url: world.parserUrl, mode: 'async', batch: sizes.batch }] }),
  });
  if (!answer.ok) throw new Error(`the batch target was not accepted: ${answer.status} ${await answer.text()}`);
}
