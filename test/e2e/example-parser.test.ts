/**
 * The example parser as a real process, with a scripted docsched in this one: every example document, documents made
 * on the spot, and each rule of the contract a parser has to keep.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { makeDocx, makePdf } from '../support/documents.ts';
import { eventually } from '../support/eventually.ts';
import { endWithThisProcess } from '../support/process.ts';

const DOCUMENTS = fileURLToPath(new URL('../../examples/documents/', import.meta.url));
const PARSER = fileURLToPath(new URL('../../examples/parser/main.ts', import.meta.url));
const TRACEPARENT = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

type Expected = {
  file: string;
  media_type: string;
  task_id: string;
  task_version: string;
  outcome: 'success' | 'failed';
  pages?: number;
  sections?: number;
  phrases?: { first: string; middle: string; last: string };
  failure_message_contains?: string;
};
const expected: Expected[] = JSON.parse(await readFile(join(DOCUMENTS, 'expected.json'), 'utf8'));

type Part = { number: number; heading?: string | null; text: string };
type Result = {
  media_type: string;
  title: string;
  pages?: Part[];
  sections?: Part[];
  page_count: number | null;
  characters: number;
  metadata: Record<string, string | number>;
  sha256: string;
  parse_ms: number;
};
type Report = {
  kind: 'callback' | 'progress';
  body: {
    status_code?: number;
    status_msg?: string;
    result?: Result | null;
    percent?: number;
    message?: string;
    done?: boolean;
  };
  headers: IncomingHttpHeaders;
  raw: string;
  at: number;
};
type Reply = { status: number; body?: unknown; retryAfter?: string };
type Replies = { callback?: Reply[]; progress?: Reply[] };

const receiver = await startReceiver();

describe('example parser', { concurrency: 3 }, () => {
  let shared: Parser;
  before(async () => {
    shared = await startParser({ PARSER_SLOTS: '8' });
  });
  after(async () => {
    await shared.stop();
    receiver.close();
  });

  for (const example of expected) {
    test(`${example.file} gives ${example.outcome}`, async () => {
      const push = newPush({ file: example.file }, { task_id: example.task_id, task_version: example.task_version });
      await eventually(async () => assert.equal((await shared.push(push)).status, 202));
      const { body, headers } = await receiver.callback(push.attempt_id);
      assert.equal(headers.traceparent, TRACEPARENT);
      if (example.outcome === 'failed') return assertFailed(body, undefined, example.failure_message_contains!);
      await assertParsed(body.result!, example);
      assert.equal(body.status_code, 0);
    });
  }

  test('a PDF and a DOCX made just now are found in the result word by word', async () => {
    const words = Array.from({ length: 3 }, () => randomBytes(9).toString('hex'));
    const made = [
      { name: 'made.pdf', bytes: await makePdf(words), part: 'pages' as const },
      { name: 'made.docx', bytes: await makeDocx(words), part: 'sections' as const },
    ];
    for (const { name, bytes, part } of made) {
      const { status_code, result } = await shared.parse({ content_base64: bytes.toString('base64'), name });
      assert.equal(status_code, 0);
      assert.equal(result![part]!.length, 3);
      for (const [at, word] of words.entries()) {
        const found = result![part]![at]!;
        assert.match(`${found.heading ?? ''} ${found.text}`, new RegExp(word));
      }
      assert.equal(result!.sha256, sha256(bytes));
    }
  });

  test('what a document claims must agree with its content', async () => {
    const zip = (await makeDocx(['x'])).toString('base64');
    const html = Buffer.from('<!doctype html><html><body>hello</body></html>').toString('base64');
    const cases: [payload: object, code: number, message: RegExp][] = [
      [
        { content_base64: zip, name: 'report.pdf' },
        11,
        /report\.pdf says it is a PDF, but its content is a Word document/,
      ],
      [{ content_base64: html, name: 'page.pdf' }, 11, /but its content is an HTML page/],
      [{ content_base64: html, name: 'page', media_type: 'application/pdf' }, 11, /but its content is an HTML page/],
      [{ content_base64: zip.slice(0, 2_000), name: 'cut.docx' }, 10, /cut short/],
      [{ content_base64: '', name: 'empty.txt' }, 10, /is empty/],
      [{ content_base64: 'iVBORw0KGgo=', name: 'photo.png' }, 16, /which this parser does not read/],
      [
        { content_base64: Buffer.from([0xd6, 0xd0, 0xce]).toString('base64'), name: 'gbk.txt' },
        10,
        /not text in UTF-8/,
      ],
    ];
    for (const [payload, code, message] of cases) assertFailed(await shared.parse(payload), code, message);
  });

  test('a push it cannot use is refused for good with a pointer', async (t) => {
    const folder = await mkdtemp(join(tmpdir(), 'parser-'));
    t.after(() => rm(folder, { recursive: true }));
    await symlink('/etc/hostname', join(folder, 'link.txt'));
    await writeFile(join(folder, 'own.txt'), 'mine');
    const parser = await startParser({ DOCUMENTS_DIR: folder });
    t.after(parser.stop);
    const cases: [payload: unknown, code: string, pointer: string][] = [
      [{ file: '../../etc/hostname' }, 'file_outside', '/payload/file'],
      [{ file: '/etc/hostname' }, 'file_outside', '/payload/file'],
      [{ file: '.' }, 'file_outside', '/payload/file'],
      [{ file: 'link.txt' }, 'file_outside', '/payload/file'],
      [{ file: 'absent.pdf' }, 'file_not_found', '/payload/file'],
      [{ file: 7 }, 'invalid_payload', '/payload/file'],
      [{ content_base64: '***' }, 'invalid_payload', '/payload/content_base64'],
      [{ file: 'own.txt', content_base64: '' }, 'invalid_payload', '/payload'],
      [null, 'invalid_payload', '/payload'],
    ];
    for (const [payload, code, pointer] of cases) {
      const { status, headers, body } = await parser.push(newPush(payload));
      assert.deepEqual({ status, code: body.code, pointer: body.pointer }, { status: 422, code, pointer });
      assert.match(headers.get('content-type')!, /^application\/problem\+json/);
      assert.ok(body.title && body.detail && body.type && body.status === 422);
    }
    assert.equal(
      (await parser.push({ ...newPush({ file: 'own.txt' }), callback_url: 'file:///x' })).body.pointer,
      '/callback_url',
    );
    assert.equal((await parser.send('{"queue":')).status, 400);
    assert.equal((await parser.send('{}', 'text/plain')).status, 415);
    assert.equal((await parser.parse({ file: 'own.txt' })).result!.sections![0]!.text, 'mine');
    assert.equal((await parser.stats()).accepted, 1);
  });

  test('a repeated attempt is the same run, while it runs and after it ended', async (t) => {
    const parser = await startParser({ PARSER_SLOTS: '1', PAGE_DELAY_MS: '100' });
    t.after(parser.stop);
    const push = newPush({ file: 'bridge-inspection.pdf' });
    const answers = await Promise.all([parser.push(push), parser.push(push), parser.push(push)]);
    assert.deepEqual(
      answers.map(({ status }) => status),
      [202, 202, 202],
    );
    await receiver.callback(push.attempt_id);
    await eventually(async () => assert.equal((await parser.stats()).undelivered, 0));
    assert.equal((await parser.push(push)).status, 202);
    assert.equal((await parser.push({ ...push, deadline: 0 })).status, 202);
    const stats = await parser.stats();
    assert.deepEqual([stats.accepted, stats.active, stats.completed, stats.rejected_busy], [1, 0, 1, 0]);
    assert.equal(receiver.reports(push.attempt_id, 'callback').length, 1);
  });

  test('it is busy while all slots are taken, and a cancelled parse frees its slot', async (t) => {
    const parser = await startParser({ PARSER_SLOTS: '1', PAGE_DELAY_MS: '200' });
    t.after(parser.stop);
    const slow = newPush({ file: 'field-guide.pdf' });
    assert.equal((await parser.push(slow)).status, 202);
    const refused = await parser.push(newPush({ file: 'water-notice.pdf' }));
    assert.equal(refused.status, 429);
    assert.ok(Number(refused.headers.get('retry-after')) >= 1);
    assert.equal((await parser.stats()).rejected_busy, 1);
    receiver.reply(slow.attempt_id, {
      progress: [
        { status: 200, body: { outcome: 'noted', cancel_requested: true, deadline: slow.deadline } },
        ok({ outcome: 'noted' }),
      ],
    });
    const done = await receiver.report(slow.attempt_id, ({ body }) => body.done === true);
    assert.equal(done.kind, 'progress');
    await eventually(async () =>
      assert.deepEqual(pick(await parser.stats(), ['active', 'cancelled', 'undelivered']), [0, 1, 0]),
    );
    assert.equal((await parser.parse({ file: 'water-notice.pdf' })).status_code, 0);
    assert.equal(receiver.reports(slow.attempt_id, 'callback').length, 0);
  });

  test('progress goes page by page, and its answers move the deadline', async (t) => {
    // 24 pages take longer than both have at first, which is long enough for the first report of a slow machine.
    const parser = await startParser({ PAGE_DELAY_MS: '300' });
    t.after(parser.stop);
    const extended = newPush({ file: 'field-guide.pdf' }, { deadline: Date.now() + 5_000 });
    const later = ok({ outcome: 'noted', cancel_requested: false, deadline: Date.now() + 60_000 });
    receiver.reply(extended.attempt_id, { progress: Array.from({ length: 60 }, () => later) });
    const dropped = newPush({ file: 'field-guide.pdf' }, { deadline: Date.now() + 5_000 });
    receiver.reply(dropped.attempt_id, { progress: Array.from({ length: 60 }, () => ({ status: 500 })) });
    await Promise.all([parser.push(extended), parser.push(dropped)]);
    assertFailed((await receiver.callback(dropped.attempt_id)).body, 12, /deadline/);
    assert.equal((await receiver.callback(extended.attempt_id)).body.status_code, 0);
    const reports = receiver.reports(extended.attempt_id, 'progress');
    const percents = reports.map(({ body }) => body.percent!);
    assert.ok(reports.length >= 5, `${reports.length} reports`);
    assert.deepEqual(
      percents,
      percents.toSorted((a, b) => a - b),
    );
    assert.match(reports.at(-1)!.body.message!, /^page \d+ of 24$/);
    assert.ok(reports.every(({ headers }) => headers.traceparent === TRACEPARENT));
  });

  test('a push past its deadline is refused and not worked on', async () => {
    const push = newPush({ file: 'water-notice.pdf' }, { deadline: Date.now() - 1 });
    const { status, body } = await shared.push(push);
    assert.deepEqual([status, body.code], [408, 'deadline_passed']);
    assert.equal(
      (await shared.push({ ...push, deadline: Date.now() + 60_000 })).status,
      202,
      'it was not remembered as a run',
    );
    await receiver.callback(push.attempt_id);
  });

  test('it stops and stays silent when progress says that the attempt is over', async (t) => {
    const parser = await startParser({ PAGE_DELAY_MS: '200' });
    t.after(parser.stop);
    for (const status of [404, 409]) {
      const push = newPush({ file: 'field-guide.pdf' });
      receiver.reply(push.attempt_id, { progress: [{ status }] });
      await parser.push(push);
      await receiver.report(push.attempt_id, ({ kind }) => kind === 'progress');
      await eventually(async () => assert.deepEqual(pick(await parser.stats(), ['active', 'undelivered']), [0, 0]));
      assert.equal(receiver.reports(push.attempt_id).length, 1);
    }
  });

  test('a parse beyond the time limit fails alone', async (t) => {
    const parser = await startParser({ PARSE_TIMEOUT_MS: '6000', PAGE_DELAY_MS: '300' });
    t.after(parser.stop);
    const [slow, quick] = await Promise.all([
      parser.parse({ file: 'field-guide.pdf' }),
      parser.parse({ file: 'water-notice.pdf' }),
    ]);
    assertFailed(slow, 12, /not parsed within 6000 ms/);
    assert.equal(quick.status_code, 0);
    assert.equal((await parser.stats()).failed, 1);
  });

  test('a document that needs too much memory fails alone', async (t) => {
    const folder = await mkdtemp(join(tmpdir(), 'parser-'));
    t.after(() => rm(folder, { recursive: true }));
    await writeFile(join(folder, 'huge.md'), '- *a* [b](c)\n'.repeat(300_000));
    await writeFile(join(folder, 'small.md'), '# Small\n\nfits');
    const parser = await startParser({ DOCUMENTS_DIR: folder, PARSE_MEMORY_MB: '32' });
    t.after(parser.stop);
    const [huge, small] = await Promise.all([parser.parse({ file: 'huge.md' }), parser.parse({ file: 'small.md' })]);
    assertFailed(huge, 13, /more than the 32 MB/);
    assert.equal(small.status_code, 0);
  });

  test('a callback is repeated until it is accepted, not before Retry-After, and never after 409', async () => {
    const accepted = newPush({ file: 'water-notice.pdf' });
    receiver.reply(accepted.attempt_id, {
      callback: [{ status: 503, retryAfter: '1' }, { status: 500 }, ok({ outcome: 'applied' })],
    });
    const over = newPush({ file: 'water-notice.pdf' });
    receiver.reply(over.attempt_id, { callback: [{ status: 503 }, { status: 409 }] });
    await Promise.all([shared.push(accepted), shared.push(over)]);
    await receiver.callback(accepted.attempt_id, 3);
    const [first, second, third] = receiver.reports(accepted.attempt_id, 'callback');
    assert.ok(second!.at - first!.at >= 990, `${second!.at - first!.at} ms`);
    assert.equal(first!.raw, third!.raw);
    const afterEnd = receiver.reports(accepted.attempt_id, 'progress').filter(({ at }) => at > first!.at);
    assert.deepEqual(afterEnd, [], 'no progress after the end');
    await receiver.callback(over.attempt_id, 2);
    await eventually(async () => assert.equal((await shared.stats()).undelivered, 0));
    assert.equal(receiver.reports(over.attempt_id, 'callback').length, 2);
  });

  test('a result that is too large is reported as a failure, whoever finds it too large', async (t) => {
    const push = newPush({ file: 'water-notice.pdf' });
    receiver.reply(push.attempt_id, { callback: [{ status: 413 }, ok({ outcome: 'applied' })] });
    await shared.push(push);
    assertFailed((await receiver.callback(push.attempt_id, 2)).body, 14, /larger than docsched takes/);
    const parser = await startParser({ RESULT_MAX_BYTES: '1000' });
    t.after(parser.stop);
    assertFailed(await parser.parse({ file: 'water-notice.pdf' }), 14, /the limit is 1000/);
  });

  test('on SIGTERM it refuses, finishes what it can in 10 s, reports the rest and exits 0', async (t) => {
    const parser = await startParser({ PAGE_DELAY_MS: '1500' });
    t.after(parser.stop);
    const [short, long] = [newPush({ file: 'water-notice.pdf' }), newPush({ file: 'field-guide.pdf' })];
    await Promise.all([parser.push(short), parser.push(long)]);
    const ended = parser.stop();
    await eventually(async () => {
      const { status, headers } = await parser.push(newPush({ file: 'water-notice.pdf' }));
      assert.equal(status, 503);
      assert.ok(Number(headers.get('retry-after')) >= 1);
    });
    assert.equal((await receiver.callback(short.attempt_id)).body.status_code, 0);
    assertFailed((await receiver.callback(long.attempt_id)).body, 15, /shut down/);
    assert.equal(await ended, 0);
  });

  test('bad settings are all named at once and it exits 78', async () => {
    const child = spawn(process.execPath, [PARSER], {
      env: { ...process.env, PORT: 'x', PARSER_SLOTS: '0', DOCUMENTS_DIR: '/absent' },
    });
    const errors = await Promise.all([child.stderr.toArray(), once(child, 'exit')]);
    assert.match(errors[0].join(''), /PORT: [\s\S]*DOCUMENTS_DIR: [\s\S]*PARSER_SLOTS: /);
    assert.equal(errors[1][0], 78);
  });
});

function assertFailed(body: Report['body'], code: number | undefined, message: RegExp | string): void {
  const { status_code, status_msg = '', result } = body;
  assert.notEqual(status_code, 0);
  if (code !== undefined) assert.equal(status_code, code, status_msg);
  if (typeof message === 'string') assert.ok(status_msg.includes(message), status_msg);
  else assert.match(status_msg, message);
  assert.equal(result, null);
}

async function assertParsed(result: Result, example: Expected): Promise<void> {
  const parts = result.pages ?? result.sections!;
  assert.equal(result.media_type, example.media_type);
  assert.equal(result.page_count, example.pages ?? null);
  assert.equal(parts.length, example.pages ?? example.sections);
  assert.deepEqual(
    parts.map(({ number }) => number),
    parts.map((_, at) => at + 1),
  );
  assert.equal(result.sha256, sha256(await readFile(join(DOCUMENTS, example.file))));
  assert.ok(result.title.length > 0 && result.characters > 0 && result.parse_ms >= 0);
  const dense = (part: Part) => `${part.heading ?? ''}${part.text}`.replace(/\s+/g, '');
  const { first, middle, last } = example.phrases!;
  const places: [Part, string][] = [
    [parts[0]!, first],
    [parts[Math.floor(parts.length / 2)]!, middle],
    [parts.at(-1)!, last],
  ];
  for (const [part, phrase] of places) assert.ok(dense(part).includes(phrase.replace(/\s+/g, '')), phrase);
}

type Push = ReturnType<typeof newPush>;

function newPush(payload: unknown, given: { task_id?: string; task_version?: string; deadline?: number } = {}) {
  const attempt_id = randomBytes(24).toString('base64url');
  const callback_url = `${receiver.url}/v1/callbacks/${attempt_id}`;
  return {
    queue: 'default',
    task_id: '9223372036854775807',
    task_version: '1',
    priority: 5,
    payload,
    attempt: 1,
    attempt_id,
    deadline: Date.now() + 60_000,
    callback_url,
    progress_url: `${callback_url}/progress`,
    ...given,
  };
}

type Parser = Awaited<ReturnType<typeof startParser>>;

async function startParser(env: Record<string, string>) {
  const child = spawn(process.execPath, [PARSER], {
    env: { ...process.env, LOG_LEVEL: 'info', PORT: '0', ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  endWithThisProcess(child);
  const exited = once(child, 'exit');
  const url = await listeningUrl(child);
  const send = async (body: string, contentType = 'application/json') => {
    const headers = { 'content-type': contentType, traceparent: TRACEPARENT };
    const response = await fetch(`${url}/parse`, { method: 'POST', body, headers });
    return {
      status: response.status,
      headers: response.headers,
      body: (await response.json()) as Record<string, unknown>,
    };
  };
  const push = (body: Push) => send(JSON.stringify(body));
  return {
    send,
    push,
    /** Pushes, waits for the callback and returns its body. */
    async parse(payload: unknown) {
      const order = newPush(payload);
      assert.equal((await push(order)).status, 202);
      return (await receiver.callback(order.attempt_id)).body;
    },
    stats: async () => (await (await fetch(`${url}/stats`)).json()) as Record<string, number>,
    /** SIGTERM, once; returns the exit code. */
    stop: async () => {
      if (child.exitCode === null && !child.killed) child.kill('SIGTERM');
      return (await exited)[0] as number;
    },
  };
}

