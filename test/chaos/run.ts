/** One chaos run: load and faults, then quiet until everything is done, and the verdict. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../support/eventually.ts';
import { createChance } from './chance.ts';
import { check, type Verdict } from './checker.ts';
import type { FaultLine, ParserLine, SubmitLine } from './evidence.ts';
import { createFaults, type Fault } from './faults.ts';
import { type Ground, layGround } from './ground.ts';
import { createJournal, now, readJournals } from './journal.ts';
import type { Postgres } from './postgres.ts';
import { runFaults } from './schedule.ts';
import { fateOf, QUEUES } from './script.ts';
import { countConnections, countOpen, countPending, readAttempts, readSlots, readTasks } from './stores.ts';
import { createSubmitters } from './submitters.ts';

export type RunOptions = {
  minutes: number;
  seed: number;
  limiter: 'redis' | 'postgres';
  /** All that the run leaves behind is in it. */
  directory: string;
  say: (line: string) => void;
};

type Loaded = { faults: Fault[]; struck: FaultLine[]; load: { from: number; to: number } };

const PARSERS = 3;
const LANES = 6;
/** The queue with few slots and long parses: if it is not at its limit, this run proves nothing about limits. */
const BUSY_QUEUES = ['narrow'];
const LOOK_MS = 250;
const SAY_EVERY_MS = 10_000;
const DRAIN_LIMIT_MS = 120_000;
const SLOTS_LIMIT_MS = 15_000;
const LONG_RUN_HITS = 10;

/** Hits that each kind of fault must have: one a round is tried, and most must hit. */
const hitsFor = (minutes: number): number => Math.max(1, Math.min(LONG_RUN_HITS, Math.floor(minutes / 2)));

/** `stores`: names and versions of what the service ran on. */
export async function runChaos(options: RunOptions): Promise<{ verdict: Verdict; stores: string }> {
  const { minutes, seed, limiter, directory, say } = options;
  const logs = join(directory, 'logs');
  mkdirSync(logs, { recursive: true });
  const submitJournal = join(logs, 'submits.jsonl');
  const parserJournals = Array.from({ length: PARSERS }, (_, n) => join(logs, `parser-${n}.jsonl`));
  const ground = await layGround({ seed, limiter, directory, logs, parserJournals });
  const { postgres, instances, stores } = ground;

  const { faults, struck, load } = await underLoad(ground, options, submitJournal, join(logs, 'faults.jsonl'));
  say('waits until all work is done');
  const slots = await comeToRest(ground, say);
  const ends = await ground.stopServices();
  const connections = await countConnections(postgres.sql);
  say('judges');
  const verdict = await check(
    {
      submits: readJournals<SubmitLine>([submitJournal]),
      pushes: readJournals<ParserLine>(parserJournals),
      faults: struck,
      tasks: readTasks(postgres.sql),
      attempts: readAttempts(postgres.sql),
      load,
      slots,
      connections,
      troubles: [...instances.flatMap((instance) => instance.troubles), ...ends],
    },
    {
      queues: QUEUES,
      busyQueues: BUSY_QUEUES,
      fateOf: (key) => fateOf(seed, key),
      kinds: faults.map(({ kind }) => kind),
      hits: hitsFor(minutes),
    },
  );
  await ground.stopStores();
  return { verdict, stores };
}

/** Ends when every round of faults is over and every submit that was begun is answered. */
async function underLoad(
  ground: Ground,
  { seed, minutes, say }: RunOptions,
  submitPath: string,
  faultPath: string,
): Promise<Loaded> {
  const journals = { submits: createJournal(submitPath), faults: createJournal(faultPath) };
  const struck: FaultLine[] = [];
  const look = lookAtPending(ground.postgres);
  const submitters = createSubmitters({
    seed,
    lanes: LANES,
    instances: ground.urls,
    journal: journals.submits,
    pending: look.pending,
  });
  const faults = createFaults({ ...ground, chance: createChance(seed, 'faults'), submitters });
  const from = now();
  const progress = setInterval(() => {
    const waiting = [...look.pending().values()].reduce((sum, n) => sum + n, 0);
    const up = ground.instances.filter((instance) => instance.isUp()).length;
    const { accepted, retried } = submitters.counts;
    say(
      `${Math.round((now() - from) / 1_000)} s: ${accepted} accepted, ${waiting} waiting, ${retried} sent again, ` +
        `${struck.length} faults, ${up} of ${ground.instances.length} instances up`,
    );
  }, SAY_EVERY_MS);
  submitters.start();
  const onStrike = (line: FaultLine) => {
    journals.faults.write(line);
    struck.push(line);
  };
  await runFaults(faults, { seed, rounds: minutes, onStrike });
  const to = now();
  await submitters.stop();
  clearInterval(progress);
  look.stop();
  for (const journal of Object.values(journals)) journal.close();
  return { faults, struck, load: { from, to } };
}

/** Waits for what is under way; resolves with the slots in use after they had time to be given back. */
async function comeToRest({ postgres: { sql }, redis }: Ground, say: RunOptions['say']) {
  const isDone = async () => (await countOpen(sql)) === 0;
  await eventually(isDone, { timeoutMs: DRAIN_LIMIT_MS, everyMs: LOOK_MS }).catch(() => say('not all work was done'));
  const areFree = async () => Object.values(await readSlots(sql, redis)).every((held) => held === 0);
  await eventually(areFree, { timeoutMs: SLOTS_LIMIT_MS, everyMs: LOOK_MS }).catch(() => say('not all slots are free'));
  return readSlots(sql, redis);
}

function lookAtPending({ sql }: Postgres) {
  let pending = new Map<string, number>();
  let stopped = false;
  void (async () => {
    for (; !stopped; await sleep(LOOK_MS)) pending = await countPending(sql).catch(() => pending);
  })();
  return {
    pending: () => pending,
    stop: () => {
      stopped = true;
    },
  };
}
