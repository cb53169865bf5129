/** DOCX to sections: mammoth makes plain HTML of it, which is then split at its headings like any page. */
import mammoth from 'mammoth';
import type { Parsed, Reading } from '../document.ts';
import { ParseFailure } from '../outcome.ts';
import { firstHeading, splitHtml } from './html.ts';
import { type Entry, listEntries, readEntry } from './zip.ts';

const PROPERTIES_MAX_BYTES = 262_144;
/** Pictures are never looked at, so the converter need not carry their bytes. */
const noPicture = mammoth.images.imgElement(async () => ({ src: '' }));

export async function readDocx({ bytes, name, limits, onPart }: Reading): Promise<Parsed> {
  const entries = listEntries(bytes) ?? [];
  refuseBomb(entries, name, limits.memoryMb);
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const { value: html } = await mammoth
    .convertToHtml({ buffer }, { convertImage: noPicture })
    .catch((error: unknown) => {
      throw new ParseFailure('unreadable', `${name} cannot be read as a Word document: ${String(error)}`, error);
    });
  const sections = splitHtml(html, name);
  for (const section of sections) await onPart(section.number, sections.length);
  const { title, ...metadata } = readProperties(bytes, entries);
  return { title: title ?? firstHeading(sections), parts: { sections }, metadata };
}

/** The heap limit does not see what an archive expands to outside the heap, so its own directory is asked first. */
function refuseBomb(entries: Entry[], name: string, memoryMb: number): void {
  const expandedMb = Math.ceil(entries.reduce((sum, entry) => sum + entry.bytes, 0) / 1_048_576);
  if (expandedMb <= memoryMb) return;
  const size = `${expandedMb} MB, and a parse may use ${memoryMb} MB`;
  throw new ParseFailure('out_of_memory', `${name} would expand to ${size}.`);
}

function readProperties(bytes: Uint8Array, entries: Entry[]): Record<string, string> & { title?: string } {
  const part = (path: string) =>
    readEntry(
      bytes,
      entries.find((entry) => entry.name === path),
      PROPERTIES_MAX_BYTES,
    );
  const core = part('docProps/core.xml');
  const app = part('docProps/app.xml');
  const found = {
    title: element(core, 'dc:title'),
    author: element(core, 'dc:creator'),
    modified: element(core, 'dcterms:modified'),
    producer: element(app, 'Application'),
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== '')) as Record<string, string>;
}

const ENTITIES: Record<string, string> = { '&amp;': '&', '&lt;': '<', '&gt;': '>', '&quot;': '"', '&apos;': "'" };

const element = (xml: string, tag: string) =>
  (new RegExp(`<${tag}[^>]*>([^<]*)</${tag}>`).exec(xml)?.[1] ?? '')
    .replace(/&(amp|lt|gt|quot|apos);/g, (entity) => ENTITIES[entity]!)
    .trim();
