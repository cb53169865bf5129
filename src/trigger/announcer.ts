/**
 * Carries wake-ups to the other instances, with PostgreSQL's NOTIFY. At most one leaves every few ms however many
 * commits there are; it names the queues that have work. docsched_enqueue sends the same from a submitter's own
 * transaction. The listening connection is checked by a notification to itself, and made anew when none comes through
 * (half-open, or a pooler that swallows LISTEN): each new one begins with one wake-up of everybody, which makes good for
 * those that were missed.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Client } from 'pg';
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';
import { createLoop, withLimit } from '../loop.ts';

export type Announcer = {
  /** Others should look for work in these queues. `walk`: it may stand anywhere in the line, not only at its end. */
  announce(queues: Iterable<string>, walk: boolean): void;
  start(): Promise<void>;
  /** Sends what was announced last. */
  stop(): Promise<void>;
  lastOkAgeMs(): number | null;
  trouble(): string | null;
};

export type AnnouncerDeps = {
  db: Db;
  instanceId: string;
  /** Another instance announced work in this queue; without one announcements may have been missed: look everywhere. */
  onHeard: (queue?: string, walk?: boolean) => void;
  log: Log;
};

const CHANNEL = 'docsched_wake';
/** Announcements closer together than this go as one; far below the 200 ms that submit-to-push may take. */
const APART_MS = 20;
const CHECK_EVERY_MS = 2_000;
/** A connection over which no notification comes in this time is given up on. */
const CHECK_LIMIT_MS = 2_000;
/** A notification holds 8,000 bytes; with more queues than this it says "everywhere". */
const MAX_NAMED = 100;
/** Instead of queue names: everywhere; and: only a check of the sender's own connection. */
const EVERYWHERE = '*';
/** Ends the name of a queue whose line is as it was, but for new work at its end or a slot that is free. */
const AT_THE_END = '+';
const CHECK = '?';

export function createAnnouncer({ db, instanceId, onHeard, log }: AnnouncerDeps): Announcer {
  let client: Client | undefined;
  /** By queue: whether what is new may stand anywhere. */
  let pending = new Map<string, boolean>();
  let lastSent = 0;
  let timer: NodeJS.Timeout | undefined;
  let sending: Promise<unknown> = Promise.resolve();
  let onCheckHeard: () => void = () => {};
  const loop = createLoop({ name: 'listener', intervalMs: CHECK_EVERY_MS, log, runOnce: checkListener });

  return {
    announce,
    async start() {
      // Should it fail, the loop says so, and tries again.
      await checkListener().catch(() => {});
      loop.start();
    },
    async stop() {
      await loop.stop();
      await client?.end().catch(() => {});
      if (timer) send();
      await sending;
    },
    lastOkAgeMs: loop.lastOkAgeMs,
    trouble: loop.trouble,
  };

  function announce(queues: Iterable<string>, walk: boolean): void {
    for (const queue of queues) pending.set(queue, walk || pending.get(queue) === true);
    timer ??= setTimeout(send, Math.max(0, lastSent + APART_MS - performance.now()));
  }

  /** A failure is not repeated: the periodic trigger of the others makes it good. */
  function send(): void {
    clearTimeout(timer);
    timer = undefined;
    lastSent = performance.now();
    const names = [...pending].map(([queue, walk]) => (walk ? queue : queue + AT_THE_END));
    const named = names.length > MAX_NAMED ? EVERYWHERE : names.join(' ');
    pending = new Map();
    sending = db.query('announce_work', [CHANNEL, `${instanceId} ${named}`]).catch(() => {});
  }

  function hear(payload = ''): void {
    const [sender, ...queues] = payload.split(' ');
    if (sender === instanceId) {
      if (queues[0] === CHECK) onCheckHeard();
    } else if (queues[0] === EVERYWHERE) onHeard();
    else
      for (const queue of queues)
        if (queue.endsWith(AT_THE_END)) onHeard(queue.slice(0, -AT_THE_END.length), false);
        else if (queue !== CHECK) onHeard(queue, true);
  }

  async function checkListener(): Promise<void> {
    try {
      client ??= await listen();
      const heard = new Promise<void>((resolve) => {
        onCheckHeard = resolve;
      });
      await withLimit(db.query('announce_work', [CHANNEL, `${instanceId} ${CHECK}`]), CHECK_LIMIT_MS);
      const late = sleep(CHECK_LIMIT_MS, true, { ref: false });
      if (await Promise.race([heard, late]))
        throw new Error('no notification comes through; if DATABASE_URL leads to a pooler, set DATABASE_DIRECT_URL');
    } catch (error) {
      drop();
      throw error;
    }
  }

  async function listen(): Promise<Client> {
    const fresh = await db.connect();
    fresh.on('notification', ({ payload }) => hear(payload));
    fresh.on('error', () => {
      if (client === fresh) drop();
    });
    try {
      await withLimit(fresh.query(`LISTEN ${CHANNEL}`), CHECK_LIMIT_MS);
    } catch (error) {
      fresh.end().catch(() => {});
      throw error;
    }
    onHeard();
    return fresh;
  }

  function drop(): void {
    const broken = client;
    client = undefined;
    broken?.end().catch(() => {});
  }
}
