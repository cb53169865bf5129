/**
 * The judge. Knows nothing of the service but what it promises: reads the submitters' and parsers' logs, and what the stores hold at
 * the end, and says what was broken, how much was done, and how long each fault was felt. Pure.
 */
import { appliedTries, gatherAttempts, knownUntil, type SeenAttempt, surelyUntil } from './attempts.ts';
import {
  type Breach,
  type Evidence,
  type FaultLine,
  type FinalAttempt,
  type FinalTask,
  keyText,
  type Lines,
  type Plan,
} from './evidence.ts';
import { highest, type Span, shareAtLeast, without } from './level.ts';
import { type Recovery, recoveries } from './recovery.ts';
import { findOvertaken, findRegress, gatherSubmits, type Submitted } from './submits.ts';

export type Verdict = {
  breaches: Breach[];
  tasks: { accepted: number; success: number; failed: number; stopped: number; stale: number };
  attempts: { pushed: number; applied: number; duplicates: number; traitors: number };
  /** Share of the tasks that could succeed and did. */
  successShare: number;
  queues: { queue: string; limit: number; most: number; atLimit: number | null }[];
  faults: { kind: string; fired: number; hits: number; recovery: Recovery }[];
};

const STATES = ['Pending', 'Processing', 'Success', 'Failed', 'Stopped'];
const SUCCESS = 2;
const FAILED = 3;
const STOPPED = 4;
const LEAST_SUCCESS = 0.95;
const LEAST_AT_LIMIT = 0.3;
/** After a fault's end, the attempts it spoiled hold their slots until their deadlines. */
const AFTERMATH_MS = 5_000;

type Judged = FinalTask & { result: string | null };
type Finals = {
  tasks: Map<string, Judged>;
  outcomes: Map<string, string | null>;
  claims: Map<string, number[]>;
  winners: Map<string, string[]>;
};

export async function check(evidence: Evidence, plan: Plan): Promise<Verdict> {
  const submitted = await gatherSubmits(evidence.submits);
  const { attempts, troubles } = await gatherAttempts(evidence.pushes);
  const finals = await gatherFinals(evidence.tasks, evidence.attempts);
  const all = [...attempts.values()];
  const byQueue = Map.groupBy(all, ({ queue }) => queue);
  const calm = without(
    [evidence.load.from, evidence.load.to],
    evidence.faults.map(({ since, to }): Span => [since, to + AFTERMATH_MS]),
  );
  const queues = Object.entries(plan.queues).map(([queue, { limit }]) => {
    const seen = byQueue.get(queue) ?? [];
    const { level, at } = highest(seen.map((one): Span => [one.from, surelyUntil(one)]));
    const atLimit = shareAtLeast(
      seen.map((one): Span => [one.from, knownUntil(one)]),
      limit,
      calm,
    );
    return { queue, limit, most: level, at, atLimit };
  });
  const faults = plan.kinds.map((kind) => {
    const fired = evidence.faults.filter((fault) => fault.kind === kind);
    const hits = fired.filter((fault) => isHit(fault, attempts)).length;
    return { kind, fired: fired.length, hits, recovery: recoveries(fired, all) };
  });
  const fates = countFates(submitted, finals, plan);
  const breaches = [
    ...findLost(submitted, finals),
    ...queues
      .filter(({ most, limit }) => most > limit)
      .map(({ queue, most, limit, at }) => breach('over the limit', `${queue} had ${most} of ${limit} at ${at}`)),
    ...findRegress(submitted),
    ...findOvertaken(submitted, finals.claims),
    ...all.flatMap((attempt) => judgeAttempt(attempt, finals)),
    ...judgeResults(finals, attempts),
    ...judgeEnds(submitted, finals, plan),
    ...Object.entries(evidence.slots)
      .filter(([, held]) => held !== 0)
      .map(([queue, held]) => breach('slots left', `${queue} holds ${held} at the end`)),
    ...(evidence.connections === 0 ? [] : [breach('connections left', `${evidence.connections} at PostgreSQL`)]),
    ...evidence.troubles.map((what) => breach('trouble of an instance', what)),
    ...evidence.faults.flatMap(({ kind, trouble }) =>
      trouble ? [breach('trouble of an instance', `${kind}: ${trouble}`)] : [],
    ),
    ...troubles.map((what) => breach('a parser stumbled', what)),
    ...[...submitted.refused].map(([code, count]) => breach('refused submit', `${code}, ${count} times`)),
    ...(fates.share >= LEAST_SUCCESS
      ? []
      : [breach('did too little', `${percent(fates.share)} of the tasks that could succeed did`)]),
    ...queues
      .filter(({ queue, atLimit }) => plan.busyQueues.includes(queue) && !((atLimit ?? 0) >= LEAST_AT_LIMIT))
      .map(({ queue, atLimit }) =>
        breach('did too little', `${queue} was at its limit for ${percent(atLimit ?? 0)} of the time without faults`),
      ),
    ...faults
      .filter(({ hits }) => hits < plan.hits)
      .map(({ kind, hits }) => breach('too few faults', `${kind} hit ${hits} times`)),
  ];
  return {
    breaches,
    tasks: { accepted: submitted.accepted.size, ...fates.counts, stale: submitted.stale },
    attempts: countAttempts(all),
    successShare: fates.share,
    queues: queues.map(({ at: _, ...queue }) => queue),
    faults,
  };
}

