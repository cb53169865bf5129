/**
 * `npm run bench`: docsched and its peers side by side, in interleaved rounds on one machine. Starts its own stores,
 * runs the scenarios one after another, writes what was measured to bench/results and a table to the terminal.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { HELP, type Options, readOptions } from './arguments.ts';
import { FULL, QUICK, type Sizes } from './sizes.ts';

const IDS = ['S1', 'S1b', 'S2', 'S2b', 'S2c', 'S2t', 'S3', 'S4', 'S5', 'S6', 'S7', 'S8', 'S9'];
const HERE = fileURLToPath(new URL('.', import.meta.url));

async function main(given: string[]): Promise<number> {
  let options: Options;
  try {
    options = readOptions(given, IDS);
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${HELP}`);
    return 78;
  }
  if (options.help) {
    console.log(HELP);
    return 0;
  }
  installPeers();
  // Only now: these modules need the peers.
  if (options.profile) return (await import('./profile.ts')).profile(say);
  if (options.longTransaction !== null)
    return (await import('./long-transaction.ts')).longTransaction(options.longTransaction, options, say);
  return compare(options);
}

/** The peers live in bench/node_modules, so that they never enter the product's own dependencies. */
function installPeers(): void {
  if (existsSync(`${HERE}node_modules/pg-boss`)) return;
  say('installing the peers (npm install in bench/)');
  // Not `npm ci`: it insists on optional packages of other platforms, which not every registry carries.
  const args = ['install', '--no-save', '--no-audit', '--no-fund'];
  const { status } = spawnSync('npm', args, { cwd: HERE, stdio: 'inherit' });
  if (status !== 0) throw new Error(`npm install in bench/ ended with ${status}`);
}

async function compare(options: Options): Promise<number> {
  const { runScenarios } = await import('./scenarios/all.ts');
  const base: Sizes = options.quick ? QUICK : FULL;
  const sizes = { ...base, rounds: options.rounds ?? base.rounds };
  const run = await runScenarios(new Set(options.only ?? IDS), sizes, options.quick, say);
  const { runHeader, targetTable, outcomeTable } = await import('./report/table.ts');
  const { drawChart } = await import('./report/chart.ts');
  const names = [run.startedAt.replaceAll(/[:.]/g, '-'), ...(options.record ? ['recorded'] : [])];
  mkdirSync(`${HERE}results`, { recursive: true });
  for (const name of names) {
    writeFileSync(`${HERE}results/${name}.json`, `${JSON.stringify(run, null, 2)}\n`);
    writeFileSync(`${HERE}results/${name}.svg`, `${drawChart(run)}\n`);
  }
  if (options.record) (await import('./report/documents.ts')).writeDocuments(run);
  console.log(`\n${[runHeader(run), ...run.outcomes.map(outcomeTable), targetTable(run)].join('\n\n')}\n`);
  say(`written: ${names.map((name) => `bench/results/${name}.json and .svg`).join(', ')}`);
  return run.failures.length > 0 ? 1 : 0;
}

function say(text: string): void {
  console.log(`${String(Math.round(process.uptime())).padStart(5)} s  ${text}`);
}

// Whatever a failure has left running must not keep this process alive; children end with it.
process.exit(
  await main(process.argv.slice(2)).catch((error: Error) => {
    console.error(error.stack);
    return 1;
  }),
);
