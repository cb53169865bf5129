/**
 * Notes which attempts their parsers accepted. Most attempts are settled before anyone needs to know, so it is written
 * late and for many at once. A crash before that only makes a later time-out say `in_doubt_expired` instead of
 * `processing_expired`.
 */
import type { Db } from '../db.ts';
import type { Log } from '../log.ts';

export type Acceptance = {
  note(attemptId: string): void;
  /** Writes now what was noted. Never rejects. */
  flush(): Promise<void>;
};

const NOTE_AFTER_MS = 500;

export function createAcceptance({ db, log }: { db: Db; log: Log }): Acceptance {
  let noted: string[] = [];
  let timer: NodeJS.Timeout | undefined;
  return {
    note(attemptId) {
      noted.push(attemptId);
      timer ??= setTimeout(flush, NOTE_AFTER_MS);
    },
    flush,
  };

  async function flush(): Promise<void> {
    clearTimeout(timer);
    timer = undefined;
    const ids = noted;
    noted = [];
    if (ids.length === 0) return;
    await db.query('accept_attempts', [ids]).catch((error) => {
      log.warn({ event: 'accept_note_failed', attempts: ids.length, error: (error as Error).message });
    });
  }
}