const breach = (rule: string, what: string): Breach => ({ rule, what });
const percent = (share: number): string => `${(share * 100).toFixed(1)}%`;
const keyOf = (one: FinalTask | FinalAttempt): string => keyText(one.queue, one.task_id, one.task_version);

async function gatherFinals(tasks: Lines<FinalTask>, attempts: Lines<FinalAttempt>): Promise<Finals> {
  const finals: Finals = { tasks: new Map(), outcomes: new Map(), claims: new Map(), winners: new Map() };
  for await (const task of tasks) finals.tasks.set(keyOf(task), task);
  for await (const attempt of attempts) {
    finals.outcomes.set(attempt.attempt_id, attempt.outcome);
    add(finals.claims, keyOf(attempt), Number(attempt.claimed_at));
    if (attempt.outcome === 'success') add(finals.winners, keyOf(attempt), attempt.attempt_id);
  }
  return finals;
}

function add<T>(map: Map<string, T[]>, key: string, value: T): void {
  const known = map.get(key);
  if (known) known.push(value);
  else map.set(key, [value]);
}

function findLost({ accepted }: Submitted, { tasks }: Finals): Breach[] {
  return [...accepted.keys()].flatMap((key) => {
    const task = tasks.get(key);
    if (!task) return [breach('lost', `${key} was accepted and is not there`)];
    return task.status >= SUCCESS ? [] : [breach('lost', `${key} is ${STATES[task.status]} at the end`)];
  });
}

/** One report applied, and what was answered is what is stored. */
function judgeAttempt(attempt: SeenAttempt, { outcomes, tasks }: Finals): Breach[] {
  const found: Breach[] = [];
  const { id, queue, taskId, version } = attempt;
  const key = keyText(queue, taskId, version);
  const applied = appliedTries(attempt);
  if (applied.length > 1) found.push(breach('applied twice', `attempt ${id} of ${key}`));
  if (attempt.pushes > 1) found.push(breach('pushed twice', `attempt ${id} of ${key}, ${attempt.pushes} times`));
  const outcome = outcomes.get(id);
  if (outcome === undefined) found.push(breach('unknown attempt', `${id} of ${key} was pushed and is not stored`));
  if (outcome === null) found.push(breach('open attempt', `${id} of ${key} at the end`));
  for (const { status, result } of applied.slice(0, 1)) {
    const meant = status === 0 ? 'success' : 'parser_failed';
    if (outcome !== meant) found.push(breach('applied and not kept', `${id} of ${key} is ${outcome}, not ${meant}`));
    const task = tasks.get(key);
    if (status === 0 && (task?.status !== SUCCESS || task.result !== JSON.stringify(result)))
      found.push(breach('applied and not kept', `${key} is ${STATES[task?.status ?? -1]} with ${task?.result}`));
  }
  const isDuplicate = attempt.tries.some((one) => one.outcome === 'duplicate');
  if (isDuplicate && outcome !== 'success' && outcome !== 'parser_failed')
    found.push(breach('applied and not kept', `${id} of ${key} was called a duplicate and is ${outcome}`));
  return found;
}

