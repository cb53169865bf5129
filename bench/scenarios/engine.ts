/** S3: claim and complete in each library's best batch mode, no HTTP, no work. */
import { newDatabaseName } from '../contestants/contestant.ts';
import { type Child, startChild } from '../world/child.ts';
import type { Database } from '../world/postgres.ts';
import { best, type Context, interleave, line, type Scenario, target } from './scenario.ts';

const NAMES = ['docsched', 'pg-boss', 'graphile-worker'] as const;
type Name = (typeof NAMES)[number];
type Running = { child: Child; database: Database; databaseName: string };

export const engine: Scenario = {
  ids: ['S3'],
  run: async (context) => {
    const { sizes, say } = context;
    const engines = new Map<Name, Running>();
    try {
      for (const name of NAMES) engines.set(name, await startEngine(context, name));
      for (const name of NAMES) await drain(context, engines.get(name)!, sizes.engineTasks);
      const rates = await interleave(sizes.rounds, NAMES, async (name, round) => {
        const rate = await drain(context, engines.get(name)!, sizes.engineTasks);
        say(`S3 ${round + 1}/${sizes.rounds} ${name} ${Math.round(rate)}/s`);
        return rate;
      });
      const peer = best(rates, ['pg-boss', 'graphile-worker']);
      return [
        {
          id: 'S3',
          title: 'Engine only: claim and complete in batches, no HTTP',
          lines: NAMES.map((name) => line(name, 'claimed and completed', 'tasks/s', rates.get(name)!)),
          targets: [
            target('S3', `docsched / ${peer}`, rates.get('docsched')!, rates.get(peer)!, { at: 'least', value: 1.5 }),
          ],
          notes: [],
        },
      ];
    } finally {
      for (const running of engines.values()) await endEngine(context, running);
    }
  },
};

async function startEngine({ world }: Context, name: Name): Promise<Running> {
  const databaseName = newDatabaseName(`engine_${name}`);
  const database = await world.postgres.createDatabase(databaseName);
  const env = { ENGINE: name, DATABASE_URL: database.url, REDIS_URL: world.redisUrl };
  return { child: await startChild('engines/engine-app.ts', env), database, databaseName };
}

async function endEngine({ world }: Context, { child, database, databaseName }: Running): Promise<void> {
  await child.stop();
  await database.close();
  await world.postgres.dropDatabase(databaseName);
}

/** Tasks a second; what is stored beforehand is not counted. Throws when one is left or failed. */
async function drain({ world }: Context, { child }: Running, count: number): Promise<number> {
  await child.ask('fill', world.newIds(count));
  const { value: elapsedMs } = await world.measure({ pids: [child.pid] }, () => child.ask<number>('drain', count));
  const { open, failed } = await child.ask<{ open: number; failed: number }>('counts');
  if (open > 0 || failed > 0) throw new Error(`${open} open and ${failed} failed after the drain`);
  return (count / elapsedMs) * 1000;
}
