/**
 * What one push request holds: which tasks go together, and the text of its body. Pure.
 */
import type { ClaimedTask } from './claim.ts';

/** A batch is sent once it is this long, full or not: a parser reads it whole before it can begin. */
const MAX_BATCH_BYTES = 8 * 1024 * 1024;
/** Everything of a push body but the payload, roughly. */
const ENVELOPE_BYTES = 600;

/** Splits tasks of one claim into requests, in their order: alone, or up to `batch` of one target together. */
export function intoRequests(tasks: readonly ClaimedTask[]): ClaimedTask[][] {
  const requests: ClaimedTask[][] = [];
  const filling = new Map<string, { tasks: ClaimedTask[]; bytes: number }>();
  for (const task of tasks) {
    const { url, batch } = task.target;
    if (batch === 1) {
      requests.push([task]);
      continue;
    }
    const bytes = ENVELOPE_BYTES + Buffer.byteLength(task.payload);
    let last = filling.get(url);
    if (!last || last.tasks.length >= batch || last.bytes + bytes > MAX_BATCH_BYTES) {
      last = { tasks: [], bytes: 0 };
      filling.set(url, last);
      requests.push(last.tasks);
    }
    last.tasks.push(task);
    last.bytes += bytes;
  }
  return requests;
}

/** The payload goes as the text it came in. `more`: further members, as JSON text that begins with a comma. */
export function pushBody(queue: string, task: ClaimedTask, callbackUrl: string, more = ''): string {
  return (
    `{"queue":"${queue}","task_id":"${task.task_id}","task_version":"${task.task_version}",` +
    `"priority":${task.priority},"payload":${task.payload},"attempt":${task.attempt},` +
    `"attempt_id":"${task.attempt_id}","deadline":${task.deadline},"callback_url":${JSON.stringify(callbackUrl)},` +
    `"progress_url":${JSON.stringify(`${callbackUrl}/progress`)}${more}}`
  );
}

/** Each task's own traceparent goes with it: the header of the request can only name one. */
export function batchBody(
  queue: string,
  tasks: readonly ClaimedTask[],
  callbackUrl: (attemptId: string) => string,
  traceparents: readonly string[],
): string {
  const bodies = tasks.map((task, i) =>
    pushBody(queue, task, callbackUrl(task.attempt_id), `,"traceparent":"${traceparents[i]}"`),
  );
  return `{"tasks":[${bodies.join(',')}]}`;
}

/** The deadline of a claim on this process's monotonic clock, counted from before the claim was sent. */
export const endOf = (task: ClaimedTask, claimedAt: number): number =>
  claimedAt + Number(task.deadline) - Number(task.started_at);
