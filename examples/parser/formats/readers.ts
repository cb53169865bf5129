/** Which reader reads which kind. Readers are loaded when first needed: a thread parses one document only. */
import type { Parsed, Reading } from '../document.ts';
import { KINDS, type ReadableKind } from './kinds.ts';

export type Reader = (reading: Reading) => Promise<Parsed>;

export async function readerOf(kind: ReadableKind): Promise<Reader> {
  switch (kind) {
    case KINDS.pdf:
      return (await import('./pdf.ts')).readPdf;
    case KINDS.docx:
      return (await import('./docx.ts')).readDocx;
    case KINDS.html:
      return (await import('./html.ts')).readHtml;
    case KINDS.markdown:
      return (await import('./markdown.ts')).readMarkdown;
    case KINDS.text:
      return (await import('./text.ts')).readText;
    default:
      throw new Error(`no reader for ${kind.mediaType}`);
  }
}
