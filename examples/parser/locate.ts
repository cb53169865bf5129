/**
 * From payload to document. A file must lie below DOCUMENTS_DIR after every symbolic link is followed, so a
 * payload can never name anything else on this machine.
 */
import { realpath, stat } from 'node:fs/promises';
import { basename, isAbsolute, relative, resolve, sep } from 'node:path';
import type { DocumentRef } from './document.ts';
import type { Problem } from './problem.ts';
import type { Payload } from './push.ts';

/** Documents are read into memory whole, outside the heap that PARSE_MEMORY_MB limits. */
const DOCUMENT_MAX_BYTES = 64 * 1024 * 1024;

export type Located = { ok: true; document: DocumentRef } | { ok: false; problem: Problem };

/** `documentsDir` is a real path, without symbolic links. */
export async function locate(payload: Payload, documentsDir: string): Promise<Located> {
  if (payload.content_base64 !== undefined) {
    const bytes = new Uint8Array(Buffer.from(payload.content_base64, 'base64'));
    return { ok: true, document: { source: { bytes }, name: payload.name, mediaType: payload.media_type } };
  }
  const wanted = resolve(documentsDir, payload.file);
  if (payload.file.includes('\0') || !isBelow(documentsDir, wanted)) return outside();
  const path = await realpath(wanted).catch(() => undefined);
  if (path === undefined) return missing(payload.file);
  if (!isBelow(documentsDir, path)) return outside();
  const found = await stat(path);
  if (!found.isFile()) return missing(payload.file);
  if (found.size > DOCUMENT_MAX_BYTES) return tooLarge(payload.file, found.size);
  return { ok: true, document: { source: { path }, name: basename(payload.file), mediaType: payload.media_type } };
}

function isBelow(root: string, path: string): boolean {
  const way = relative(root, path);
  return way !== '' && way !== '..' && !way.startsWith(`..${sep}`) && !isAbsolute(way);
}

const refuse = (status: number, code: string, title: string, detail: string): Located => ({
  ok: false,
  problem: { status, code, title, detail, pointer: '/payload/file' },
});

const outside = () =>
  refuse(422, 'file_outside', 'The file is not one of the documents', 'The path leads out of the documents directory.');

const missing = (file: string) =>
  refuse(
    422,
    'file_not_found',
    'There is no such document',
    `There is no file ${JSON.stringify(file)} in the documents directory.`,
  );

const tooLarge = (file: string, bytes: number) =>
  refuse(
    413,
    'document_too_large',
    'The document is too large',
    `${file} has ${bytes} bytes, the limit is ${DOCUMENT_MAX_BYTES}.`,
  );
