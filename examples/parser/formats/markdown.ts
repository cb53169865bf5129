/** Markdown to sections. The text of a section is its own Markdown: lists, tables and code stay as their author wrote them. */
import { lexer } from 'marked';
import type { Parsed, Reading, Section } from '../document.ts';
import { decodeText } from './decode.ts';
import { firstHeading } from './html.ts';

export async function readMarkdown({ bytes, onPart }: Reading): Promise<Parsed> {
  const sections = splitMarkdown(decodeText(bytes) ?? '');
  for (const section of sections) await onPart(section.number, sections.length);
  return { title: firstHeading(sections), parts: { sections }, metadata: {} };
}

function splitMarkdown(markdown: string): Section[] {
  const sections: Section[] = [{ number: 1, heading: null, text: '' }];
  for (const token of lexer(markdown)) {
    if (token.type === 'heading') sections.push({ number: 0, heading: token.text as string, text: '' });
    else sections.at(-1)!.text += token.raw;
  }
  return sections
    .map(({ heading, text }) => ({ heading, text: text.trim() }))
    .filter(({ heading, text }) => heading !== null || text !== '')
    .map((section, index) => ({ number: index + 1, ...section }));
}
