/** S2, S2b, S2c, S2t: whole lives over HTTP, docsched and all others in one series of interleaved rounds. */
import type { StartContestant } from '../contestants/contestant.ts';
import { startDocsched, startTraced } from '../contestants/docsched.ts';
import { startEmpty, startPeer } from '../contestants/peers.ts';
import { runLife, warmUp } from './life.ts';
import {
  best,
  type Context,
  interleave,
  type LifeName,
  type Lives,
  line,
  mapValues,
  type Outcome,
  POSTGRES_PEERS,
  type Scenario,
  target,
  withContestants,
} from './scenario.ts';

export const startLife = (name: LifeName): StartContestant => {
  if (name === 'docsched') return startDocsched;
  if (name === 'docsched-traced') return startTraced;
  if (name === 'empty-express') return startEmpty('express');
  if (name === 'empty-http') return startEmpty('http');
  return startPeer(name);
};

/** S2's rounds; the commits of each contestant over all of them are added to the costs by `commitsATask`. */
export async function runLives(
  { world, sizes, say }: Pick<Context, 'world' | 'sizes' | 'say'>,
  names: readonly LifeName[],
): Promise<Lives> {
  const starts = names.map((name) => [name, startLife(name), { parserUrl: world.parserUrl }] as const);
  const load = { tasks: sizes.lifeTasks, connections: sizes.connections };
  const commitsATask = new Map<LifeName, number>();
  const rounds = await withContestants({ world }, starts, async (contestants) => {
    const warmUpTasks = new Map<LifeName, number>();
    for (const [name, contestant] of contestants) {
      const run = (tasks: number) => runLife(world, contestant, { ...load, tasks });
      warmUpTasks.set(name, await warmUp(sizes, run));
    }
    const done = await interleave(sizes.rounds, names, async (name, round) => {
      const result = await runLife(world, contestants.get(name)!, load);
      say(`S2 ${round + 1}/${sizes.rounds} ${name} ${Math.round(result.tasksPerS)}/s`);
      return result;
    });
    for (const [name, contestant] of contestants) {
      await contestant.stop();
      const tasks = warmUpTasks.get(name)! + sizes.rounds * sizes.lifeTasks;
      commitsATask.set(name, (await contestant.commits()) / tasks);
    }
    return done;
  });
  return { rounds, commitsATask };
}

export const lives: Scenario = {
  ids: ['S2', 'S2b', 'S2c', 'S2t'],
  needs: (wanted) => [
    ...(wanted.has('S2') ? POSTGRES_PEERS : []),
    ...(wanted.has('S2b') ? (['bullmq-redis'] as const) : []),
    ...(wanted.has('S2c') ? (['empty-express', 'empty-http'] as const) : []),
    ...(wanted.has('S2t') ? (['docsched-traced'] as const) : []),
  ],
  run: async (context, wanted) => {
    const { rounds } = await context.lives();
    const rates = mapValues(rounds, (each) => each.map((round) => round.tasksPerS));
    const outcomes: Record<string, (rates: Map<LifeName, number[]>) => Outcome> = {
      S2: againstPostgres,
      S2b: againstRedis,
      S2c: againstNothing,
      S2t: againstUntraced,
    };
    return lives.ids.filter((id) => wanted.has(id)).map((id) => outcomes[id]!(rates));
  },
};

type Rates = Map<LifeName, number[]>;

const lines = (rates: Rates, names: readonly LifeName[]) =>
  names.map((name) => line(name, 'whole lives', 'tasks/s', rates.get(name)!));

function againstPostgres(rates: Rates): Outcome {
  const peer = best(rates, POSTGRES_PEERS);
  return {
    id: 'S2',
    title: 'Whole life over HTTP: submit, push, callback, Success; limit 256',
    lines: lines(rates, ['docsched', ...POSTGRES_PEERS]),
    targets: [target('S2', `docsched / ${peer}`, rates.get('docsched')!, rates.get(peer)!, { at: 'least', value: 3 })],
    notes: [],
  };
}

function againstRedis(rates: Rates): Outcome {
  return {
    id: 'S2b',
    title: 'The same against BullMQ on Redis without persistence (not durable)',
    lines: lines(rates, ['docsched', 'bullmq-redis']),
    targets: [
      target('S2b', 'docsched / bullmq-redis', rates.get('docsched')!, rates.get('bullmq-redis')!, {
        at: 'least',
        value: 1.5,
      }),
    ],
    notes: [],
  };
}

function againstNothing(rates: Rates): Outcome {
  return {
    id: 'S2c',
    title: 'The same against the three hops with no store at all',
    lines: lines(rates, ['docsched', 'empty-express', 'empty-http']),
    targets: [
      target('S2c', 'docsched / empty-express', rates.get('docsched')!, rates.get('empty-express')!, {
        at: 'least',
        value: 0.8,
      }),
      target('S2c', 'docsched / empty-http', rates.get('docsched')!, rates.get('empty-http')!, {
        at: 'least',
        value: 0.6,
      }),
    ],
    notes: [],
  };
}

function againstUntraced(rates: Rates): Outcome {
  const [traced, untraced] = [rates.get('docsched-traced')!, rates.get('docsched')!];
  return {
    id: 'S2t',
    title: 'The same with every tenth task traced (OTLP over HTTP), against tracing off',
    lines: lines(rates, ['docsched', 'docsched-traced']),
    targets: [target('S2t', 'docsched-traced / docsched', traced, untraced, { at: 'least', value: 0.9 })],
    notes: [],
  };
}

/** The rounds are run once, with all that any wanted scenario needs of them side by side. */
export function keepLives(base: Pick<Context, 'world' | 'sizes' | 'say'>, names: readonly LifeName[]) {
  let running: ReturnType<typeof runLives> | undefined;
  return () => {
    running ??= runLives(base, names);
    return running;
  };
}
