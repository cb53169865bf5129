/** RFC 9457 problems: every answer of this parser that is not a success. */
import type { Response } from 'express';

export type Problem = {
  status: number;
  /** Stable, for programs. */
  code: string;
  title: string;
  /** For people. */
  detail: string;
  /** RFC 6901 pointer into the push body. */
  pointer?: string;
  /** Sent as Retry-After. */
  retryAfterS?: number;
};

export function sendProblem(response: Response, { retryAfterS, ...problem }: Problem): void {
  if (retryAfterS !== undefined) response.set('Retry-After', String(retryAfterS));
  response
    .status(problem.status)
    .type('application/problem+json')
    .send(JSON.stringify({ type: `urn:docsched:example-parser:${problem.code}`, ...problem }));
}
