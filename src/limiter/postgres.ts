/**
 * Slots in PostgreSQL, for installations without Redis: unlogged tables changed by the docsched_limiter_* functions
 * (schema/migrations/0001_spine.sql). A queue's row in limiter_usage serialises the changes of its slots.
 */
import type { Db, Row } from '../db.ts';
import type { Backend } from './backend.ts';

export function createPostgresBackend({ db }: { db: Db }): Backend {
  const first = async <R extends Row>(name: string, params: readonly unknown[]): Promise<R | undefined> =>
    (await db.query<R>(name, params))[0];
  return {
    name: 'postgres',
    check: async () => {
      const row = await first<{ epoch: string }>('limiter_find_epoch', []);
      return { epoch: row?.epoch ?? null, valid: row !== undefined };
    },
    acquire: async (epoch, queue, ids, limit) =>
      (await first<{ granted: string[] | null }>('limiter_acquire', [epoch, queue, limit, ids]))!.granted,
    confirm: async (epoch, queue, claimed, unused, limit) =>
      (await first<{ lost: string[] | null }>('limiter_confirm', [epoch, queue, limit, claimed, unused]))!.lost,
    release: async (epoch, queue, ids) =>
      (await first<{ released: number | null }>('limiter_release', [epoch, queue, ids]))!.released,
    usage: async (epoch, queues) =>
      (await first<{ in_use: number[] }>('limiter_count_usage', [epoch, queues]))?.in_use ?? null,
    list: async (epoch) => {
      type Listed = { taken_at: number; queue: string | null; ids: string[]; touched_at: number[] };
      const rows = await db.query<Listed>('limiter_list_slots', [epoch]);
      if (rows[0] === undefined) return null;
      const slots = new Map<string, Map<string, number>>();
      for (const { queue, ids, touched_at } of rows)
        if (queue !== null) slots.set(queue, new Map(ids.map((id, i) => [id, touched_at[i]!])));
      return { takenAt: rows[0].taken_at, slots };
    },
    repair: async (epoch, queue, cutoff, drop, add) =>
      (await first<{ dropped: number; added: string[] }>('limiter_repair', [epoch, queue, cutoff, drop, add])) ?? null,
    rebuild: async (observed, epoch, open) => {
      const queues = [...open].flatMap(([queue, ids]) => ids.map(() => queue));
      const ids = [...open.values()].flat();
      return (await first<{ rebuilt: boolean }>('limiter_rebuild', [observed, epoch, queues, ids]))!.rebuilt;
    },
  };
}