async function listeningUrl(child: ChildProcess): Promise<string> {
  for await (const line of createInterface({ input: child.stdout! })) {
    const entry = JSON.parse(line) as { event: string; url: string };
    if (entry.event !== 'parser_listening') continue;
    child.stdout!.resume();
    return entry.url;
  }
  throw new Error('the parser ended before it listened');
}

const ok = (body: unknown): Reply => ({ status: 200, body });

/** docsched as a parser sees it: keeps every report and answers from a script, 200 when there is none. */
async function startReceiver() {
  const reports = new Map<string, Report[]>();
  const scripts = new Map<string, Replies>();
  const arrivals = new EventTarget();
  const server = createServer(async (request, response) => {
    const [, attemptId = '', progress] = /^\/v1\/callbacks\/([\w-]+)(\/progress)?$/.exec(request.url!)!;
    const kind = progress === undefined ? 'callback' : 'progress';
    const raw = Buffer.concat(await request.toArray().catch(() => [])).toString();
    if (raw === '') return;
    const report = {
      kind,
      raw,
      body: JSON.parse(raw),
      headers: request.headers,
      at: performance.now(),
    } satisfies Report;
    reports.set(attemptId, [...(reports.get(attemptId) ?? []), report]);
    const reply = scripts.get(attemptId)?.[kind]?.shift() ?? ok({ outcome: kind === 'callback' ? 'applied' : 'noted' });
    response.writeHead(reply.status, reply.retryAfter === undefined ? {} : { 'retry-after': reply.retryAfter });
    response.end(JSON.stringify(reply.body ?? {}));
    arrivals.dispatchEvent(new Event(attemptId));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');

  const all = (attemptId: string, kind?: Report['kind']) =>
    (reports.get(attemptId) ?? []).filter((report) => kind === undefined || report.kind === kind);

  async function report(attemptId: string, isWanted: (report: Report) => boolean, nth = 1): Promise<Report> {
    const signal = AbortSignal.timeout(25_000);
    for (;;) {
      const found = all(attemptId).filter(isWanted)[nth - 1];
      if (found !== undefined) return found;
      await once(arrivals, attemptId, { signal });
    }
  }

  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    reply: (attemptId: string, replies: Replies) => void scripts.set(attemptId, replies),
    reports: all,
    report,
    callback: (attemptId: string, nth = 1) => report(attemptId, ({ kind }) => kind === 'callback', nth),
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}

const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

const pick = (stats: Record<string, number>, names: string[]) => names.map((name) => stats[name]);
