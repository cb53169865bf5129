/**
 * Carries wake-ups to the other instances, with PostgreSQL's NOTIFY. At most one leaves every few ms however many
 * commits there are; hearing one wakes the trigger. The listening connection is checked, and made anew when it breaks:
 * then one wake-up makes good for those that were missed.
 */
import type { Client } from 'pg';
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';
import { createLoop, withLimit } from '../loop.ts';

export type Announcer = {
  /** Others should look for work. */
  announce(): void;
  start(): Promise<void>;
  stop(): Promise<void>;
  lastOkAgeMs(): number | null;
};

export type AnnouncerDeps = {
  db: Db;
  instanceId: string;
  /** Another instance announced work, or announcements may have been missed. */
  onHeard: () => void;
  log: Log;
};

const CHANNEL = 'docsched_wake';
/** Announcements closer together than this go as one; far below the 200 ms that submit-to-push may take. */
const APART_MS = 20;
const CHECK_EVERY_MS = 2_000;
/** A half-open connection is given up on after this. */
const CHECK_LIMIT_MS = 2_000;

export function createAnnouncer({ db, instanceId, onHeard, log }: AnnouncerDeps): Announcer {
  let client: Client | undefined;
  let lastSent = 0;
  let timer: NodeJS.Timeout | undefined;
  const loop = createLoop({ name: 'listener', intervalMs: CHECK_EVERY_MS, log, runOnce: checkListener });

  return {
    announce,
    async start() {
      await checkListener();
      loop.start();
    },
    async stop() {
      clearTimeout(timer);
      await loop.stop();
      await client?.end().catch(() => {});
    },
    lastOkAgeMs: loop.lastOkAgeMs,
  };

  function announce(): void {
    if (timer) return;
    timer = setTimeout(send, Math.max(0, lastSent + APART_MS - performance.now()));
  }

  /** A failure is not repeated: the periodic trigger of the others makes it good. */
  function send(): void {
    timer = undefined;
    lastSent = performance.now();
    db.query('announce_work', [CHANNEL, instanceId]).catch(() => {});
  }

  async function checkListener(): Promise<void> {
    try {
      client ??= await listen();
      await withLimit(client.query('SELECT 1'), CHECK_LIMIT_MS);
    } catch (error) {
      drop();
      throw error;
    }
  }

  async function listen(): Promise<Client> {
    const fresh = await db.connect();
    fresh.on('notification', ({ payload }) => {
      if (payload !== instanceId) onHeard();
    });
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
