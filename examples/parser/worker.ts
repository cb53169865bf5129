/** The thread a document is parsed in. Started by isolate.ts; it reads, parses, and posts parts and one end. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import type { Parsed, WorkerInput, WorkerMessage } from './document.ts';
import { chooseKind, type ReadableKind } from './formats/kinds.ts';
import { readerOf } from './formats/readers.ts';
import { failed, type Outcome, ParseFailure } from './outcome.ts';

const { document, limits } = workerData as WorkerInput;

const tell = (message: WorkerMessage) => parentPort!.postMessage(message);

async function parse(): Promise<Outcome> {
  const startedAtMs = performance.now();
  const bytes =
    'bytes' in document.source ? document.source.bytes : new Uint8Array(await readFile(document.source.path));
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  const kind = chooseKind(bytes, document);
  const read = await readerOf(kind);
  const unit = kind.unit;
  const parsed = await read({
    bytes,
    name: document.name,
    limits,
    async onPart(done, total) {
      tell({ kind: 'part', done, total, unit });
      if (limits.pageDelayMs > 0) await delay(limits.pageDelayMs);
    },
  });
  return toOutcome(parsed, kind, sha256, Math.round(performance.now() - startedAtMs));
}

function toOutcome(parsed: Parsed, kind: ReadableKind, sha256: string, parseMs: number): Outcome {
  const parts = 'pages' in parsed.parts ? parsed.parts.pages : parsed.parts.sections;
  const resultJson = JSON.stringify({
    media_type: kind.mediaType,
    title: parsed.title,
    ...parsed.parts,
    page_count: 'pages' in parsed.parts ? parts.length : null,
    characters: parts.reduce((sum, part) => sum + part.text.length, 0),
    metadata: parsed.metadata,
    sha256,
    parse_ms: parseMs,
  });
  const resultBytes = Buffer.byteLength(resultJson);
  if (resultBytes > limits.resultMaxBytes) {
    const size = `${resultBytes} bytes, the limit is ${limits.resultMaxBytes}`;
    return failed('result_too_large', `The text of ${document.name} is too large to report: ${size}.`);
  }
  const count = `${parts.length} ${kind.unit}${parts.length === 1 ? '' : 's'}`;
  return { kind: 'parsed', resultJson, message: `${count} in ${parseMs} ms` };
}

function toFailure(error: unknown): Outcome {
  if (error instanceof ParseFailure) return failed(error.reason, error.message);
  return failed('parser_fault', `The parser failed on ${document.name}: ${String(error)}`);
}

tell({ kind: 'end', outcome: await parse().catch(toFailure) });
