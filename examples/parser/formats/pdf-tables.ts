/**
 * Character tables (CMaps) and standard fonts for pdf.js, read from the pdfjs-dist package: unpdf does not bundle
 * them, and without them the text of many Chinese, Japanese and Korean PDFs comes out empty with no error. So a table
 * that was asked for and not found is noted, for the reader to fail on.
 */
import { readFile } from 'node:fs/promises';

const FOLDERS: Record<string, string> = { cMapUrl: 'cmaps', standardFontDataUrl: 'standard_fonts', wasmUrl: 'wasm' };

type Wanted = { kind: string; filename: string };

export function createPdfTables() {
  const missing = new Set<string>();

  async function fetch({ kind, filename }: Wanted): Promise<Uint8Array> {
    try {
      const packageUrl = import.meta.resolve('pdfjs-dist/package.json');
      return new Uint8Array(await readFile(new URL(`${FOLDERS[kind]}/${filename}`, packageUrl)));
    } catch (error) {
      // A missing font or decoder changes how a page looks, a missing CMap what it says.
      if (kind === 'cMapUrl') missing.add(filename);
      throw error;
    }
  }

  /** pdf.js calls it with `new`. */
  function BinaryDataFactory() {
    return { fetch };
  }

  /** The URLs only have to be there: BinaryDataFactory is asked instead. */
  const options = { BinaryDataFactory, cMapUrl: 'cmaps/', cMapPacked: true, standardFontDataUrl: 'standard_fonts/' };
  return { options, missing };
}
