/**
 * How a run can end, and the status codes this parser reports. The codes are this parser's own: docsched only
 * knows that 0 is success. README.md has the same table for people.
 */

export const STATUS_CODES = {
  /** Damaged, cut short, empty, or not in the encoding it should be in. */
  unreadable: 10,
  /** The content is of another type than the name or media_type says. */
  mislabelled: 11,
  /** PARSE_TIMEOUT_MS or the attempt's deadline was reached. */
  timed_out: 12,
  /** The document needs more memory than PARSE_MEMORY_MB. */
  out_of_memory: 13,
  /** The result is larger than RESULT_MAX_BYTES, or than docsched takes (413). */
  result_too_large: 14,
  /** The parser was shut down before the document was done. */
  stopped: 15,
  /** A type this parser does not read. */
  unsupported: 16,
  /** Pages without any text, most likely a scan. */
  no_text: 17,
  /** Protected by a password. */
  locked: 18,
  /** A fault of the parser itself. */
  parser_fault: 19,
} as const;

export type FailureReason = keyof typeof STATUS_CODES;

export type Outcome =
  /** `resultJson` goes into the callback byte for byte. */
  | { kind: 'parsed'; resultJson: string; message: string }
  | Failed
  /** docsched asked for it; it hears `done` on the progress URL and no callback. */
  | { kind: 'cancelled' }
  /** docsched no longer knows the attempt; it hears nothing more. */
  | { kind: 'abandoned' };

export type Failed = { kind: 'failed'; reason: FailureReason; message: string };

export const failed = (reason: FailureReason, message: string): Failed => ({ kind: 'failed', reason, message });

/** Why a document cannot be parsed, in a sentence for the person who sent it. */
export class ParseFailure extends Error {
  readonly reason: FailureReason;
  constructor(reason: FailureReason, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = 'ParseFailure';
    this.reason = reason;
  }
}
