/**
 * Logs of what was seen: JSON lines, each with `t`, milliseconds of the machine's one monotonic clock, which all
 * processes share.
 */
import { closeSync, createReadStream, openSync, writeSync } from 'node:fs';
import { createInterface } from 'node:readline';

export const now = (): number => Number(process.hrtime.bigint() / 1_000n) / 1_000;

export type Journal = {
  /** `t` is this moment. */
  write(line: Record<string, unknown>): void;
  close(): void;
};

const FLUSH_BYTES = 65_536;
const FLUSH_MS = 200;

export function createJournal(path: string): Journal {
  const file = openSync(path, 'w');
  let text = '';
  const flush = () => {
    if (text !== '') writeSync(file, text);
    text = '';
  };
  const timer = setInterval(flush, FLUSH_MS).unref();
  return {
    write(line) {
      text += `${JSON.stringify({ t: now(), ...line })}\n`;
      if (text.length > FLUSH_BYTES) flush();
    },
    close() {
      clearInterval(timer);
      flush();
      closeSync(file);
    },
  };
}

/** The lines of the files, file after file. */
export async function* readJournals<Line>(paths: readonly string[]): AsyncGenerator<Line> {
  for (const path of paths)
    for await (const line of createInterface({ input: createReadStream(path) })) yield JSON.parse(line);
}
