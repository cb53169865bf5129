/**
 * The targets of one queue, as one instance sees them: how many attempts each has open, and which of them take pushes.
 *
 *   closed -> open       cannot be used at all (broken), or too many pushes failed (circuits.ts): left alone for 1 s,
 *                        2 s .. 60 s, by all instances. Or busy: for as long as it says, 60 s at most
 *   open -> half_open    after that one push at a time, from all instances together, shows whether it is back
 *   half_open -> open    it is not: the next try is later
 *   -> ramping           a clear answer, or no longer busy: it takes pushes again, few at first, more each second
 *   ramping -> closed    10 s later
 *
 * The record is in PostgreSQL (table targets) and the claim obeys it; the copy here spares claims that would get nothing.
 * Tasks wait meanwhile and use up no retries. A push that fails in half_open is settled like any other, so a document that
 * breaks its parser cannot hold the door shut: the next try is another one. An instance that dies with the only push of a
 * half-open target on its way: the next try comes when it would have come after a failure.
 */
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';
import type { Queue, Target } from '../queues.ts';
import { storable } from '../wire.ts';
import { withoutWords } from './answer.ts';
import { createCircuits, type TargetRecord } from './circuits.ts';
import type { ClaimedTask } from './claim.ts';

/** What a claim learned. */
export type Seen = {
  /** performance.now() before it. */
  at: number;
  /** Asked for; those not in `records` may take all. */
  urls: readonly string[];
  /** Null when nothing was learned. */
  records: readonly TargetRecord[] | null;
  claimed: readonly ClaimedTask[];
  /** The targets took less than there were slots. */
  short: boolean;
};

export type TargetState = { url: string; state: 'closed' | 'open' | 'half_open' | 'ramping'; failures: number };

export type Targets = {
  /** Where there is a choice: counts the open attempts of each target anew, once a second. Never throws. */
  look(targets: readonly Target[]): Promise<void>;
  /** Those that a claim may ask for, and how many attempts each has open; none when all are left alone. */
  ask(targets: readonly Target[]): { urls: string[]; outstanding: number[] };
  seen(seen: Seen): void;
  /** It gave a clear answer: any HTTP answer that is not a failure of the target. */
  answered(task: ClaimedTask): void;
  /** A refused try (5xx), a time-out, a reset: the breaker judges. */
  failed(task: ClaimedTask, error: string): Promise<void>;
  /** It cannot be connected, or answers like something else than a parser: left alone at once. */
  broken(task: ClaimedTask, error: string): Promise<void>;
  /** It asked for patience. */
  busy(task: ClaimedTask, forMs: number): Promise<void>;
  /** Attempts ended, whichever way; `target` is the URL. */
  closed(attempts: readonly { target: string }[]): void;
  /** One sentence while a target is broken; else null. */
  trouble(): string | null;
  /** Of each target of the queue. */
  states(): TargetState[];
  stop(): void;
};

export type TargetsDeps = {
  db: Db;
  /** The queue's settings now. */
  queue: () => Queue | undefined;
  /** Runs another round of the pusher. */
  wake: () => void;
  /** Its lines name the queue. */
  log: Log;
};

const BUSY_MAX_MS = 60_000;
const MAX_ERROR_CHARACTERS = 2_000;
/** How old the count of open attempts may be, and what is known of a target that does not take all. */
const LOOK_EVERY_MS = 1_000;
/** A ramping target takes more all the time: this often it is worth a claim. */
const RAMP_EVERY_MS = 100;
/** The timer may run a little ahead of PostgreSQL's clock: then the claim only says how much is left. */
const MIN_WAIT_MS = 20;

