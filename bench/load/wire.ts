/** What travels in every scenario, the same for all contestants: submits, pushes, callbacks. */

/** A submit; in a push the same members come back, with `callback_url` and, from docsched, `attempt_id`. */
export type Task = { task_id: string; task_version: string; priority: number; payload: unknown };
export type Push = Task & { callback_url: string; attempt_id?: string };

/** Half of the tasks are urgent: every contestant uses its priorities. */
export const priorityOf = (id: number): number => (id % 2 === 0 ? 1 : 5);

/** About 250 bytes, as a service would name a document; the id makes each of them its own. */
export const payloadOf = (id: number) => ({
  bucket: 'incoming-documents',
  key: `2026/11/customers/${100_000 + (id % 9_999)}/contracts/${id}.pdf`,
  media_type: 'application/pdf',
  bytes: 184_320 + (id % 4_096),
  sha256: '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08',
  language: 'en',
  document: id,
});

/** `runAt`: not before this time, ms since the epoch. */
export const submitText = (id: number, runAt?: number): string =>
  `{"task_id":"${id}","task_version":"1","priority":${priorityOf(id)},` +
  `${runAt === undefined ? '' : `"run_at":${runAt},`}"payload":${JSON.stringify(payloadOf(id))}}`;

/** What the stub parser makes of any document. */
export const RESULT = JSON.stringify({
  media_type: 'text/plain',
  pages: 3,
  text_url: 'https://files.example/parsed/9f86d081884c7d65.txt',
});
export const CALLBACK = `{"status_code":0,"result":${RESULT}}`;

/** Milliseconds of the machine's monotonic clock: the same in every process. */
export const clockMs = (): number => Number(process.hrtime.bigint()) / 1e6;
