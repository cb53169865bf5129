/**
 * Reads a push: the envelope docsched sends (a fault in it is 400) and this parser's own payload (422).
 * Members that are not known here are ignored, as the contract asks.
 */
import { z } from 'zod';
import type { Problem } from './problem.ts';

const id = z.string().regex(/^(0|[1-9][0-9]{0,18})$/);
const httpUrl = z.url({ protocol: /^https?$/ });

const PUSH = z.object({
  queue: z.string(),
  task_id: id,
  task_version: id,
  payload: z.unknown(),
  attempt_id: z.string().regex(/^[A-Za-z0-9_-]{22,64}$/),
  /** Milliseconds since the epoch. */
  deadline: z.number().int().nonnegative(),
  callback_url: httpUrl,
  progress_url: httpUrl,
});

const mediaType = z.string().min(1).max(255).optional();
const PAYLOAD = z.union([
  z.object({ file: z.string().min(1).max(1_024), media_type: mediaType, content_base64: z.undefined().optional() }),
  z.object({
    content_base64: z.base64(),
    name: z.string().min(1).max(255).default('document'),
    media_type: mediaType,
    file: z.undefined().optional(),
  }),
]);

export type Push = z.infer<typeof PUSH>;
export type Payload = z.infer<typeof PAYLOAD>;
export type ReadPush = { ok: true; push: Push; payload: Payload } | { ok: false; problem: Problem };

const pointerTo = (path: readonly PropertyKey[]) => path.map((step) => `/${String(step)}`).join('');

export function readPush(body: unknown): ReadPush {
  const push = PUSH.safeParse(body);
  if (!push.success) {
    const issue = push.error.issues[0]!;
    return refuse(400, 'invalid_push', 'The push is not what the contract says', issue.message, pointerTo(issue.path));
  }
  const payload = PAYLOAD.safeParse(push.data.payload);
  if (payload.success) return { ok: true, push: push.data, payload: payload.data };
  return refuse(422, 'invalid_payload', 'The payload names no document', ...payloadFault(push.data.payload));
}

const FORMS =
  'Expected {"file": "name.pdf"} or {"content_base64": "...", "name": "name.pdf"}, each with an optional "media_type".';

/** A union's own message says nothing useful, so the fault is looked for in the form that was meant. */
function payloadFault(payload: unknown): [detail: string, pointer: string] {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) return [FORMS, '/payload'];
  if ('file' in payload && 'content_base64' in payload)
    return [`Only one of file and content_base64. ${FORMS}`, '/payload'];
  const form = 'content_base64' in payload ? PAYLOAD.options[1] : PAYLOAD.options[0];
  const issue = form.safeParse(payload).error?.issues[0];
  return issue && ('file' in payload || 'content_base64' in payload)
    ? [issue.message, pointerTo(['payload', ...issue.path])]
    : [FORMS, '/payload'];
}

function refuse(status: number, code: string, title: string, detail: string, pointer: string): ReadPush {
  return { ok: false, problem: { status, code, title, detail, pointer } };
}
