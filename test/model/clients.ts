/** What clients and the watcher's other jobs do in a replay: submits, cancels, clean-up, promotion. */
import assert from 'node:assert/strict';
import { type KeyRow, keyColumns } from '../../src/task.ts';
import type { Ground } from './ground.ts';
import type { Scope, State } from './state.ts';
import * as m from './state.ts';

const TRACEPARENT = '00-00000000000000000000000000000001-0000000000000001-00';

/** The tasks of a scope as `task_id/task_version`, in the model's order. */
export const keysOf = ({ tasks }: Scope): string[] => (tasks === 'two' ? ['1/1', '2/1'] : ['1/1', '1/2']);

export function createClients({ db, sql, parts }: Ground, queue: string, scope: Scope) {
  const keys = keysOf(scope);
  const inserter = parts.createInserter({ db, onStored: () => {}, count: () => {} });
  const promoted: KeyRow[] = [];
  return { submit, cancel, clean, promoteHalf, promoteRest: () => order(promoted.splice(0)) };

  function keyOf(index: number): KeyRow {
    const [task_id, task_version] = keys[index]!.split('/') as [string, string];
    return { queue, task_id, task_version };
  }

  /** Of two tasks the first is more urgent, so that which one is claimed first is no choice. */
  async function submit(index: number): Promise<string> {
    const { task_id: taskId, task_version: taskVersion } = keyOf(index);
    const priority = scope.tasks === 'two' ? 1 + 4 * index : 5;
    const rest = { runAt: null, maxRetries: null, traceparent: TRACEPARENT };
    const [outcome] = await inserter.submitBatch([{ queue, taskId, taskVersion, priority, payload: '{}', ...rest }]);
    return outcome!.outcome;
  }

  async function cancel(index: number): Promise<void> {
    const key = keyOf(index);
    const [row] = await db.query<{ has_blocked: boolean }>('cancel_task', Object.values(key));
    assert.ok(row, 'cancelled');
    if (row.has_blocked) await order([key]);
  }

  /** Long after it has ended. */
  async function clean(index: number): Promise<void> {
    const backdate = () =>
      sql.query(
        'UPDATE task_scheduler_tasks SET finished_at = 1 WHERE queue = $1 AND task_id = $2 AND task_version = $3',
        Object.values(keyOf(index)),
      );
    await backdate();
    await db.query('retain_results', [queue]);
    await backdate();
    for (const status of [m.FAILED, m.STOPPED]) await db.query('delete_tasks', [queue, status]);
  }

  /**
   * Due retries become claimable, and versions that a crash left waiting. The promotion is always between its two
   * statements while tasks are claimed: what keeps an older version back then is the claim itself.
   */
  async function promoteHalf(): Promise<void> {
    promoted.push(...(await db.query<KeyRow>('promote_tasks', [])));
    if (scope.tasks === 'versions') await order(await db.query<KeyRow>('find_stranded_versions', []));
  }

  async function order(rows: readonly KeyRow[]): Promise<void> {
    if (rows.length > 0) await db.query('order_versions', keyColumns(rows));
  }
}

/** What a submit is answered (docs/design.md). */
export function submitOutcome({ tasks, floor }: State, index: number): string {
  const highest = tasks.findLastIndex(({ status }) => status !== m.NO_ROW);
  if (Math.max(floor, highest) > index) return 'stale';
  const { status } = tasks[index]!;
  if (status === m.NO_ROW) return 'created';
  if (status === m.PENDING) return 'refreshed';
  return status === m.PROCESSING || status === m.SUCCESS ? 'existing' : 'recreated';
}

/** What a callback is answered. */
export function callbackOutcome(state: State, attempt: m.Attempt): string {
  if (attempt.db === m.OPEN) return m.isCurrent(state, attempt) ? 'applied' : 'stale';
  return attempt.db === m.APPLIED ? 'duplicate' : 'stale';
}
