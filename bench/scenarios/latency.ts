/**
 * S7: from the answer to a submit until its push arrives, open loop, each contestant at a fifth of its own S2 rate. The
 * peers wake their workers themselves: pg-boss by the process that stored the job, graphile-worker and BullMQ by
 * notification. A push that overtakes the answer counts as 0.
 */
import type { Contestant } from '../contestants/contestant.ts';
import { percentile, summarise } from '../report/stats.ts';
import { runLife, warmUp } from './life.ts';
import { startLife } from './lives.ts';
import {
  best,
  type Context,
  interleave,
  type Line,
  line,
  mapValues,
  POSTGRES_PEERS,
  type Scenario,
  target,
  withContestants,
} from './scenario.ts';

const PEERS = [...POSTGRES_PEERS, 'bullmq-redis'] as const;
const NAMES = ['docsched', ...PEERS] as const;
type Name = (typeof NAMES)[number];
type Latency = { p50: number; p99: number; sentP50: number; sentP99: number };

export const latency: Scenario = {
  ids: ['S7'],
  needs: () => PEERS,
  run: async (context) => {
    const { world, sizes, say } = context;
    const { rounds } = await context.lives();
    const rateOf = (name: Name) =>
      Math.round(summarise(rounds.get(name)!.map((round) => round.tasksPerS)).median * sizes.latencyShare);
    const rates = new Map(NAMES.map((name) => [name, rateOf(name)]));
    const starts = NAMES.map((name) => [name, startLife(name), { parserUrl: world.parserUrl }] as const);
    const measured = await withContestants(context, starts, async (contestants) => {
      for (const contestant of contestants.values())
        await warmUp(sizes, (tasks) => runLife(world, contestant, { connections: sizes.connections, tasks }));
      return interleave(sizes.rounds, NAMES, async (name, round) => {
        const found = await runOpen(context, contestants.get(name)!, rates.get(name)!);
        say(`S7 ${round + 1}/${sizes.rounds} ${name} p50 ${found.p50.toFixed(1)} ms, p99 ${found.p99.toFixed(1)} ms`);
        return found;
      });
    });
    const p99s = mapValues(measured, (found) => found.map(({ p99 }) => p99));
    const peer = best(p99s, PEERS, true);
    return [
      {
        id: 'S7',
        title: 'Latency from accepted submit to received push, open loop at 20% of the own S2 rate',
        lines: NAMES.flatMap((name) => linesOf(`${name} at ${rates.get(name)}/s`, measured.get(name)!)),
        targets: [
          target('S7', `docsched / ${peer}, p99`, p99s.get('docsched')!, p99s.get(peer)!, { at: 'most', value: 1 }),
        ],
        notes: [],
      },
    ];
  },
};

const linesOf = (contestant: string, found: readonly Latency[]): Line[] => [
  line(
    contestant,
    'accepted to push, p50',
    'ms',
    found.map(({ p50 }) => p50),
  ),
  line(
    contestant,
    'accepted to push, p99',
    'ms',
    found.map(({ p99 }) => p99),
  ),
  line(
    contestant,
    'sent to push, p50',
    'ms',
    found.map(({ sentP50 }) => sentP50),
  ),
  line(
    contestant,
    'sent to push, p99',
    'ms',
    found.map(({ sentP99 }) => sentP99),
  ),
];

async function runOpen({ world, sizes }: Context, contestant: Contestant, ratePerS: number): Promise<Latency> {
  const ids = world.newIds(Math.max(50, Math.round((ratePerS * sizes.latencyMs) / 1000)));
  const { value } = await world.measure(contestant, async () => {
    await world.expect({ ...ids, timed: true });
    return Promise.all([world.submitOpen({ url: contestant.urls[0]!, ...ids, ratePerS }), world.finish()]);
  });
  await contestant.verify(ids);
  const [{ sentAt, acceptedAt }, { arrivedAt }] = value;
  const since = (times: Float64Array) => arrivedAt.map((arrived, i) => Math.max(0, arrived - times[i]!));
  const [accepted, sent] = [since(acceptedAt), since(sentAt)];
  return {
    p50: percentile(accepted, 0.5),
    p99: percentile(accepted, 0.99),
    sentP50: percentile(sent, 0.5),
    sentP99: percentile(sent, 0.99),
  };
}
