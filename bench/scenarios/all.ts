/** Runs the chosen scenarios one after another; one that fails does not keep the others from running. */
import { describeMachine, describeVersions, type Run } from '../report/run.ts';
import type { Sizes } from '../sizes.ts';
import { startWorld } from '../world/world.ts';
import { batch } from './batch.ts';
import { cost } from './cost.ts';
import { engine } from './engine.ts';
import { filled } from './filled.ts';
import { instances } from './instances.ts';
import { latency } from './latency.ts';
import { keepLives, lives } from './lives.ts';
import { pinned } from './pinned.ts';
import type { Context, Scenario } from './scenario.ts';
import { store } from './store.ts';

const SCENARIOS: Scenario[] = [store, lives, engine, batch, filled, pinned, latency, cost, instances];

export async function runScenarios(
  wanted: ReadonlySet<string>,
  sizes: Sizes,
  quick: boolean,
  say: Context['say'],
): Promise<Run> {
  const startedAt = new Date();
  const world = await startWorld();
  const chosen = SCENARIOS.filter(({ ids }) => ids.some((id) => wanted.has(id)));
  const needed = new Set(chosen.flatMap((scenario) => scenario.needs?.(wanted) ?? []));
  const context: Context = { world, sizes, say, lives: keepLives({ world, sizes, say }, ['docsched', ...needed]) };
  const outcomes: Run['outcomes'] = [];
  const failures: Run['failures'] = [];
  for (const scenario of chosen) {
    const ids = scenario.ids.filter((id) => wanted.has(id));
    const began = performance.now();
    say(`${ids.join(', ')} begins`);
    try {
      outcomes.push(...(await scenario.run(context, wanted)));
      say(`${ids.join(', ')} took ${Math.round((performance.now() - began) / 1000)} s`);
    } catch (error) {
      failures.push({ ids, error: (error as Error).message });
      say(`${ids.join(', ')} FAILED: ${(error as Error).stack}`);
    }
  }
  const settings = await world.postgres.settings();
  const versions = describeVersions(world);
  await world.stop();
  const durationS = (Date.now() - startedAt.getTime()) / 1000;
  const machine = describeMachine();
  return {
    startedAt: startedAt.toISOString(),
    durationS,
    quick,
    machine,
    versions,
    settings,
    sizes,
    outcomes,
    failures,
  };
}
