/**
 * Reads the directory of a ZIP and single small entries. Enough to tell a Word document from other archives, to
 * know what it would expand to before anything is expanded, and to read its metadata. ZIP64 is not needed for that.
 */
import { inflateRawSync } from 'node:zlib';

export type Entry = { name: string; method: number; packedBytes: number; bytes: number; offset: number };

const END_SIGNATURE = 0x06054b50;
const END_BYTES = 22;
const COMMENT_MAX_BYTES = 65_535;
const ENTRY_SIGNATURE = 0x02014b50;
const ENTRY_BYTES = 46;
const LOCAL_BYTES = 30;

/** Undefined when the directory at the end is missing or broken, as in a file that was cut short. */
export function listEntries(zip: Uint8Array): Entry[] | undefined {
  const view = Buffer.from(zip.buffer, zip.byteOffset, zip.byteLength);
  const end = findEnd(view);
  if (end === undefined) return undefined;
  const entries: Entry[] = [];
  let at = view.readUInt32LE(end + 16);
  for (let left = view.readUInt16LE(end + 10); left > 0; left -= 1) {
    if (at + ENTRY_BYTES > view.length || view.readUInt32LE(at) !== ENTRY_SIGNATURE) return undefined;
    const nameBytes = view.readUInt16LE(at + 28);
    entries.push({
      name: view.toString('utf8', at + ENTRY_BYTES, at + ENTRY_BYTES + nameBytes),
      method: view.readUInt16LE(at + 10),
      packedBytes: view.readUInt32LE(at + 20),
      bytes: view.readUInt32LE(at + 24),
      offset: view.readUInt32LE(at + 42),
    });
    at += ENTRY_BYTES + nameBytes + view.readUInt16LE(at + 30) + view.readUInt16LE(at + 32);
  }
  return entries;
}

function findEnd(view: Buffer): number | undefined {
  const lowest = Math.max(0, view.length - END_BYTES - COMMENT_MAX_BYTES);
  for (let at = view.length - END_BYTES; at >= lowest; at -= 1) if (view.readUInt32LE(at) === END_SIGNATURE) return at;
  return undefined;
}

/** The text of an entry, or an empty string when it is absent, larger than `maxBytes` or broken. */
export function readEntry(zip: Uint8Array, entry: Entry | undefined, maxBytes: number): string {
  if (entry === undefined || entry.bytes > maxBytes) return '';
  try {
    const view = Buffer.from(zip.buffer, zip.byteOffset, zip.byteLength);
    const start =
      entry.offset + LOCAL_BYTES + view.readUInt16LE(entry.offset + 26) + view.readUInt16LE(entry.offset + 28);
    const packed = view.subarray(start, start + entry.packedBytes);
    return (entry.method === 0 ? packed : inflateRawSync(packed, { maxOutputLength: maxBytes })).toString('utf8');
  } catch {
    return '';
  }
}
