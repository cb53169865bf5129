/** The shapes that travel between the push, the parsing thread and the format readers. */
import type { Outcome } from './outcome.ts';
import type { Limits } from './settings.ts';

/** A document to parse, checked at the push: either a file below DOCUMENTS_DIR or bytes from the payload. */
export type DocumentRef = {
  source: { path: string } | { bytes: Uint8Array<ArrayBuffer> };
  /** Shown in messages; its extension says what the document claims to be. */
  name: string;
  /** What the payload claims, stronger than the extension. */
  mediaType: string | undefined;
};

export type Page = { number: number; text: string };
export type Section = { number: number; heading: string | null; text: string };

/** What a format reader makes of a document: pages where the format has them, sections elsewhere. */
export type Parsed = {
  title: string | null;
  parts: { pages: Page[] } | { sections: Section[] };
  metadata: Record<string, string | number>;
};

/** What a format reader is given. */
export type Reading = {
  bytes: Uint8Array<ArrayBuffer>;
  name: string;
  limits: Limits;
  /** Called and awaited after each page or section. */
  onPart: (done: number, total: number) => Promise<void>;
};

/** From the parsing thread to the parser. */
export type WorkerMessage =
  | { kind: 'part'; done: number; total: number; unit: 'page' | 'section' }
  | { kind: 'end'; outcome: Outcome };

export type WorkerInput = { document: DocumentRef; limits: Limits };
