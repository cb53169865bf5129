/**
 * Slots in PostgreSQL, for installations without Redis: unlogged tables changed by the docsched_limiter_* functions
 * (schema/functions/limiter.sql). A queue's row in limiter_usage serialises the changes of its slots.
 */
import type { Db, Row } from '../db.ts';
import type { Backend, Slot } from './backend.ts';

export function createPostgresBackend({ db }: { db: Db }): Backend {
  const first = async <R extends Row>(name: string, params: readonly unknown[]): Promise<R | undefined> =>
    (await db.query<R>(name, params))[0];
  return {
    name: 'postgres',
    check: async () => {
      const row = await first<{ epoch: string }>('limiter_find_epoch', []);
      return { epoch: row?.epoch ?? null, valid: row !== undefined };
    },
    acquire: async (epoch, queue, ids, { limit, retries, global, guaranteed }, wantTtlMs) => {
      const params = [epoch, queue, ids, limit, retries, global, guaranteed, wantTtlMs];
      const row = await first<{ granted: string[]; retries: number }>('limiter_acquire', params);
      return row === undefined ? null : { ids: row.granted, retries: row.retries };
    },
    confirm: async (epoch, queue, batch, { limit, retries, global }) => {
      const params = [epoch, queue, batch.retries, batch.fresh, batch.unused, limit, retries, global];
      return (await first<{ lost: string[] | null }>('limiter_confirm', params))!.lost;
    },
    release: async (epoch, queue, ids) =>
      (await first<{ released: number | null }>('limiter_release', [epoch, queue, ids]))!.released,
    usage: async (epoch, queues) =>
      (await first<{ in_use: number[] }>('limiter_count_usage', [epoch, queues]))?.in_use ?? null,
    list: async (epoch) => {
      type Listed = { taken_at: number; queue: string | null; ids: string[]; touched_at: number[]; retry: boolean[] };
      const rows = await db.query<Listed>('limiter_list_slots', [epoch]);
      if (rows[0] === undefined) return null;
      const slots = new Map<string, Map<string, Slot>>();
      for (const { queue, ids, touched_at, retry } of rows)
        if (queue !== null)
          slots.set(queue, new Map(ids.map((id, i) => [id, { touchedAt: touched_at[i]!, retry: retry[i]! }])));
      return { takenAt: rows[0].taken_at, slots };
    },
    repair: async (epoch, queue, cutoff, drop, { fresh, retries }) => {
      const params = [epoch, queue, cutoff, drop, retries, fresh];
      return (await first<{ dropped: number; added: string[] }>('limiter_repair', params)) ?? null;
    },
    rebuild: async (observed, epoch, open) => {
      const lanes = [...open].flatMap(([queue, { fresh, retries }]) => [
        { queue, ids: fresh, retry: false },
        { queue, ids: retries, retry: true },
      ]);
      const inStep = <T>(of: (lane: (typeof lanes)[number]) => T): T[] =>
        lanes.flatMap((lane) => lane.ids.map(() => of(lane)));
      const params = [
        observed,
        epoch,
        inStep(({ queue }) => queue),
        lanes.flatMap(({ ids }) => ids),
        inStep(({ retry }) => retry),
      ];
      return (await first<{ rebuilt: boolean }>('limiter_rebuild', params))!.rebuilt;
    },
  };
}
