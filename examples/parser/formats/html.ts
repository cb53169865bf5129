/** HTML to sections: the text of the page, split where its headings are. Tables stay readable as aligned text. */
import { compile, type FormatCallback } from 'html-to-text';
import type { Parsed, Reading, Section } from '../document.ts';
import { ParseFailure } from '../outcome.ts';
import { decodeText } from './decode.ts';

/** Private-use characters that mark a heading in the converted text; removed from the page first. */
const OPEN = '\uE000';
const CLOSE = '\uE001';
const MARKED_HEADING = /^\uE000([^\uE001]*)\uE001$/gm;

/** html-to-text stops silently at this many characters, so a longer page is refused instead. */
const PAGE_MAX_CHARACTERS = 1 << 24;

const markHeading: FormatCallback = (elem, walk, builder) => {
  builder.openBlock({ leadingLineBreaks: 2 });
  builder.addLiteral(OPEN);
  walk(elem.children, builder);
  builder.addLiteral(CLOSE);
  builder.closeBlock({ trailingLineBreaks: 2 });
};

const toText = compile({
  wordwrap: false,
  limits: { maxInputLength: PAGE_MAX_CHARACTERS },
  formatters: { markHeading },
  selectors: [
    ...['h1', 'h2', 'h3', 'h4', 'h5', 'h6'].map((selector) => ({ selector, format: 'markHeading' })),
    { selector: 'table', format: 'dataTable', options: { uppercaseHeaderCells: false, maxColumnWidth: 120 } },
    { selector: 'a', options: { ignoreHref: true } },
    ...['img', 'script', 'style', 'template', 'noscript'].map((selector) => ({ selector, format: 'skip' })),
  ],
});

export async function readHtml({ bytes, name, onPart }: Reading): Promise<Parsed> {
  const html = decodeText(bytes) ?? '';
  const sections = splitHtml(html, name);
  for (const section of sections) await onPart(section.number, sections.length);
  const generator = /<meta[^>]+name=["']generator["'][^>]+content=["']([^"']+)/i.exec(html)?.[1];
  const author = /<meta[^>]+name=["']author["'][^>]+content=["']([^"']+)/i.exec(html)?.[1];
  const metadata = { ...(author && { author }), ...(generator && { generator }) };
  return { title: titleOf(html) ?? firstHeading(sections), parts: { sections }, metadata };
}

/** What stands before the first heading becomes a section without one. */
export function splitHtml(html: string, name: string): Section[] {
  if (html.length > PAGE_MAX_CHARACTERS) {
    throw new ParseFailure('out_of_memory', `${name} has more text than this parser takes: ${html.length} characters.`);
  }
  const [before = '', ...rest] = toText(html.replace(/[\uE000\uE001]/g, '')).split(MARKED_HEADING);
  const sections: Omit<Section, 'number'>[] = before.trim() === '' ? [] : [{ heading: null, text: clean(before) }];
  for (let at = 0; at < rest.length; at += 2) {
    sections.push({ heading: rest[at]!.replace(/\s+/g, ' ').trim(), text: clean(rest[at + 1]!) });
  }
  return sections.map((section, index) => ({ number: index + 1, ...section }));
}

/** Headings inside table cells cannot split the text; their marks go. */
const clean = (text: string) =>
  text
    .replace(/[\uE000\uE001]/g, '')
    .replace(/[ \t]+$/gm, '')
    .trim();

function titleOf(html: string): string | undefined {
  const title = /<title[^>]*>([\s\S]*?)<\/title>/i.exec(html)?.[1];
  return title === undefined ? undefined : toText(`<p>${title}</p>`).trim() || undefined;
}

export const firstHeading = (sections: Section[]) => sections.find((section) => section.heading)?.heading ?? null;
