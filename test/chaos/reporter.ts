/**
 * A parser's reports: sent to the instance that pushed, then to the others in turn, until one answers definitely. Each
 * try is written down before it is sent, and what was answered when that is known.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Agent, request } from 'undici';
import type { PushBody } from '../support/answers.ts';
import { type Journal, now } from './journal.ts';

export type Reporter = ReturnType<typeof createReporter>;

const CONNECTIONS = 64;
/** An instance that was stopped takes the connection and says nothing. */
const ANSWER_TIMEOUT_MS = 3_000;
const AGAIN_MS = 100;
const PROGRESS_EVERY_MS = 1_100;
/** Nobody parses for longer: the service is gone for good. */
const GIVE_UP_MS = 60_000;

export function createReporter({ journal, instances }: { journal: Journal; instances: readonly string[] }) {
  const agent = new Agent({
    connections: CONNECTIONS,
    pipelining: 1,
    headersTimeout: ANSWER_TIMEOUT_MS,
    bodyTimeout: ANSWER_TIMEOUT_MS,
    connectTimeout: ANSWER_TIMEOUT_MS,
  });
  return {
    /** Tells one report from any other. `call`: 0 for the answer to the push, 1 for the first report, 2 for the second. */
    resultFor: (body: PushBody, call: number): string =>
      `${body.queue}/${body.task_id}/${body.task_version}/${body.attempt_id.slice(-12)}/${call}`,
    async report(body: PushBody, call: number, status: number): Promise<void> {
      const result = `${body.queue}/${body.task_id}/${body.task_version}/${body.attempt_id.slice(-12)}/${call}`;
      const text = JSON.stringify({ status_code: status, result });
      const giveUpAt = now() + GIVE_UP_MS;
      for (let turn = 0; now() < giveUpAt; turn++) {
        journal.write({ e: 'call', a: body.attempt_id, k: call, y: turn, c: status, r: result });
        const said = await post(urlAt(body.callback_url, turn), text);
        const outcome = outcomeOf(said);
        journal.write({ e: 'said', a: body.attempt_id, k: call, y: turn, o: outcome });
        if (outcome !== 'lost') return;
        await sleep(AGAIN_MS);
      }
    },
    /** Progress every second or so for `ms`, and what deadlines it was told. */
    async progress(body: PushBody, ms: number): Promise<void> {
      for (const until = now() + ms; now() < until; await sleep(PROGRESS_EVERY_MS)) {
        const said = await post(body.progress_url, '{"percent":50}');
        if (said?.body.cancel_requested === true || said?.status === 409) return;
        if (said?.status === 200)
          journal.write({ e: 'told', a: body.attempt_id, d: now() + Number(said.body.deadline) - Date.now() - 1 });
      }
    },
  };

  /** The same path at the instance that pushed, and from the second turn on at the next ones. */
  function urlAt(url: string, turn: number): string {
    const { origin, pathname } = new URL(url);
    const first = instances.indexOf(origin);
    return first < 0 ? url : instances[(first + turn) % instances.length]! + pathname;
  }

  async function post(url: string, body: string): Promise<{ status: number; body: Record<string, unknown> } | null> {
    try {
      const answer = await request(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
        dispatcher: agent,
      });
      return { status: answer.statusCode, body: (await answer.body.json()) as Record<string, unknown> };
    } catch {
      return null;
    }
  }
}

/** `lost`: nothing definite, so that the report goes out again. */
function outcomeOf(said: { status: number; body: Record<string, unknown> } | null): string {
  if (said === null || said.status >= 500 || said.status === 429) return 'lost';
  return String(said.status === 200 ? said.body.outcome : said.body.code);
}
