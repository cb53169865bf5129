/**
 * How much a kind of requests may hold in memory, from the first byte of a body until the answer has left. Beyond it a
 * request is refused before it is read: what PostgreSQL cannot take does not pile up here, and refusing costs little.
 */
import type { Request, Response } from 'express';
import { AppError } from './errors.ts';

export type Admission = {
  /**
   * Counts the request and the bytes it declares until it is answered. Throws `overloaded`. Call it before reading, and
   * what it returns after that with the bytes that were read: a compressed body is larger than it was declared.
   */
  admit(req: Request, res: Response): (bytes: number) => void;
};

/** One for all: no stack is recorded when there is no time for it. */
const OVERLOADED = new AppError('overloaded', 'Too many requests are being handled', { retryAfterS: 1 });

/** `maxBytes` may be passed by the size of one body: so a large one is not kept out by small ones. */
export function createAdmission({ maxBytes, maxRequests }: { maxBytes: number; maxRequests: number }): Admission {
  let bytes = 0;
  let requests = 0;
  return {
    admit: (req, res) => {
      if (requests >= maxRequests || bytes >= maxBytes) throw OVERLOADED;
      let size = 0;
      const hold = (more: number) => {
        size += more;
        bytes += more;
      };
      const declared = Number(req.get('content-length') ?? Number.NaN);
      requests += 1;
      // In chunks: as it arrives.
      if (Number.isNaN(declared)) req.on('data', (chunk: Buffer) => hold(chunk.length));
      else hold(declared);
      res.once('close', () => {
        requests -= 1;
        hold(-size);
      });
      return (read) => {
        if (!res.closed) hold(Math.max(0, read - size));
      };
    },
  };
}
