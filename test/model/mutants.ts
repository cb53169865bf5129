/**
 * One table: a place in the service's own texts, how it is broken, and the shortest trace that notices, with the step at
 * which it does. `in` is where the place is looked for; it must be there once (mutate.ts).
 */
import type { StoreName } from './ground.ts';
import type { Change } from './mutate.ts';
import { RETRIES, STORES, TWO_SLOTS, VERSIONS, WATCHERS } from './scopes.ts';
import type { Scope } from './state.ts';

export type Mutant = Change & { scope: Scope; stores: StoreName[]; steps: string[]; notices: string };

const faults = 3;
const ONE: Scope = { ...WATCHERS, faults };
const TWO: Scope = { ...TWO_SLOTS, faults };
const SEVERAL_TRIES: Scope = { ...RETRIES, faults };
const OLD_AND_NEW: Scope = { ...VERSIONS, faults };
const TWO_STORES: Scope = { ...STORES, faults };

/** Attempt 1 is pushed by A, and its parser works on it. */
const PUSHED = ['A acquire', 'A claim', 'A confirm', 'A push-accepted 1'];
const LOST = ['- lose-store 0'];
const REBUILT_BY_B = ['B bump', 'B read-open', 'B rebuild', 'B release-closed', 'B look'];
const EPOCH_CHECK = 'if held[1] ~= ARGV[1] or held[2] ~= server then return false end';

