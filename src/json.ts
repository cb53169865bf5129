/**
 * Reads JSON bodies without losing anything: a payload or result is cut out of the text as it was sent, so big
 * numbers, escapes and key order survive. JSON.parse does the checking; the scanner below may then trust the syntax.
 */
import { AppError } from './errors.ts';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Parsed value and source text of a body. Throws malformed_json on bad UTF-8, bad JSON or a byte order mark. */
export function parseBody(bytes: Uint8Array): { value: unknown; text: string } {
  try {
    const text = decoder.decode(bytes);
    return { value: JSON.parse(text), text };
  } catch (error) {
    const detail = bytes.length === 0 ? 'The body is empty; a JSON object is expected' : (error as Error).message;
    throw new AppError('malformed_json', detail, { pointer: '' });
  }
}

/**
 * Source text of member `name` of the object that begins at or after `from` in valid JSON `text`; of several with
 * that name the last, like JSON.parse. Undefined when the value is no object or has no such member.
 */
export function memberText(text: string, name: string, from = 0): string | undefined {
  let found: string | undefined;
  eachMember(text, from, (key, start, end) => {
    if (key === name) found = text.slice(start, end);
  });
  return found;
}

/** Start offsets of the elements of array member `name` of the top-level object; [] when there is none. */
export function elementStarts(text: string, name: string): number[] {
  let starts: number[] = [];
  eachMember(text, 0, (key, start) => {
    if (key === name) starts = arrayStarts(text, start);
  });
  return starts;
}

function eachMember(text: string, from: number, visit: (key: string, start: number, end: number) => void): void {
  let i = skipSpace(text, from);
  if (text[i] !== '{') return;
  i = skipSpace(text, i + 1);
  while (text[i] !== '}') {
    const keyEnd = skipValue(text, i);
    const start = skipSpace(text, skipSpace(text, keyEnd) + 1);
    const end = skipValue(text, start);
    visit(JSON.parse(text.slice(i, keyEnd)), start, end);
    i = skipSpace(text, end);
    if (text[i] === ',') i = skipSpace(text, i + 1);
  }
}

function arrayStarts(text: string, from: number): number[] {
  const starts: number[] = [];
  if (text[from] !== '[') return starts;
  let i = skipSpace(text, from + 1);
  while (text[i] !== ']') {
    starts.push(i);
    i = skipSpace(text, skipValue(text, i));
    if (text[i] === ',') i = skipSpace(text, i + 1);
  }
  return starts;
}

function skipSpace(text: string, from: number): number {
  let i = from;
  while (text.charCodeAt(i) <= 0x20) i += 1;
  return i;
}

/** Offset just after the value that begins at `from`. */
function skipValue(text: string, from: number): number {
  const first = text[from];
  if (first === '"') return skipString(text, from);
  if (first !== '{' && first !== '[') return skipScalar(text, from);
  let depth = 0;
  let i = from;
  do {
    const char = text[i];
    if (char === '"') {
      i = skipString(text, i);
      continue;
    }
    if (char === '{' || char === '[') depth += 1;
    else if (char === '}' || char === ']') depth -= 1;
    i += 1;
  } while (depth > 0);
  return i;
}

function skipString(text: string, from: number): number {
  let end = text.indexOf('"', from + 1);
  while (isEscaped(text, end)) end = text.indexOf('"', end + 1);
  return end + 1;
}

/** A quote after an odd number of backslashes does not end the string. */
function isEscaped(text: string, quote: number): boolean {
  let i = quote - 1;
  while (text[i] === '\\') i -= 1;
  return (quote - i) % 2 === 0;
}

function skipScalar(text: string, from: number): number {
  let i = from;
  while (i < text.length && !',}] \t\r\n'.includes(text[i]!)) i += 1;
  return i;
}
