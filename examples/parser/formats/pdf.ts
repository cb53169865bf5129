/**
 * PDF text page by page, with pdf.js as bundled by unpdf. pdf.js repairs what it can, which turns a document that was
 * cut short into a shorter one; so the end of the file is checked first, and a page that fails fails the document.
 */
import { getDocumentProxy } from 'unpdf';
import type { Page, Parsed, Reading } from '../document.ts';
import { ParseFailure } from '../outcome.ts';
import { createPdfTables } from './pdf-tables.ts';

/** Writers put %%EOF last; some append a few bytes of their own. */
const TAIL_BYTES = 2_048;

type PdfDocument = Awaited<ReturnType<typeof getDocumentProxy>>;

export async function readPdf(reading: Reading): Promise<Parsed> {
  const { bytes, name } = reading;
  const fileBytes = bytes.length;
  if (isCutShort(bytes)) {
    const reason = `its ${fileBytes} bytes stop before the end-of-file mark`;
    throw new ParseFailure('unreadable', `${name} is damaged or was cut short: ${reason}.`);
  }
  const tables = createPdfTables();
  // pdf.js takes the bytes away from their buffer, so nothing below may use them.
  const pdf = await open(bytes, name, tables.options);
  const pages = await readPages(pdf, reading);
  if (tables.missing.size > 0) {
    const needed = [...tables.missing].join(', ');
    throw new ParseFailure('unreadable', `${name} uses character tables that are not installed here: ${needed}.`);
  }
  if (pages.every((page) => page.text === '')) {
    const count = pages.length === 1 ? 'one page' : `${pages.length} pages`;
    throw new ParseFailure('no_text', `${name} has ${count} but no text: it is probably a scan and needs OCR.`);
  }
  const { title, ...metadata } = await readMetadata(pdf);
  return { title: title ?? firstLine(pages), parts: { pages }, metadata: { ...metadata, pages: pages.length } };
}

function isCutShort(bytes: Uint8Array): boolean {
  const tail = Buffer.from(bytes.subarray(-TAIL_BYTES)).toString('latin1');
  return !tail.includes('%%EOF') || !tail.includes('startxref');
}

async function open(bytes: Uint8Array, name: string, options: object): Promise<PdfDocument> {
  let pdf: PdfDocument;
  try {
    pdf = await getDocumentProxy(bytes, { verbosity: 0, ...options });
  } catch (error) {
    if ((error as Error).name === 'PasswordException') {
      throw new ParseFailure('locked', `${name} is protected by a password.`, error);
    }
    throw new ParseFailure('unreadable', `${name} cannot be read as a PDF: ${(error as Error).message}`, error);
  }
  if (pdf.numPages === 0) throw new ParseFailure('unreadable', `${name} is a PDF without pages.`);
  return pdf;
}

async function readPages(pdf: PdfDocument, { name, onPart }: Reading): Promise<Page[]> {
  const pages: Page[] = [];
  for (let number = 1; number <= pdf.numPages; number += 1) {
    try {
      pages.push({ number, text: await readPage(pdf, number) });
    } catch (error) {
      const place = `page ${number} of ${pdf.numPages}`;
      throw new ParseFailure('unreadable', `${name} is damaged: ${place} cannot be read.`, error);
    }
    await onPart(number, pdf.numPages);
  }
  return pages;
}

async function readPage(pdf: PdfDocument, number: number): Promise<string> {
  const page = await pdf.getPage(number);
  const { items } = await page.getTextContent();
  page.cleanup();
  const text = items.map((item) => ('str' in item ? item.str + (item.hasEOL ? '\n' : '') : '')).join('');
  return text.replace(/[ \t]+$/gm, '').trim();
}

const METADATA = {
  title: 'Title',
  author: 'Author',
  creator: 'Creator',
  producer: 'Producer',
  pdf_version: 'PDFFormatVersion',
};

/** The document's own statements about itself; one that is absent, blank or no text is left out. */
async function readMetadata(pdf: PdfDocument): Promise<Record<string, string>> {
  const stated = (await pdf.getMetadata().catch(() => undefined))?.info as Record<string, unknown> | undefined;
  const named = Object.entries(METADATA).map(([name, key]) => [name, stated?.[key]] as const);
  return Object.fromEntries(
    named.flatMap(([name, value]) => (typeof value === 'string' && value.trim() ? [[name, value.trim()]] : [])),
  );
}

function firstLine(pages: Page[]): string | null {
  const text = pages.find((page) => page.text !== '')?.text ?? '';
  return text.replace(/\n.*$/s, '').slice(0, 200) || null;
}
