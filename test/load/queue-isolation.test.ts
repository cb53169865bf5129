/** A backlog and a parser that never answers, in one queue, do not slow another queue. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { hang } from '../support/answers.ts';
import { eventually } from '../support/eventually.ts';
import { type Installation, install, LIMITERS, setQueue, submit } from '../support/installation.ts';
import { startParser } from '../support/parser.ts';
import type { RunningService } from '../support/process.ts';

const BACKLOG = 100_000;
/** As many as an instance has on their way at once: the hanging queue uses all it may. */
const HANGING = 256;
/** Alone and beside the other queue in turn, so that both meet the same weather. */
const TURNS = 10;
/** One of so many comparisons must hold: the machine may stand still for a moment in one of the two. */
const TRIES = 3;
const SUBMITS_A_TURN = 60;
/** Longer than a turn. */
const PUSH_TIMEOUT_MS = 5_000;
const PAUSE_MS = 4;
/** Below this p99 tells of the machine. */
const FLOOR_MS = 20;

describe('beside a queue with a backlog and a hanging parser', () => {
  for (const limiter of LIMITERS)
    test(`another queue pushes as quickly as alone (${limiter})`, async (t) => {
      const place = await install(t, { limiter });
      const service = await place.start();
      const deaf = await startParser({ answer: hang });
      t.after(() => deaf.stop());
      /** A new target and new slots each turn: the breaker silences a target, and slots stay held. */
      const hanging = (turn: number, paused: boolean) =>
        setQueue(service, 'hanging', {
          targets: [{ url: `${deaf.url}/${turn}`, push_timeout_ms: PUSH_TIMEOUT_MS }],
          limit: (turn + 1) * HANGING,
          paused,
        });
      await hanging(0, true);
      await fill(place, 'hanging');
      place.parser.autoCallback();
      await measure(place, service, 0); // What is first done by then.

      let turn = 0;
      /** Whether it is as quick beside the other queue as alone. */
      const compare = async (): Promise<boolean> => {
        const alone: number[] = [];
        const beside: number[] = [];
        for (let i = 0; i < TURNS; i++) {
          turn += 1;
          const paused = turn % 2 === 1;
          const pushed = deaf.pushes.length;
          await hanging(turn, paused);
          // All of the turn before have timed out by then.
          if (!paused) await deaf.waitForPushes(pushed + HANGING, 30_000);
          (paused ? alone : beside).push(...(await measure(place, service, turn)));
        }
        const [p99Alone, p99Beside] = [p99(alone), p99(beside)];
        t.diagnostic(`p99 alone ${p99Alone.toFixed(1)} ms, beside ${p99Beside.toFixed(1)} ms`);
        return p99Beside <= 2 * Math.max(p99Alone, FLOOR_MS);
      };
      let isAsQuick = await compare();
      for (let tries = 1; !isAsQuick && tries < TRIES; tries++) isAsQuick = await compare();
      assert.ok(isAsQuick, 'slower beside it, each time');
    });
});

/** Milliseconds from the submit to the parser, one after another. */
async function measure({ parser }: Installation, service: RunningService, turn: number): Promise<number[]> {
  const latencies: number[] = [];
  for (let i = 0; i < SUBMITS_A_TURN; i++) {
    const id = String(turn * SUBMITS_A_TURN + i);
    const seen = parser.pushes.length;
    const began = performance.now();
    await submit(service, { task_id: id });
    const push = await eventually(
      () =>
        parser.pushes.slice(seen).find(({ body }) => body.task_id === id) ?? Promise.reject(new Error(`task ${id}`)),
      { everyMs: 1 },
    );
    latencies.push(push.atMs - began);
    await sleep(PAUSE_MS); // So that each submit finds an idle queue.
  }
  return latencies;
}

const p99 = (values: number[]): number => values.toSorted((a, b) => a - b)[Math.floor(values.length * 0.99)]!;

async function fill({ sql }: Installation, queue: string): Promise<void> {
  await sql.query(
    `INSERT INTO task_scheduler_tasks (queue, task_id, task_version, id, place, status, priority, level, payload,
       max_retries, pending_since, create_at, update_at)
     SELECT $1, n, 1, i, i, 0, 1 + n % 5, 1 + n % 5, '{}', 1000, docsched_now(), docsched_now(), docsched_now()
     FROM (SELECT n, nextval('task_ids') AS i FROM generate_series(1, $2::bigint) n) f`,
    [queue, BACKLOG],
  );
  await sql.query('VACUUM ANALYZE task_scheduler_tasks');
}
