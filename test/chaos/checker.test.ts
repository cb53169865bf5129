/** The judge of chaos runs finds each kind of breach in logs that hold one, and none in logs that hold none. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { check } from './checker.ts';
import {
  fault,
  idOf,
  type Kept,
  keptRun,
  LIMIT,
  PLAN,
  pushed,
  reported,
  resultOf,
  stored,
  submitted,
  TASKS,
} from './evidence-world.ts';

const verdictOf = (change: (run: Kept) => void, plan = PLAN) => {
  const run = keptRun();
  change(run);
  return check(run, plan);
};

/** The rules broken, each once. */
async function broken(change: (run: Kept) => void, plan = PLAN): Promise<string[]> {
  const { breaches } = await verdictOf(change, plan);
  return [...new Set(breaches.map(({ rule }) => rule))].toSorted();
}

/** A try of attempt `n` that nobody answered. */
const lostTry = (n: number, t: number) => reported(n, t, 'lost').slice(0, 1);

test('a run that kept every promise is found to have kept them, and its figures are right', async () => {
  const { breaches, tasks, attempts, queues, faults } = await verdictOf(() => {});
  assert.deepEqual(breaches, []);
  assert.deepEqual(tasks, { accepted: TASKS, success: TASKS, failed: 0, stopped: 0, stale: 0 });
  assert.equal(attempts.applied, TASKS);
  assert.equal(queues[0]!.most, LIMIT);
  assert.ok(queues[0]!.atLimit! > 0.98, `${queues[0]!.atLimit}`);
  // Attempt 4 is pushed at 2000, and attempt 2 is answered at 1995.
  assert.deepEqual(faults, [
    { kind: 'SIGKILL', fired: 1, hits: 1, recovery: { medianMs: 2_000 - 1_501, maxMs: 2_000 - 1_501 } },
  ]);
});

test('a task that was accepted and is gone is found', async () => {
  assert.deepEqual(await broken((run) => run.submits.push(submitted(TASKS))), ['lost']);
});

test('a task that has not ended is found', async () => {
  for (const status of [0, 1])
    assert.deepEqual(
      await broken((run) => {
        run.submits.push(submitted(TASKS));
        run.tasks.push(stored(TASKS, { status, result: null }));
      }),
      ['lost'],
    );
});

test('one attempt above the limit is found, however short it was', async () => {
  const more = (from: number) => (run: Kept) => {
    run.submits.push(submitted(TASKS));
    run.pushes.push(pushed(TASKS, from), ...reported(TASKS, from + 5));
    run.tasks.push(stored(TASKS));
    run.attempts.push({ ...run.attempts[0]!, attempt_id: idOf(TASKS), task_id: String(TASKS) });
  };
  assert.deepEqual(await broken(more(500)), ['over the limit']);
  // Between the reports of two and the pushes of the next two there is room.
  assert.deepEqual(await broken(more(992)), []);
});

test('an attempt counts against the limit until the report that was applied, not until one that was not', async () => {
  const reportedBefore = (outcome: 'applied' | 'lost') => (run: Kept) => {
    // Attempt 0 reports at 300 in vain or not, and again at 990; attempt 40 is pushed in between.
    const kept = run.pushes.filter((line) => line.e === 'push' || !('a' in line) || line.a !== idOf(0));
    const first = outcome === 'applied' ? reported(0, 300) : lostTry(0, 300);
    const second = reported(0, 990, outcome === 'applied' ? 'duplicate' : 'applied', 2);
    run.pushes = [...kept, ...first, ...second, pushed(TASKS, 500), ...reported(TASKS, 600)];
    run.submits.push(submitted(TASKS));
    run.tasks.push(stored(TASKS));
    run.attempts.push({ ...run.attempts[0]!, attempt_id: idOf(TASKS), task_id: String(TASKS) });
  };
  assert.deepEqual(await broken(reportedBefore('applied')), []);
  assert.deepEqual(await broken(reportedBefore('lost')), ['over the limit']);
});

test('an attempt counts until the deadline that its parser was told last', async () => {
  const withDeadline = (told: number | null) => (run: Kept) => {
    run.pushes.push(pushed(TASKS, -1_000, { d: 100 }));
    if (told !== null) run.pushes.push({ e: 'told', t: 0, a: idOf(TASKS), d: told });
    // Attempt 1 comes once the deadline has passed.
    for (const line of run.pushes) if (line.e === 'push' && line.a === idOf(1)) line.t = 150;
    run.submits.push(submitted(TASKS));
    run.tasks.push(stored(TASKS, { status: 3, reason: 'processing_expired', result: null }));
    run.attempts.push({
      ...run.attempts[0]!,
      attempt_id: idOf(TASKS),
      task_id: String(TASKS),
      outcome: 'processing_expired',
    });
  };
  const plan = { ...PLAN, fateOf: () => 'doomed' as const };
  assert.deepEqual(await broken(withDeadline(null), plan), ['did too little']);
  assert.deepEqual(await broken(withDeadline(200), plan), ['did too little', 'over the limit']);
});

test('two applied reports of one attempt are found', async () => {
  assert.deepEqual(await broken((run) => run.pushes.push(...reported(0, 1_100, 'applied', 2))), ['applied twice']);
});

test('an applied report that is not what is stored is found', async () => {
  const other = JSON.stringify('of somebody else');
  assert.deepEqual(
    await broken((run) => {
      run.tasks[0]!.result = other;
    }),
    ['applied and not kept', 'wrong result'],
  );
  assert.deepEqual(
    await broken((run) => {
      run.attempts[0]!.outcome = 'processing_expired';
    }),
    ['applied and not kept', 'wrong result'],
  );
});

