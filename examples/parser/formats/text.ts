/** Plain text: one section, titled by its first line. */
import type { Parsed, Reading } from '../document.ts';
import { decodeText } from './decode.ts';

export async function readText({ bytes, onPart }: Reading): Promise<Parsed> {
  const text = (decodeText(bytes) ?? '').replace(/\r\n?/g, '\n').trim();
  await onPart(1, 1);
  const title = text.split('\n', 1)[0]!.slice(0, 200) || null;
  return {
    title,
    parts: { sections: [{ number: 1, heading: null, text }] },
    metadata: { lines: text.split('\n').length },
  };
}
