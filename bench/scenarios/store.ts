/** S1, S1b: durable single submits over HTTP; nothing takes the tasks out again. */
import type { Contestant, StartContestant } from '../contestants/contestant.ts';
import { startDocsched } from '../contestants/docsched.ts';
import { startEmpty, startPeer } from '../contestants/peers.ts';
import {
  best,
  type Context,
  interleave,
  line,
  type Outcome,
  POSTGRES_PEERS,
  type Scenario,
  target,
  withContestants,
} from './scenario.ts';

type Name = 'docsched' | (typeof POSTGRES_PEERS)[number] | 'empty-express';

/** More than any contestant stores in a round. */
const MOST_TASKS = 1_000_000;

const start = (name: Name): StartContestant =>
  name === 'docsched' ? startDocsched : name === 'empty-express' ? startEmpty('express') : startPeer(name);

export const store: Scenario = {
  ids: ['S1', 'S1b'],
  run: async (context, wanted) => {
    const { rounds } = context.sizes;
    const names: Name[] = [
      'docsched',
      ...(wanted.has('S1') ? POSTGRES_PEERS : []),
      ...(wanted.has('S1b') ? (['empty-express'] as const) : []),
    ];
    const rates = await withContestants(
      context,
      names.map((name) => [name, start(name), {}] as const),
      async (contestants) => {
        for (const name of names)
          await storeFor(context, contestants.get(name)!, Math.max(context.sizes.warmUpMs, context.sizes.storeMs / 2));
        return interleave(rounds, names, async (name, round) => {
          const rate = await storeFor(context, contestants.get(name)!, context.sizes.storeMs);
          context.say(`S1 ${round + 1}/${rounds} ${name} ${Math.round(rate)}/s`);
          return rate;
        });
      },
    );
    return [...(wanted.has('S1') ? [againstPeers(rates)] : []), ...(wanted.has('S1b') ? [againstNothing(rates)] : [])];
  },
};

/** Tasks stored a second; throws when one answered 2xx is not there. */
async function storeFor({ world, sizes }: Context, contestant: Contestant, durationMs: number): Promise<number> {
  const { firstId } = world.newIds(MOST_TASKS);
  const before = await contestant.countOpen();
  const { value: submitted } = await world.measure(contestant, () =>
    world.submit({ urls: contestant.urls, firstId, durationMs, connections: sizes.connections }),
  );
  const after = await contestant.countOpen();
  if (before !== null && after !== null && after - before !== submitted.accepted)
    throw new Error(`${contestant.name}: ${submitted.accepted} accepted, ${after - before} stored`);
  return (submitted.accepted / (submitted.endedAt - submitted.startedAt)) * 1000;
}

const lines = (rates: Map<Name, number[]>, names: readonly Name[]) =>
  names.map((name) => line(name, 'stored', 'tasks/s', rates.get(name)!));

function againstPeers(rates: Map<Name, number[]>): Outcome {
  const peer = best(rates, POSTGRES_PEERS);
  return {
    id: 'S1',
    title: 'Durable single submits over HTTP, 64 connections',
    lines: lines(rates, ['docsched', ...POSTGRES_PEERS]),
    targets: [target('S1', `docsched / ${peer}`, rates.get('docsched')!, rates.get(peer)!, { at: 'least', value: 5 })],
    notes: [],
  };
}

function againstNothing(rates: Map<Name, number[]>): Outcome {
  return {
    id: 'S1b',
    title: 'The same against an Express route that stores nothing',
    lines: lines(rates, ['docsched', 'empty-express']),
    targets: [
      target('S1b', 'docsched / empty-express', rates.get('docsched')!, rates.get('empty-express')!, {
        at: 'least',
        value: 0.7,
      }),
    ],
    notes: [],
  };
}
