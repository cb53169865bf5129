/** A client of server-sent events that shows everything it receives. */
import { request } from 'undici';
import { eventually } from './eventually.ts';
import type { Task } from './installation.ts';

export type TaskEvent = { event: string; id: string; task: Task & { update_at: number } };

export type EventStream = Awaited<ReturnType<typeof openStream>>;

/** Resolves when the head of the answer is there. The test closes what does not end by itself. */
export async function openStream(url: string, headers: Record<string, string> = {}) {
  const answer = await request(url, { headers });
  const events: TaskEvent[] = [];
  const comments: string[] = [];
  let text = '';
  let retry: number | null = null;
  let read = 0;
  const ended = receive().catch((error: Error) => error);

  return {
    status: answer.statusCode,
    headers: answer.headers,
    /** All so far. */
    events,
    comments,
    /** What was received and is no event stream. */
    text: () => text,
    retry: () => retry,
    /** The first event that was not returned yet. */
    next: async (): Promise<TaskEvent> => {
      const event = await eventually(() => events[read] ?? null);
      read++;
      return event!;
    },
    /** Resolves when the stream has ended; with the error when it was broken off. */
    ended,
    close: () => answer.body.destroy(),
  };

  async function receive(): Promise<void> {
    for await (const chunk of answer.body.setEncoding('utf8')) {
      text += chunk;
      for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
        take(text.slice(0, end).split('\n'));
        text = text.slice(end + 2);
      }
    }
  }

  function take(lines: string[]): void {
    const field = (name: string) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
    retry = Number(field('retry') ?? retry);
    comments.push(...lines.filter((line) => line.startsWith(':')));
    const data = field('data');
    if (data !== undefined) events.push({ event: field('event')!, id: field('id')!, task: JSON.parse(data) });
  }
}