/** A Success has the result of one attempt, which a parser reported. */
function judgeResults({ tasks, winners }: Finals, attempts: ReadonlyMap<string, SeenAttempt>): Breach[] {
  return [...tasks].flatMap(([key, task]) => {
    if (task.status !== SUCCESS) return [];
    const won = winners.get(key) ?? [];
    if (won.length !== 1) return [breach('wrong result', `${key} has ${won.length} successful attempts`)];
    const attempt = attempts.get(won[0]!);
    if (!attempt) return [breach('wrong result', `${key} is Success by an attempt that no parser has seen`)];
    const reported = attempt.tries.filter(({ status }) => status === 0).map(({ result }) => result);
    const possible = attempt.done?.status === 0 ? [...reported, attempt.done.result] : reported;
    if (possible.some((result) => JSON.stringify(result) === task.result)) return [];
    return [breach('wrong result', `${key} has ${task.result}, which its attempt never reported`)];
  });
}

/** Failed and Stopped only where the script, a cancel or a newer version explains it. */
function judgeEnds({ cancelled, versions }: Submitted, { tasks }: Finals, { fateOf, queues }: Plan): Breach[] {
  return [...tasks].flatMap(([key, { queue, task_id, task_version, status, reason }]) => {
    if (status === FAILED && fateOf({ queue, taskId: task_id, version: task_version }) === 'well')
      return [breach('unexplained end', `${key} is Failed (${reason})`)];
    if (status !== STOPPED) return [];
    const newer = (versions.get(`${queue}/${task_id}`) ?? []).some((one) => BigInt(one) > BigInt(task_version));
    const explained =
      reason === 'cancelled'
        ? cancelled.has(key)
        : reason === 'superseded' && queues[queue]?.policy === 'stop' && newer;
    return explained ? [] : [breach('unexplained end', `${key} is Stopped (${reason})`)];
  });
}

function countFates({ accepted }: Submitted, { tasks }: Finals, { fateOf }: Plan) {
  const counts = { success: 0, failed: 0, stopped: 0 };
  let could = 0;
  let did = 0;
  for (const key of accepted.keys()) {
    const task = tasks.get(key);
    if (task?.status === SUCCESS) counts.success += 1;
    if (task?.status === FAILED) counts.failed += 1;
    if (task?.status === STOPPED) counts.stopped += 1;
    const [queue, taskId, version] = key.split('/') as [string, string, string];
    // Stopped is judged by itself (judgeEnds): nobody wanted it to succeed any more.
    if (task?.status === STOPPED || fateOf({ queue, taskId, version }) === 'doomed') continue;
    could += 1;
    if (task?.status === SUCCESS) did += 1;
  }
  return { counts, share: could === 0 ? 0 : did / could };
}

function countAttempts(all: readonly SeenAttempt[]): Verdict['attempts'] {
  const tries = (outcome: string) =>
    all.reduce((sum, one) => sum + one.tries.filter((said) => said.outcome === outcome).length, 0);
  return {
    pushed: all.length,
    applied: tries('applied'),
    duplicates: tries('duplicate'),
    traitors: all.filter(({ behaviour }) => behaviour === 'traitor').length,
  };
}

/** Whether it struck in its gap; where attempts are named, the parsers' logs have the last word. */
function isHit({ gap, held, ids = [], from }: FaultLine, attempts: ReadonlyMap<string, SeenAttempt>): boolean {
  if (held < 1) return false;
  if (gap === 'claimed, not pushed') return ids.some((id) => !attempts.has(id));
  if (gap !== 'pushed, not settled') return true;
  return ids.some((id) => {
    const attempt = attempts.get(id);
    return attempt !== undefined && attempt.from < from && !appliedTries(attempt).some(({ saidAt }) => saidAt < from);
  });
}
