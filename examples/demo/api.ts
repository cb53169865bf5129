/** docsched's HTTP API, as far as the demo uses it. */

/** What the demo reads of a task; the service sends more. */
export type Task = {
  task_id: string;
  task_version: string;
  status: 'Pending' | 'Processing' | 'Success' | 'Failed' | 'Stopped';
  status_msg: string | null;
  progress: { percent: number | null; message: string | null } | null;
  /** Milliseconds since the epoch. */
  started_at: number | null;
  finished_at: number | null;
  /** With Success, and only when one version is asked for. */
  result?: Result;
};

/** What the example parser makes of a document. */
export type Result = { media_type: string; pages?: Part[]; sections?: Part[] };
export type Part = { heading?: string | null; text: string };

export type Submit = {
  task_id: string;
  task_version: string;
  priority: number;
  payload: unknown;
  max_retries?: number;
};

/** `word` is the outcome, or the code of the problem. */
export type Answer = { status: number; word: string; detail: string };

export type Api = {
  submit(submit: Submit): Promise<Answer>;
  tasks(): Promise<Task[]>;
  /** Waits up to `waitS` seconds for its end. */
  task(taskId: string, version: string, waitS?: number): Promise<Task>;
};

/** Every call ends when `signal` aborts. */
export function createApi(baseUrl: string, signal: AbortSignal): Api {
  async function get(path: string) {
    const response = await fetch(`${baseUrl}${path}`, { signal });
    if (!response.ok) throw new Error(`GET ${path} was answered ${response.status}: ${await response.text()}`);
    return response.json();
  }
  return {
    async submit(submit) {
      const headers = { 'content-type': 'application/json' };
      const request = { method: 'POST', headers, body: JSON.stringify(submit), signal };
      const response = await fetch(`${baseUrl}/v1/tasks`, request);
      const body = (await response.json()) as { outcome?: string; code?: string; detail?: string };
      return { status: response.status, word: body.code ?? body.outcome ?? '', detail: body.detail ?? '' };
    },
    tasks: async () => ((await get('/v1/tasks?limit=1000')) as { tasks: Task[] }).tasks,
    task: async (taskId, version, waitS = 0) =>
      (await get(`/v1/tasks/${taskId}/versions/${version}?wait=${waitS}`)) as Task,
  };
}