test('a result that no attempt reported is found, also when no answer was seen', async () => {
  const unseen = (result: string) => (run: Kept) => {
    run.pushes = run.pushes.filter((line) => !(line.e === 'said' && line.a === idOf(0)));
    run.tasks[0]!.result = JSON.stringify(result);
  };
  assert.deepEqual(await broken(unseen(resultOf(0))), []);
  assert.deepEqual(await broken(unseen('made up')), ['wrong result']);
});

test('the same attempt pushed twice is found', async () => {
  assert.deepEqual(await broken((run) => run.pushes.push(pushed(0, 500))), ['pushed twice']);
});

test('an older version accepted after a newer one is found, and one that was sent before is not', async () => {
  const older = (sentAt: number) => (run: Kept) => {
    run.submits.push(submitted(0, { v: '4', s: sentAt, t: sentAt + 1 }));
    run.tasks.push(stored(0, { task_version: '4', status: 4, reason: 'cancelled', result: null }));
    run.submits.push({ e: 'cancel', t: 0, q: 'q', i: '0', v: '4' });
  };
  // Version 5 was answered at 2.
  assert.deepEqual(await broken(older(3)), ['version regress']);
  assert.deepEqual(await broken(older(1.5)), []);
});

test('an older version that was claimed while a newer one had long been waiting is found', async () => {
  const claimedFirst = (claimedAt: number) => (run: Kept) => {
    // Version 5 of task 39 was accepted at 2 and is claimed at 19000.
    run.submits.push(submitted(39, { v: '4', s: 0, t: 1, w: 1 }));
    run.tasks.push(stored(39, { task_version: '4', status: 4, reason: 'cancelled', result: null }));
    run.submits.push({ e: 'cancel', t: 0, q: 'q', i: '39', v: '4' });
    run.attempts.push({
      ...run.attempts[39]!,
      attempt_id: 'older',
      task_version: '4',
      claimed_at: String(claimedAt),
      outcome: 'cancelled',
    });
  };
  assert.deepEqual(await broken(claimedFirst(10_000)), ['older claimed first']);
  // Judged at the claim's snapshot, which may be older than its time.
  assert.deepEqual(await broken(claimedFirst(2_000)), []);
  assert.deepEqual(await broken(claimedFirst(19_500)), []);
});

test('a slot, a connection, an open attempt or an end that nobody asked for is found at the end', async () => {
  assert.deepEqual(
    await broken((run) => {
      run.slots.q = 1;
    }),
    ['slots left'],
  );
  assert.deepEqual(await broken((run) => void Object.assign(run, { connections: 1 })), ['connections left']);
  assert.deepEqual(await broken((run) => void Object.assign(run, { troubles: ['it ended'] })), [
    'trouble of an instance',
  ]);
  assert.deepEqual(
    await broken((run) => {
      run.faults[0]!.trouble = 'ended with 1';
    }),
    ['trouble of an instance'],
  );
  const open = (run: Kept) => {
    run.pushes = run.pushes.filter((line) => !('a' in line && line.a === idOf(0) && line.e !== 'push'));
    run.attempts[0]!.outcome = null;
    run.tasks[0]!.status = 1;
  };
  assert.deepEqual(await broken(open), ['lost', 'open attempt', 'over the limit']);
});

test('a Failed or Stopped task that nothing explains is found', async () => {
  const ended =
    (status: number, reason: string, taskId = 'odd') =>
    (run: Kept) => {
      run.submits.push(submitted(0, { i: taskId }));
      run.tasks.push(stored(0, { task_id: taskId, status, reason, result: null }));
    };
  assert.deepEqual(await broken(ended(3, 'parser_failed')), ['unexplained end']);
  assert.deepEqual(await broken(ended(3, 'parser_failed', 'doomed')), []);
  assert.deepEqual(await broken(ended(4, 'cancelled')), ['unexplained end']);
  assert.deepEqual(await broken(ended(4, 'superseded')), ['unexplained end']);
});

test('doing nothing is found', async () => {
  const idle = (run: Kept) => {
    for (const list of [run.submits, run.pushes, run.faults, run.tasks, run.attempts]) list.length = 0;
  };
  assert.deepEqual(await broken(idle), ['did too little', 'too few faults']);
  const slow = (run: Kept) => {
    // One at a time instead of two.
    for (const list of [run.submits, run.tasks, run.attempts])
      list.splice(0, list.length, ...(list.filter((_, n) => n % 2 === 0) as never[]));
    run.pushes = run.pushes.filter((line) => Number(line.e === 'trouble' || line.a.slice(8)) % 2 === 0);
    run.faults[0]!.ids = [idOf(2)];
  };
  const { breaches } = await verdictOf(slow);
  assert.deepEqual(
    breaches.map(({ what }) => what),
    ['q was at its limit for 0.0% of the time without faults'],
  );
});

test('a fault that missed its gap does not count, whatever it says of itself', async () => {
  const missed = async (faults: Kept['faults']) =>
    broken((run) => {
      run.faults = faults;
    });
  assert.deepEqual(await missed([fault({ held: 0, ids: [] })]), ['too few faults']);
  // Attempt 0 was settled long before.
  assert.deepEqual(await missed([fault({ ids: [idOf(0)] })]), ['too few faults']);
  assert.deepEqual(await missed([fault({ gap: 'claimed, not pushed', ids: [idOf(3)] })]), ['too few faults']);
  assert.deepEqual(await missed([fault({ gap: 'claimed, not pushed', ids: ['never pushed'] })]), []);
});
