/**
 * Submits all documents so that each rule of insertion can be seen. First the longest, until every slot is taken; so the
 * versions that come next really wait, the newer one arriving while the older still does. Then a version again that
 * waits, one again that is being parsed, one that is stale, and the rest.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Answer, Api, Task } from './api.ts';
import type { Document } from './expected.ts';

/** Dealt out in turn, so that all levels are in use. */
const PRIORITIES = [3, 1, 5, 2, 4];
const STARTED_LIMIT_MS = 10_000;

export type Submitted = {
  /** Answers that were not the expected ones. */
  unmet: string[];
  /** Versions that were not pushed newest first; to be asked with the finished tasks. */
  unmetOrder(tasks: Task[]): string[];
};

type Deps = { api: Api; documents: Document[]; atOnce: number; say: (text: string) => void; signal: AbortSignal };

export async function submitAll({ api, documents, atOnce, say, signal }: Deps): Promise<Submitted> {
  const unmet: string[] = [];
  const byTask = Object.values(Object.groupBy(documents, ({ task_id }) => task_id)).map((versions) => versions!);
  const edited = byTask.filter((versions) => versions.length > 1).map((versions) => versions.toSorted(byVersion));
  const single = byTask.filter((versions) => versions.length === 1).flat();
  const longest = single.toSorted((a, b) => lengthOf(b) - lengthOf(a)).slice(0, atOnce);
  let dealt = 0;
  const priorities = new Map(documents.map(({ file }) => [file, PRIORITIES[dealt++ % PRIORITIES.length]!]));

  for (const document of longest) await submit(document, 202, 'created');
  await started(longest);
  for (const versions of edited) await submitVersions(versions);
  const running = longest[0];
  if (running) await submit(running, 200, 'existing', 'again, while it is parsed: nothing changes');
  for (const document of single.filter((each) => !longest.includes(each))) await submit(document, 202, 'created');
  return { unmet, unmetOrder: (tasks) => edited.flatMap((versions) => unmetOrder(versions, tasks)) };

  async function submit(document: Document, status: number, word: string, note = ''): Promise<void> {
    const { task_id, task_version, file, outcome } = document;
    const priority = priorities.get(file)!;
    const answer = await api.submit({
      task_id,
      task_version,
      priority,
      payload: { file },
      // A document that cannot be parsed will not do better the second time.
      ...(outcome === 'failed' ? { max_retries: 0 } : {}),
    });
    const name = `task ${task_id} version ${task_version}`;
    say(`  ${show(answer)}  ${name}, priority ${priority}, ${file}${note && ` ${note}`}`);
    if (answer.status !== status || answer.word !== word)
      unmet.push(`${file}: expected the answer ${status} ${word}, it was ${answer.status} ${answer.word}`);
  }

  /** Oldest first, all while the slots are taken; then the newest again, and the one before it, which is stale now. */
  async function submitVersions(versions: Document[]): Promise<void> {
    for (const document of versions) await submit(document, 202, 'created');
    const newest = versions.at(-1)!;
    const waiting = await api.tasks();
    for (const document of versions)
      if (taskOf(document, waiting)?.status !== 'Pending')
        unmet.push(`${document.file}: expected to wait while all slots are taken, it did not`);
    await submit(newest, 202, 'refreshed', 'again, while it waits: it keeps its place');
    await submit(versions.at(-2)!, 409, 'stale_version', `again, too late: version ${newest.task_version} is known`);
  }

  async function started(given: Document[]): Promise<void> {
    const until = performance.now() + STARTED_LIMIT_MS;
    for (;;) {
      const tasks = await api.tasks();
      if (given.every((document) => taskOf(document, tasks)?.status !== 'Pending')) return;
      if (performance.now() > until) throw new Error(`no document was pushed within ${STARTED_LIMIT_MS / 1000} s`);
      await sleep(50, undefined, { signal });
    }
  }
}

/** Claimed in the opposite order, though the older one came first. */
function unmetOrder(versions: Document[], tasks: Task[]): string[] {
  const starts = versions.map((document) => taskOf(document, tasks)?.started_at ?? 0);
  return versions
    .slice(1)
    .filter((_, at) => starts[at + 1]! >= starts[at]!)
    .map(({ file, task_version }) => `${file}: expected version ${task_version} to be pushed before the older one`);
}

export const taskOf = ({ task_id, task_version }: Document, tasks: Task[]): Task | undefined =>
  tasks.find((task) => task.task_id === task_id && task.task_version === task_version);

const show = ({ status, word, detail }: Answer): string =>
  `${status} ${word.padEnd(13)}${status >= 400 && status !== 409 ? ` (${detail})` : ''}`;

const lengthOf = ({ pages = 0, sections = 0 }: Document): number => Math.max(pages, sections);

const byVersion = (a: Document, b: Document): number => (BigInt(a.task_version) < BigInt(b.task_version) ? -1 : 1);
