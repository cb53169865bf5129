/**
 * Text on a terminal: lines that stay, below them one block that is redrawn in place. Where nothing can be redrawn (a
 * pipe, a file, TERM=dumb) each line of the block is printed when it has changed. styleText keeps to NO_COLOR.
 */
import { styleText } from 'node:util';
import stringWidth from 'string-width';

export type Screen = {
  /** Columns to use. */
  width: number;
  /** Prints text that stays. */
  say(text: string): void;
  /** Shows these lines as the block. No line may be wider than `width`. */
  draw(lines: string[]): void;
  /** Leaves the block as it stands and gives the cursor back. */
  end(): void;
};

const HIDE_CURSOR = '\x1b[?25l';
const SHOW_CURSOR = '\x1b[?25h';
const CLEAR_LINE = '\x1b[K';
const CLEAR_BELOW = '\x1b[J';
const WIDTH_MAX = 140;
const WIDTH_OF_FILES = 120;

export function createScreen(out: NodeJS.WriteStream): Screen {
  const isLive = out.isTTY && process.env.TERM !== 'dumb';
  const width = Math.min(out.columns || WIDTH_OF_FILES, WIDTH_MAX);
  let block: string[] = [];

  function redraw(lines: string[]): void {
    // What has left the screen at the top cannot be redrawn: the first lines give way.
    const shown = lines.slice(-Math.max(1, (out.rows || 24) - 2));
    const up = block.length > 0 ? `\x1b[${block.length}A` : '';
    out.write(`${HIDE_CURSOR}${up}${shown.map((line) => `${line}${CLEAR_LINE}\n`).join('')}${CLEAR_BELOW}`);
    block = shown;
  }

  function printChanges(lines: string[]): void {
    for (const line of lines.filter((line) => !block.includes(line))) out.write(`${line}\n`);
    block = lines;
  }

  function end(): void {
    if (isLive && block.length > 0) out.write(SHOW_CURSOR);
    block = [];
  }

  return { width, say: (text) => void out.write(`${text}\n`), draw: isLive ? redraw : printChanges, end };
}

export type Cell = { text: string; style?: Parameters<typeof styleText>[0]; align?: 'right' };

/** Cells beside each other; the last one is cut to what `width` leaves, the others have `widths`. */
export function row(cells: Cell[], widths: number[], width: number): string {
  const left = width - widths.reduce((sum, each) => sum + each + 2, 0);
  const texts = cells.map(({ text, style, align }, at) => {
    const room = widths[at] ?? left;
    const fitting = cut(text, room);
    const gap = ' '.repeat(Math.max(0, at < widths.length ? room - stringWidth(fitting) : 0));
    const styled = style === undefined ? fitting : styleText(style, fitting);
    return align === 'right' ? gap + styled : styled + gap;
  });
  return texts.join('  ').trimEnd();
}

const graphemes = new Intl.Segmenter();

/** At most `width` columns of `text` on one line; an ellipsis says that there was more. */
export function cut(text: string, width: number): string {
  const line = text.replace(/[\s\p{Cc}]+/gu, ' ').trim();
  let kept = '';
  for (const { segment } of graphemes.segment(line)) {
    if (stringWidth(kept + segment) > width - (kept.length + segment.length < line.length ? 1 : 0))
      return `${kept.trimEnd()}…`;
    kept += segment;
  }
  return kept;
}

/** `text` broken between words into lines of at most `width` columns. */
export function fold(text: string, width: number): string[] {
  const lines = [''];
  for (const word of text.split(/\s+/)) {
    const longer = `${lines.at(-1)} ${word}`.trimStart();
    if (stringWidth(longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines.filter((line) => line !== '');
}

export const widest = (texts: string[]): number => Math.max(0, ...texts.map((text) => stringWidth(text)));
