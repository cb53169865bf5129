/**
 * Where things stand at this moment, between the steps of an attempt: read from PostgreSQL and asked of the parsers.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import type { Instance } from './cluster.ts';
import { now } from './journal.ts';
import type { Parsers } from './parsers.ts';
import type { Postgres } from './postgres.ts';

/** How long a gap is looked for before the fault strikes beside it: the limiter may be away for some of it. */
const LOOK_FOR_MS = 12_000;
const LOOK_AGAIN_MS = 50;
/** By then everybody else has pushed what they had claimed, and what the victim had written to a socket has been read. */
const IN_FLIGHT_MS = 400;
/** Claimed longer ago than this, an attempt is not on its way but left behind by an earlier fault. */
const FRESH_MS = 400;

export function createGaps({ postgres, parsers }: { postgres: Postgres; parsers: Parsers }) {
  return { ask, openAttempts: () => openAttempts(), claimedNotPushed, pushedNotSettled };

  /** Asked again while PostgreSQL is away. */
  async function ask<Row extends pg.QueryResultRow>(text: string, params: unknown[] = []): Promise<Row[]> {
    for (;;) {
      const found = await postgres.sql.query<Row>(text, params).catch(() => null);
      if (found) return found.rows;
      await sleep(50);
    }
  }

  /** Open attempts, those claimed within the last `freshMs` when given. */
  async function openAttempts(freshMs?: number): Promise<string[]> {
    const rows = await ask<{ attempt_id: string }>(
      'SELECT attempt_id FROM attempts WHERE closed_at IS NULL AND claimed_at > $1 + docsched_now()',
      [freshMs === undefined ? -1e12 : -freshMs],
    );
    return rows.map((row) => row.attempt_id);
  }

  /** Of a frozen instance: everybody else has pushed by the second look what they had claimed at the first. */
  async function claimedNotPushed(): Promise<string[]> {
    const first = await openAttempts(FRESH_MS);
    if (first.length === 0) return [];
    await sleep(IN_FLIGHT_MS);
    const seen = await parsers.seen(first);
    const still = new Set(await openAttempts());
    return first.filter((id) => still.has(id) && !seen.has(id));
  }

  async function pushedNotSettled({ number }: Instance): Promise<string[]> {
    const open = await openAttempts();
    const seen = await parsers.seen(open);
    return open.filter((id) => seen.get(id) === number);
  }
}

/** Looks until there is something, for a while. */
export async function eventuallySome<T>(look: () => Promise<T[]>, forMs = LOOK_FOR_MS): Promise<T[]> {
  for (const giveUpAt = now() + forMs; ; await sleep(LOOK_AGAIN_MS)) {
    const found = await look();
    if (found.length > 0 || now() > giveUpAt) return found;
  }
}