export const MUTANTS: Record<string, Mutant> = {
  'the slot is released before the commit': {
    in: 'src/receiver/settle.ts',
    find: "    const rows = await db.query<HeldAttempt>('settle_attempts', [",
    replace: `    await release(await db.query('explain_attempts', [settlements.map((s) => s.attemptId)]));
    const rows = await db.query<HeldAttempt>('settle_attempts', [`,
    scope: ONE,
    stores: ['postgres'],
    steps: [...PUSHED, 'B callback-success 1'],
    notices: 'B callback-success 1',
  },
  'settle takes an attempt that is closed': {
    in: 'schema/functions/settle',
    find: ' AND a.outcome IS NULL',
    replace: '',
    scope: SEVERAL_TRIES,
    stores: ['postgres'],
    steps: [...PUSHED, 'B callback-failure 1', 'B release 1', 'A acquire', 'A claim', 'B callback-success 1'],
    notices: 'B callback-success 1',
  },
  'settle moves the task by its key, whatever attempt it is under': {
    in: 'schema/functions/settle',
    find: 'AND t.status = 1 AND t.attempt_id = h.attempt_id',
    replace: 'AND t.status = 1',
    scope: { ...OLD_AND_NEW, limit: 2 },
    stores: ['postgres'],
    steps: [
      ...['- submit 0', ...PUSHED, '- cancel 0', '- submit 0'],
      ...['A acquire', 'A claim', 'A confirm', 'B callback-success 1'],
    ],
    notices: 'B callback-success 1',
  },
  'nothing is confirmed': {
    in: 'src/pusher/claim.ts',
    find: 'const lost = await confirm(queue, slots.ids, tasks, limits);',
    replace: 'const lost = new Set<string>();',
    scope: ONE,
    stores: ['redis'],
    steps: ['A acquire', 'B list-stopped', 'B compare', 'A claim', 'B repair', 'B acquire', 'A confirm'],
    notices: 'A claim',
  },
  'confirm keeps what there is no room for': {
    in: 'schema/scripts/limiter_confirm',
    find: 'if value < limit and',
    replace: 'if value <= limit and',
    scope: ONE,
    stores: ['redis'],
    steps: ['A acquire', 'B list-stopped', 'B compare', 'A claim', 'B repair', 'B acquire', 'A confirm'],
    notices: 'A confirm',
  },
  'a rebuild overwrites a later one (Redis)': {
    in: 'schema/scripts/limiter_rebuild',
    find: "if (redis.call('HGET', KEYS[1], 'epoch') or '') ~= ARGV[1] then return 0 end",
    replace: '',
    scope: ONE,
    stores: ['redis'],
    steps: [...LOST, 'A look', 'A bump', 'A read-open', 'B take-over', ...REBUILT_BY_B, 'B acquire', 'A rebuild'],
    notices: 'A rebuild',
  },
  'a rebuild overwrites a later one (PostgreSQL)': {
    in: 'schema/functions/limiter',
    find: 'INSERT INTO limiter_store (epoch) VALUES (p_epoch) ON CONFLICT (only_row) DO NOTHING;',
    replace: `INSERT INTO limiter_store (epoch) VALUES (p_epoch)
      ON CONFLICT (only_row) DO UPDATE SET epoch = excluded.epoch;`,
    scope: ONE,
    stores: ['postgres'],
    steps: [...LOST, 'A look', 'A bump', 'A read-open', 'B take-over', ...REBUILT_BY_B, 'B acquire', 'A rebuild'],
    notices: 'A rebuild',
  },
  'the epoch in force is replaced without comparing it': {
    in: 'schema/queries/limiter_bump_epoch',
    find: 'WHERE s.epoch = $1 AND (',
    replace: 'WHERE $1::text IS NOT NULL AND (',
    scope: ONE,
    stores: ['redis'],
    steps: [...LOST, 'A look', 'B look', 'A bump', 'B bump'],
    notices: 'B bump',
  },
  'a rebuild leaves what closed meanwhile': {
    in: 'src/limiter/opening.ts',
    find: 'const count = await backend.release(epoch, queue, batch);',
    replace: 'const count = batch.length;',
    scope: ONE,
    stores: ['redis'],
    steps: [
      ...[...PUSHED, ...LOST, 'A look', 'A bump', 'A read-open', 'B callback-success 1', 'B release 1'],
      ...['A rebuild', 'A release-closed'],
    ],
    notices: 'A release-closed',
  },
  'no version floor': {
    in: 'schema/functions/submit',
    find: 'THEN f.task_version END',
    replace: 'THEN NULL::bigint END',
    scope: OLD_AND_NEW,
    stores: ['postgres'],
    steps: ['- submit 1', ...PUSHED, 'B callback-success 1', '- clean 1', '- submit 0'],
    notices: '- submit 0',
  },
  'claim without the higher-version check': {
    in: 'schema/functions/claim',
    find: 'h.task_version > t.task_version',
    replace: 'h.task_version > t.task_version AND false',
    scope: OLD_AND_NEW,
    stores: ['postgres'],
    steps: [
      ...[
        '- submit 0',
        'A acquire',
        'A claim',
        'A confirm',
        'A push-busy 1',
        'A settle 1',
        'A release 1',
        '- submit 1',
      ],
      ...['A acquire', 'A claim'],
    ],
    notices: 'A claim',
  },
  'claim under any epoch': {
    in: 'schema/functions/claim',
    find: 'WHERE s.epoch = p_epoch',
    replace: 'WHERE p_epoch IS NOT NULL',
    scope: TWO_STORES,
    stores: ['redis', 'postgres'],
    steps: ['B take-over', ...REBUILT_BY_B, 'A acquire', 'A claim'],
    notices: 'A claim',
  },
  'slots that expire': {
    in: 'schema/scripts/limiter_acquire',
    find: "local value = redis.call('ZCARD', KEYS[2])",
    replace: `redis.call('ZREMRANGEBYSCORE', KEYS[2], 0, now - 10000)
local value = redis.call('ZCARD', KEYS[2])`,
    scope: { ...TWO, maxRetries: 1 },
    stores: ['redis'],
    steps: [
      ...['A acquire', 'A claim', 'A confirm', 'A push-accepted 1', 'A push-accepted 2', 'B callback-failure 1'],
      ...['B list-stopped', 'B release 1', 'A acquire'],
    ],
    notices: 'A acquire',
  },
  'acquire under any epoch': {
    in: 'schema/scripts/limiter_acquire',
    find: EPOCH_CHECK,
    replace: '',
    scope: ONE,
    stores: ['redis'],
    steps: [...LOST, 'A acquire'],
    notices: 'A acquire',
  },
  'acquire from a store that was restarted': {
    in: 'schema/scripts/limiter_acquire',
    find: ' or held[2] ~= server then',
    replace: ' then',
    scope: ONE,
    stores: ['redis'],
    steps: ['- age-store 0', 'A acquire'],
    notices: 'A acquire',
  },
  'a store that was restarted is taken for the one in force': {
    in: 'schema/scripts/limiter_check',
    find: 'held[2] == server and 1 or 0',
    replace: '1',
    scope: ONE,
    stores: ['redis'],
    steps: ['- age-store 0', 'A acquire', 'A look'],
    notices: 'A look',
  },
  'confirm under any epoch': {
    in: 'schema/scripts/limiter_confirm',
    find: EPOCH_CHECK,
    replace: '',
    scope: ONE,
    stores: ['redis'],
    steps: ['A acquire', 'A claim', ...LOST, 'A confirm'],
    notices: 'A confirm',
  },
  'a time-out does not look at the deadline again': {
    in: 'schema/functions/settle',
    find: 'a.deadline < docsched_now()',
    replace: 'a.deadline IS NOT NULL',
    scope: ONE,
    stores: ['postgres'],
    steps: [...PUSHED, '- deadline 1', 'B find-late', '- progress 1', 'B close-late'],
    notices: 'B close-late',
  },
  'a repair drops what was touched since (Redis)': {
    in: 'schema/scripts/limiter_repair',
    find: 'if touched_at and math.abs(touched_at) <= cutoff then',
    replace: 'if touched_at then',
    scope: ONE,
    stores: ['redis'],
    steps: ['A acquire', 'B list-stopped', 'B compare', 'A claim', 'A confirm', 'B repair'],
    notices: 'B repair',
  },
  'a repair drops what was touched since (PostgreSQL)': {
    in: 'schema/functions/limiter',
    find: ' AND s.touched_at <= p_cutoff',
    replace: '',
    scope: ONE,
    stores: ['postgres'],
    steps: ['A acquire', 'B list-stopped', 'B compare', 'A claim', 'A confirm', 'B repair'],
    notices: 'B repair',
  },
  'a reconciliation drops young slots': {
    in: 'src/limiter/reconcile.ts',
    find: 'Math.floor(listed.takenAt) - acquireTtlMs',
    replace: 'Math.floor(listed.takenAt)',
    scope: { ...TWO, receivers: [0, 1] },
    stores: ['redis'],
    steps: [
      ...[
        'A acquire',
        'A claim',
        'A confirm',
        'A push-accepted 1',
        'A push-accepted 2',
        'B callback-success 1',
        'B crash',
      ],
      ...['B look', 'A callback-success 2', 'B list', 'B compare', 'B repair'],
    ],
    notices: 'B repair',
  },
  'releases that could not be delivered are forgotten': {
    in: 'src/limiter/undelivered.ts',
    find: 'kept.set(queue, ofQueue);',
    replace: '',
    scope: ONE,
    stores: ['redis'],
    steps: ['A acquire-unanswered', 'A look'],
    notices: 'A look',
  },
  'unused slots are forgotten where the limiter is closed at the confirmation': {
    in: 'src/limiter/limiter.ts',
    find: 'undelivered.add(queue, unused);',
    replace: '',
    scope: { ...OLD_AND_NEW, limit: 2, receivers: [0, 1] },
    stores: ['redis'],
    steps: [
      ...['- submit 0', ...PUSHED, '- submit 1', 'A acquire', 'A callback-success 1', '- cancel 1', 'A claim'],
      ...['A release-unanswered 1', 'A confirm', 'A look'],
    ],
    notices: 'A look',
  },
  'a claim without an answer counts as none': {
    in: 'src/pusher/claim.ts',
    find: 'return await lookUp(slots.ids, error);',
    replace: 'await limiter.release(queue.queue, slots.ids); throw error;',
    scope: ONE,
    stores: ['postgres'],
    steps: ['A acquire', 'A claim-unanswered', 'A look-up', 'A confirm'],
    notices: 'A claim-unanswered',
  },
  'a cancelled task is pushed after a look-up': {
    in: 'src/pusher/claim.ts',
    find: 'new Set([...lost, ...cancelled])',
    replace: 'new Set(lost)',
    scope: ONE,
    stores: ['postgres'],
    steps: ['A acquire', 'A claim-unanswered', '- cancel 0', 'A look-up', 'A confirm'],
    notices: 'A confirm',
  },
  'a push in doubt is given back': {
    in: 'src/pusher/outcome.ts',
    find: "      case 'in_doubt':\n        return;\n      case 'broken':",
    replace: "      case 'in_doubt':\n      case 'broken':",
    scope: ONE,
    stores: ['postgres'],
    steps: ['A acquire', 'A claim', 'A confirm', 'A push-in-doubt 1'],
    notices: 'A push-in-doubt 1',
  },
};
