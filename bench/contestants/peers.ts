/** The contestants built on Express and a job library (apps/), and the empty hops. */
import { startChild } from '../world/child.ts';
import { type Contestant, type Ids, newDatabaseName, type StartContestant, untilRight } from './contestant.ts';

type Counts = { open: number; failed: number; completed: number; faults: string[] };

/** `peer` is a name apps/peer-app.ts knows. */
export const startPeer =
  (peer: string): StartContestant =>
  async ({ postgres, redisUrl }, { parserUrl }) => {
    const onPostgres = peer !== 'bullmq-redis';
    const databaseName = newDatabaseName(peer);
    const database = onPostgres ? await postgres.createDatabase(databaseName) : undefined;
    const app = await startApp('apps/peer-app.ts', peer, parserUrl, {
      PEER: peer,
      REDIS_URL: redisUrl,
      ...(database ? { DATABASE_URL: database.url } : {}),
    });
    return {
      ...app,
      countOpen: async () => (await app.counts()).open,
      commits: async () => (await database?.commits()) ?? 0,
      remove: async () => {
        await database?.close();
        if (onPostgres) await postgres.dropDatabase(databaseName);
      },
    };
  };

/** The same hops without a store. */
export const startEmpty =
  (server: 'express' | 'http'): StartContestant =>
  (_stores, { parserUrl }) =>
    startApp('apps/empty-app.ts', server === 'express' ? 'empty-express' : 'empty-http', parserUrl, { SERVER: server });

async function startApp(
  file: string,
  name: string,
  parserUrl: string | undefined,
  env: Record<string, string>,
): Promise<Contestant & { counts(): Promise<Counts> }> {
  const app = await startChild(file, { ...env, ...(parserUrl ? { PARSER_URL: parserUrl } : {}) });
  let due = 0;
  const look = async () => {
    const { open, failed, completed, faults } = await app.ask<Counts>('counts');
    if (failed === 0 && faults.length === 0 && open === 0 && completed === due) return null;
    return `${name}: ${completed} of ${due} completed, ${open} open, ${failed} failed; ${faults.join('\n')}`;
  };
  return {
    name,
    urls: [app.ready.url as string],
    pids: [app.pid],
    verify: ({ count }: Ids) => {
      due += count;
      return untilRight(look);
    },
    countOpen: async () => null,
    counts: () => app.ask<Counts>('counts'),
    commits: async () => 0,
    stop: app.stop,
    remove: async () => {},
  };
}