export function createTargets({ db, queue, wake, log }: TargetsDeps): Targets {
  const circuits = createCircuits();
  const outstanding = new Map<string, number>();
  const writing = new Map<string, Promise<unknown>>();
  let lookedAt = Number.NEGATIVE_INFINITY;
  let looking: Promise<void> | undefined;
  let timer: NodeJS.Timeout | undefined;
  let timerAt = Number.POSITIVE_INFINITY;
  let stopped = false;

  return {
    look: async (targets) => (targets.length > 1 && isTimeToLook() ? look() : undefined),
    ask(targets) {
      const urls = targets.map(({ url }) => url).filter((url) => circuits.stateOf(url).state !== 'open');
      // Of those with as many open attempts it is not always the same that is asked first.
      const first = Math.floor(Math.random() * urls.length);
      const asked = [...urls.slice(first), ...urls.slice(0, first)];
      return { urls: asked, outstanding: asked.map((url) => outstanding.get(url) ?? 0) };
    },
    seen({ at, urls, records, claimed, short }) {
      for (const { target } of claimed) count(target.url, 1);
      if (records) learn(at, urls, records);
      if (short) wakeIn(waitMs() ?? RAMP_EVERY_MS);
    },
    answered(task) {
      if (circuits.passed(task)) void clear(task);
    },
    async failed(task, error) {
      if (circuits.failed(task)) await open(task, error);
    },
    broken: open,
    async busy(task, forMs) {
      if (!circuits.isOld(task)) await write('slow_target', task, Math.round(Math.min(forMs, BUSY_MAX_MS)));
    },
    closed(attempts) {
      for (const { target } of attempts) count(target, -1);
    },
    trouble,
    states,
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };

  function urlsNow(): string[] {
    return (queue()?.targets ?? []).map(({ url }) => url);
  }

  function count(url: string, change: 1 | -1): void {
    outstanding.set(url, Math.max(0, (outstanding.get(url) ?? 0) + change));
  }

  /** How long until the first of those that do not take all takes more, ms; null when each takes all. */
  function waitMs(): number | null {
    const waits = urlsNow()
      .map(circuits.waitMs)
      .filter((ms) => ms !== null)
      .map((ms) => (ms > 0 ? ms : RAMP_EVERY_MS));
    return waits.length === 0 ? null : Math.ceil(Math.min(...waits));
  }

  function learn(at: number, urls: readonly string[], records: readonly TargetRecord[]): void {
    for (const url of circuits.learn(at, urls, records)) recovered(url);
    lookLater();
  }

  /** When the next of those left alone may be tried, and once a second while there are any that do not take all. */
  function lookLater(): void {
    const waits = urlsNow().map((url) => circuits.waitMs(url) || LOOK_EVERY_MS);
    if (!circuits.allClosed()) wakeIn(Math.min(...waits, LOOK_EVERY_MS));
  }

  function recovered(url: string): void {
    log.info({ event: 'target_recovered', target: shown(url) });
  }

  /** Should it fail, the next look finds the target as broken as before. */
  async function clear(task: ClaimedTask): Promise<void> {
    recovered(task.target.url);
    wakeIn(LOOK_EVERY_MS);
    try {
      await db.query('clear_target', [task.target.url, task.started_at]);
      wake();
    } catch (error) {
      log.warn({ event: 'clear_target_failed', error: (error as Error).message });
    }
  }

  async function open(task: ClaimedTask, error: string): Promise<void> {
    if (circuits.isOld(task)) return;
    const record = await write('break_target', task, storable(error, MAX_ERROR_CHARACTERS));
    if (!record) return;
    const { failures, wait_ms: next_try_ms } = record;
    const target = shown(task.target.url);
    log.warn({ event: 'target_broken', target, error: withoutWords(error), failures, next_try_ms });
  }

  /** Once for pushes that end together: undefined for all but the first, and when the record tells as much already. */
  async function write(name: 'break_target' | 'slow_target', task: ClaimedTask, what: string | number) {
    const { url } = task.target;
    const underWay = writing.get(url);
    if (underWay) return void (await underWay);
    // Should it fail, the next push finds out the same.
    const writes = db
      .query<TargetRecord>(name, [url, task.started_at, what])
      .catch((error) => log.warn({ event: 'write_target_failed', statement: name, error: error.message }))
      .finally(() => writing.delete(url));
    writing.set(url, writes);
    const [record] = (await writes) ?? [];
    if (record) learn(performance.now(), [url], [record]);
    return record;
  }

  function isTimeToLook(): boolean {
    return performance.now() - lookedAt >= LOOK_EVERY_MS;
  }

  function look(): Promise<void> {
    looking ??= lookNow()
      .catch((error) => log.warn({ event: 'find_targets_failed', error: error.message }))
      .finally(() => {
        looking = undefined;
      });
    return looking;
  }

  async function lookNow(): Promise<void> {
    const at = performance.now();
    lookedAt = at;
    const urls = urlsNow();
    type Found = Omit<TargetRecord, 'url'> & { asked: string; outstanding: number; url: string | null };
    const rows = await db.query<Found>('find_targets', [queue()?.queue, urls]);
    for (const row of rows) outstanding.set(row.asked, row.outstanding);
    circuits.keep(urls);
    const records = rows.filter((row): row is Found & { url: string } => row.url !== null);
    learn(at, urls, records);
  }

  function wakeIn(ms: number): void {
    const at = performance.now() + Math.max(ms, MIN_WAIT_MS);
    if (stopped || at >= timerAt) return;
    clearTimeout(timer);
    timerAt = at;
    timer = setTimeout(tick, at - performance.now());
  }

  /** While a target does not take all; by itself, for others may have mended it while this instance had nothing to claim. */
  async function tick(): Promise<void> {
    timerAt = Number.POSITIVE_INFINITY;
    if (isTimeToLook()) await look();
    if (circuits.allClosed() || states().some(({ state }) => state !== 'open')) wake();
    // It may have come a moment before a wait was over.
    lookLater();
  }

  function states(): TargetState[] {
    return urlsNow().map(circuits.stateOf);
  }

  function trouble(): string | null {
    const [first, ...more] = states().filter(({ failures }) => failures > 0);
    if (!first) return null;
    const { url, failures } = first;
    const times = failures === 1 ? 'once' : `${failures} times in a row`;
    const others = more.length === 0 ? '' : `; and ${more.length} more of ${urlsNow().length} targets`;
    return `${shown(url)} failed ${times} and gets one push at a time until it answers: ${circuits.errorOf(url)}${others}`;
  }
}

/** Without its query, which may hold a secret. */
const shown = (url: string): string => new URL(url).origin + new URL(url).pathname;
