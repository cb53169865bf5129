/** The parser processes, as the rest of the run sees them. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { endWithThisProcess } from '../support/process.ts';
import type { ParserOptions, Question, Reply } from './parser.ts';

export type Parsers = Awaited<ReturnType<typeof startParsers>>;

const FILE = fileURLToPath(new URL('./parser.ts', import.meta.url));

export async function startParsers(all: readonly ParserOptions[]) {
  const children = await Promise.all(all.map(start));
  let questions = 0;
  return {
    /** Of these attempts, those a parser has read the push of, and the number of the instance it came from. */
    seen: async (ids: string[]): Promise<Map<string, number>> => {
      const replies = await Promise.all(children.map((child) => ask(child, { question: ++questions, ids })));
      return new Map(replies.flat());
    },
    stop: async () => {
      for (const child of children) child.kill('SIGTERM');
      await Promise.all(children.map((child) => (child.exitCode === null ? once(child, 'exit') : null)));
    },
  };
}

async function start(options: ParserOptions): Promise<ChildProcess> {
  const child = fork(FILE, [JSON.stringify(options)], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], env: {} });
  endWithThisProcess(child);
  await once(child, 'message');
  child.setMaxListeners(50);
  return child;
}

function ask(child: ChildProcess, question: Question): Promise<Reply['seen']> {
  return new Promise((resolve) => {
    const hear = (message: Reply) => {
      if (message.reply !== question.question) return;
      child.off('message', hear);
      resolve(message.seen);
    };
    child.on('message', hear);
    child.send(question);
  });
}
