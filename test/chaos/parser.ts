/**
 * A scripted parser, a process of its own: does to each attempt what script.ts says, and writes down what it saw and
 * did, at the moment that proves least against the service: a push when it has been read, a refusal before it is
 * answered, a report before it is sent.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { PushBody } from '../support/answers.ts';
import { readText } from '../support/parser.ts';
import { createJournal, now } from './journal.ts';
import { createReporter } from './reporter.ts';
import { type Behaviour, behaviourOf, PROCESSING_EXPIRED_MS, PUSH_TIMEOUT_MS, parseMsOf } from './script.ts';

/** `instances`: base URLs, by number. */
export type ParserOptions = { seed: number; port: number; journal: string; instances: string[] };
/** Asks which of these attempts were pushed here; answered with the number of the instance that pushed each. */
export type Question = { question: number; ids: string[] };
export type Reply = { reply: number; seen: [id: string, instance: number][] };

/** Longer than any attempt lives: who asks, asks about open ones. */
const REMEMBER = 200_000;
const RESULT_STATUS = { ok: 0, fail: 7 };
/** Reports later than this after the deadline: often before the watcher's turn, often after. */
const LATE_MS = 700;
const DRIP_MS = 400;
/** Nothing is left to be done once the push is answered, or nothing ever will be. */
const NO_WORK: readonly Behaviour[] = ['die', 'refuse', 'try_failed', 'busy', 'done'];

type Push = { body: PushBody; behaviour: Behaviour; parseMs: number };

