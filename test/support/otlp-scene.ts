/** A service whose spans a collector takes, and a parser that answers each task as the test says. */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Answer, accept, type Push, type Report } from './answers.ts';
import { install, type Submit } from './installation.ts';
import { startCollector } from './otlp.ts';

export type Scene = Awaited<ReturnType<typeof startScene>>;

export async function startScene() {
  const collector = await startCollector();
  const endings: (() => Promise<void>)[] = [];
  const hooks = { after: (ending: () => Promise<void>) => void endings.push(ending) };
  const env = { RETRY_BASE_MS: '100', ...collector.env };
  const place = await install(hooks as never, { limiter: 'postgres', env });
  /** By task; 202 to all others. */
  const answers = new Map<string, Answer>();
  place.parser.answerWith((pushes, req, res) => (answers.get(pushes[0]!.body.task_id) ?? accept)(pushes, req, res));
  let service = await place.start();
  let taskIds = 0;

  /** A task id that the parser will answer so. */
  const newTask = (answer: Answer = accept): string => {
    const taskId = String(++taskIds);
    answers.set(taskId, answer);
    return taskId;
  };
  /** Resolves with the outcome. */
  const send = async (task: Submit, traceparent: string): Promise<unknown> => {
    const answer = await fetch(`${service.url}/v1/tasks`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', traceparent },
      body: JSON.stringify({ task_version: 1, payload: null, ...task }),
    });
    return ((await answer.json()) as { outcome: string }).outcome;
  };
  return {
    collector,
    place,
    get service() {
      return service;
    },
    newTask,
    answers,
    send,
    /** Submits a task that the parser answers so, in a trace that its caller has sampled: under the span `parentId`. */
    submitted: async (task: Partial<Submit>, answer: Answer = accept) => {
      const taskId = newTask(answer);
      const { traceId, spanId, traceparent } = newTrace();
      await send({ task_id: taskId, ...task }, traceparent);
      return { taskId, traceId, parentId: spanId };
    },
    /** 202, then this callback. */
    callBack:
      (report: Report = {}, headersOf = (_push: Push): Record<string, string> => ({})): Answer =>
      async (pushes, req, res) => {
        accept(pushes, req, res);
        await sleep(20);
        for (const push of pushes) await place.parser.callback(push, report, headersOf(push));
      },
    pushesOf: (taskId: string): Push[] => place.parser.pushes.filter(({ body }) => body.task_id === taskId),
    /** What the database keeps of a task's trace. */
    storedOf: async (taskId: string): Promise<string> => {
      const found = 'SELECT traceparent FROM task_scheduler_tasks WHERE task_id = $1';
      return (await place.sql.query(found, [taskId])).rows[0].traceparent;
    },
    enqueue: (taskId: string, traceparent: string | null = null) =>
      place.sql.query(`SELECT docsched_enqueue('default', $1, 1, '{}', traceparent => $2)`, [taskId, traceparent]),
    /** SIGKILL, and another one with more settings. */
    restart: async (more: Record<string, string> = {}): Promise<void> => {
      await service.kill();
      service = await place.start(more);
    },
    end: async (): Promise<void> => {
      for (const ending of endings) await ending();
      collector.stop();
    },
  };
}

export function newTrace() {
  const [traceId, spanId] = [randomBytes(16).toString('hex'), randomBytes(8).toString('hex')];
  return { traceId, spanId, traceparent: `00-${traceId}-${spanId}-01` };
}

export const traceIdOf = (traceparent: unknown): string => String(traceparent).slice(3, 35);

/** One answer after the other; the last one again and again. */
export const inTurn = (...turns: Answer[]): Answer => {
  let turn = 0;
  return (...asked) => turns[Math.min(turn++, turns.length - 1)]!(...asked);
};
