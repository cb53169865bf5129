/**
 * What a document is. Its content decides; the name and media_type are claims that must agree with it, because a
 * mislabelled file is a mistake upstream that a guess would only hide.
 */
import { extname } from 'node:path';
import type { DocumentRef } from '../document.ts';
import { ParseFailure } from '../outcome.ts';
import { decodeText } from './decode.ts';
import { listEntries } from './zip.ts';

export type Kind = {
  /** Completes "its content is ...". */
  phrase: string;
  mediaType: string;
  extensions: string[];
  /** Set for the kinds this parser reads. */
  unit?: 'page' | 'section';
};

export type ReadableKind = Kind & { unit: 'page' | 'section' };

const kind = <K extends Kind>(value: K): K => value;

export const KINDS = {
  pdf: kind({ phrase: 'a PDF', mediaType: 'application/pdf', extensions: ['.pdf'], unit: 'page' }),
  docx: kind({
    phrase: 'a Word document',
    mediaType: 'application/vnd.openxmlformats-officedocument.wordprocessingml.document',
    extensions: ['.docx'],
    unit: 'section',
  }),
  html: kind({
    phrase: 'an HTML page',
    mediaType: 'text/html',
    extensions: ['.html', '.htm', '.xhtml'],
    unit: 'section',
  }),
  markdown: kind({
    phrase: 'a Markdown text',
    mediaType: 'text/markdown',
    extensions: ['.md', '.markdown'],
    unit: 'section',
  }),
  text: kind({ phrase: 'plain text', mediaType: 'text/plain', extensions: ['.txt', '.text', '.log'], unit: 'section' }),
  xlsx: kind({
    phrase: 'an Excel workbook',
    mediaType: 'application/vnd.openxmlformats-officedocument.spreadsheetml.sheet',
    extensions: ['.xlsx'],
  }),
  pptx: kind({
    phrase: 'a PowerPoint presentation',
    mediaType: 'application/vnd.openxmlformats-officedocument.presentationml.presentation',
    extensions: ['.pptx'],
  }),
  opendocument: kind({
    phrase: 'an OpenDocument file',
    mediaType: 'application/vnd.oasis.opendocument.text',
    extensions: ['.odt', '.ods', '.odp'],
  }),
  ole: kind({
    phrase: 'an old or encrypted Office document',
    mediaType: 'application/msword',
    extensions: ['.doc', '.xls', '.ppt'],
  }),
  rtf: kind({ phrase: 'an RTF text', mediaType: 'application/rtf', extensions: ['.rtf'] }),
  png: kind({ phrase: 'a PNG image', mediaType: 'image/png', extensions: ['.png'] }),
  jpeg: kind({ phrase: 'a JPEG image', mediaType: 'image/jpeg', extensions: ['.jpg', '.jpeg'] }),
  gif: kind({ phrase: 'a GIF image', mediaType: 'image/gif', extensions: ['.gif'] }),
  zip: kind({ phrase: 'a ZIP archive', mediaType: 'application/zip', extensions: ['.zip'] }),
  gzip: kind({ phrase: 'a gzip archive', mediaType: 'application/gzip', extensions: ['.gz'] }),
} satisfies Record<string, Kind>;

const TEXTUAL: Kind[] = [KINDS.text, KINDS.markdown, KINDS.html];

/** The kind to read the document as; throws a ParseFailure that says why there is none. */
export function chooseKind(
  bytes: Uint8Array,
  { name, mediaType }: Pick<DocumentRef, 'name' | 'mediaType'>,
): ReadableKind {
  if (bytes.length === 0) throw new ParseFailure('unreadable', `${name} is empty.`);
  const claimed = claimedKind(name, mediaType);
  const found = sniff(bytes);
  if (found === 'cut_zip') throw cutZip(name, claimed);
  if (found === undefined) throw unknownContent(name, claimed);
  // One text can be several kinds at once, and only its author knows which was meant.
  const chosen = TEXTUAL.includes(found) && claimed !== undefined && TEXTUAL.includes(claimed) ? claimed : found;
  if (claimed !== undefined && claimed !== chosen) {
    throw new ParseFailure('mislabelled', `${name} says it is ${claimed.phrase}, but its content is ${chosen.phrase}.`);
  }
  if (chosen.unit === undefined) {
    throw new ParseFailure('unsupported', `${name} is ${chosen.phrase}, which this parser does not read.`);
  }
  return chosen as ReadableKind;
}

function claimedKind(name: string, mediaType: string | undefined): Kind | undefined {
  const kinds: Kind[] = Object.values(KINDS);
  const essence = mediaType?.replace(/;.*$/s, '').trim().toLowerCase();
  if (essence !== undefined) {
    const named = kinds.find((candidate) => candidate.mediaType === essence);
    if (named !== undefined) return named;
  }
  const extension = extname(name).toLowerCase();
  return kinds.find((candidate) => candidate.extensions.includes(extension));
}

const cutZip = (name: string, claimed: Kind | undefined) =>
  claimed === undefined || claimed === KINDS.docx
    ? new ParseFailure('unreadable', `${name} is damaged or was cut short: the directory at its end is missing.`)
    : new ParseFailure(
        'mislabelled',
        `${name} says it is ${claimed.phrase}, but its content is a damaged ZIP archive.`,
      );

function unknownContent(name: string, claimed: Kind | undefined): ParseFailure {
  if (claimed === undefined) {
    return new ParseFailure('unsupported', `The content of ${name} is of no type this parser knows.`);
  }
  const what = TEXTUAL.includes(claimed) ? 'is not text in UTF-8 or UTF-16' : 'is nothing this parser can recognise';
  return new ParseFailure('unreadable', `${name} says it is ${claimed.phrase}, but its content ${what}.`);
}

const MAGIC: [Kind, string][] = [
  [KINDS.png, '\x89PNG\r\n'],
  [KINDS.jpeg, '\xff\xd8\xff'],
  [KINDS.gif, 'GIF8'],
  [KINDS.gzip, '\x1f\x8b\x08'],
  [KINDS.ole, '\xd0\xcf\x11\xe0'],
  [KINDS.rtf, '{\\rtf'],
];

function sniff(bytes: Uint8Array): Kind | 'cut_zip' | undefined {
  const head = Buffer.from(bytes.buffer, bytes.byteOffset, Math.min(bytes.length, 1_024)).toString('latin1');
  for (const [found, magic] of MAGIC) if (head.startsWith(magic)) return found;
  if (head.startsWith('PK\x03\x04')) return sniffZip(bytes);
  // A PDF may have up to a kilobyte of other bytes before its header.
  if (head.includes('%PDF-')) return KINDS.pdf;
  return sniffText(bytes);
}

function sniffZip(bytes: Uint8Array): Kind | 'cut_zip' {
  const names = listEntries(bytes)?.map((entry) => entry.name);
  if (names === undefined) return 'cut_zip';
  if (names.includes('word/document.xml')) return KINDS.docx;
  if (names.includes('xl/workbook.xml')) return KINDS.xlsx;
  if (names.includes('ppt/presentation.xml')) return KINDS.pptx;
  return names[0] === 'mimetype' && names.includes('content.xml') ? KINDS.opendocument : KINDS.zip;
}

function sniffText(bytes: Uint8Array): Kind | undefined {
  const text = decodeText(bytes);
  if (text === undefined) return undefined;
  return /^\s*(<\?xml[^>]*>\s*)?(<!--[\s\S]*?-->\s*)*<(!doctype html|html|head|body)\b/i.test(text.slice(0, 4_096))
    ? KINDS.html
    : KINDS.text;
}