function run({ seed, port, journal: path, instances }: ParserOptions): void {
  const journal = createJournal(path);
  const reporter = createReporter({ journal, instances });
  const seen = new Map<string, number>();
  const server = createServer({ keepAliveTimeout: 60_000 }, (req, res) => {
    take(req, res).catch((error) => journal.write({ e: 'trouble', error: String(error) }));
  });
  server.listen(port, '127.0.0.1', () => process.send!({ ready: true }));

  process.on('message', ({ question, ids }: Question) => {
    const found = ids.filter((id) => seen.has(id)).map((id): [string, number] => [id, seen.get(id)!]);
    process.send!({ reply: question, seen: found } satisfies Reply);
  });
  process.on('SIGTERM', () => {
    journal.close();
    process.exit(0);
  });
  process.on('SIGINT', () => {}); // Whoever started this ends it.
  process.on('disconnect', () => process.exit(1));

  async function take(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const text = await readText(req);
    if (text === null) return;
    const said = JSON.parse(text);
    const pushes = ((said.tasks ?? [said]) as PushBody[]).map(receive);
    const first = pushes[0]!;
    res.on('error', () => {});
    if (pushes.some(({ body }) => Date.now() > body.deadline)) return refuse(pushes, res, 408);
    if (said.tasks) return takeBatch(pushes, res);
    if (req.url!.startsWith('/sync')) return takeInCall(first, res);
    answer(first, res);
  }

  function receive(body: PushBody): Push {
    const key = { queue: body.queue, taskId: body.task_id, version: body.task_version };
    const behaviour = behaviourOf(seed, key, body.attempt);
    const instance = instances.indexOf(new URL(body.callback_url).origin);
    seen.set(body.attempt_id, instance);
    if (seen.size > REMEMBER) seen.delete(seen.keys().next().value!);
    journal.write({
      e: 'push',
      a: body.attempt_id,
      q: body.queue,
      i: body.task_id,
      v: body.task_version,
      n: body.attempt,
      // The wall clock's milliseconds are cut off, so the deadline is at most one too far away.
      d: now() + body.deadline - Date.now() - 1,
      b: behaviour,
      f: instance,
    });
    return { body, behaviour, parseMs: parseMsOf(seed, key, body.attempt) };
  }

  function refuse(pushes: Push[], res: ServerResponse, status: number, headers = {}): void {
    for (const { body } of pushes) journal.write({ e: 'refuse', a: body.attempt_id, s: status });
    res.writeHead(status, headers).end();
  }

  function answer(push: Push, res: ServerResponse): void {
    const { behaviour } = push;
    if (behaviour === 'busy') refuse([push], res, 429, { 'retry-after': '1' });
    else if (behaviour === 'try_failed' || behaviour === 'traitor') refuse([push], res, 500);
    else if (behaviour === 'refuse') refuse([push], res, 422);
    else if (behaviour === 'reset') res.destroy();
    else if (behaviour === 'gateway') res.writeHead(502).end();
    else if (behaviour === 'hang') setTimeout(() => res.destroy(), PUSH_TIMEOUT_MS * 3);
    else if (behaviour === 'drip') void drip(res);
    else if (behaviour === 'done') finish(push, res);
    else res.writeHead(202).end('{}');
    void work(push);
  }

  /** Everything that begins once a push was taken. */
  async function work({ body, behaviour, parseMs }: Push): Promise<void> {
    if (NO_WORK.includes(behaviour)) return;
    if (behaviour === 'late') await sleep(Math.max(0, body.deadline + Math.random() * LATE_MS - Date.now()));
    else if (behaviour === 'long') await reporter.progress(body, PROCESSING_EXPIRED_MS * 1.3);
    else await sleep(parseMs);
    await reporter.report(body, 1, behaviour === 'fail' ? RESULT_STATUS.fail : RESULT_STATUS.ok);
    if (behaviour === 'twice') await reporter.report(body, 2, RESULT_STATUS.ok);
  }

  async function takeInCall(push: Push, res: ServerResponse): Promise<void> {
    if (['ok', 'reset', 'refuse', 'try_failed'].includes(push.behaviour)) return answer(push, res);
    if (push.behaviour === 'die') return;
    await sleep(push.parseMs);
    finish(push, res);
  }

  function finish(push: Push, res: ServerResponse): void {
    res.writeHead(200, { 'content-type': 'application/json' }).end(`{${resultOf(push)}}`);
  }

  /** A result in the same call, as members of an object. */
  function resultOf({ body, behaviour }: Push): string {
    const status = behaviour === 'fail' ? RESULT_STATUS.fail : RESULT_STATUS.ok;
    const result = reporter.resultFor(body, 0);
    journal.write({ e: 'done', a: body.attempt_id, c: status, r: result });
    return `"status_code":${status},"result":${JSON.stringify(result)}`;
  }

  /** The request as a whole hangs, drips or is reset when the first of it says so; else each has its entry. */
  async function takeBatch(pushes: Push[], res: ServerResponse): Promise<void> {
    const { behaviour } = pushes[0]!;
    if (behaviour === 'reset') res.destroy();
    else if (behaviour === 'hang') setTimeout(() => res.destroy(), PUSH_TIMEOUT_MS * 3);
    else if (behaviour === 'drip') void drip(res);
    const isGone = ['reset', 'hang', 'drip'].includes(behaviour);
    const entries = isGone ? [] : pushes.map(entryOf);
    if (!isGone) res.writeHead(200, { 'content-type': 'application/json' }).end(`{"results":[${entries.join(',')}]}`);
    for (const push of pushes) if (isGone || push.behaviour !== 'done') void work(push);
  }

  function entryOf(push: Push): string {
    const id = `"attempt_id":"${push.body.attempt_id}"`;
    const refused = { refuse: 422, try_failed: 500 }[push.behaviour as string];
    if (refused) journal.write({ e: 'refuse', a: push.body.attempt_id, s: refused });
    if (refused) return `{${id},"http_status":${refused}}`;
    return push.behaviour === 'done' ? `{${id},"http_status":200,${resultOf(push)}}` : `{${id},"http_status":202}`;
  }
}

async function drip(res: ServerResponse): Promise<void> {
  res.writeHead(202, { 'content-type': 'application/json' });
  for (const character of '{"accepted":true}') {
    if (res.destroyed) return;
    res.write(character);
    await sleep(DRIP_MS);
  }
  res.end();
}

run(JSON.parse(process.argv[2]!));
