/**
 * The process of a contestant built on a job library: Express, the library, a worker that pushes to the stub parser. Of
 * the environment it reads PEER, DATABASE_URL, REDIS_URL and PARSER_URL (absent: jobs are only stored).
 */
import { answerRequests } from '../world/child.ts';
import { createBullmqPostgresPeer, createBullmqRedisPeer } from './bullmq.ts';
import { createGraphilePeer } from './graphile-worker.ts';
import { createApp, createPushes, listen } from './hops.ts';
import type { Peer, PeerDeps } from './peer.ts';
import { createPgBossPeer } from './pg-boss.ts';

const PEERS: Record<string, (deps: PeerDeps) => Promise<Peer>> = {
  'pg-boss': createPgBossPeer,
  'graphile-worker': createGraphilePeer,
  'bullmq-redis': createBullmqRedisPeer,
  'bullmq-postgres': createBullmqPostgresPeer,
};

const { PEER = '', DATABASE_URL = '', REDIS_URL = '', PARSER_URL } = process.env;
const faults: string[] = [];
const fault = (error: unknown) => {
  if (faults.length < 10) faults.push((error as Error)?.stack ?? String(error));
};
process.on('unhandledRejection', fault);

const peer = await PEERS[PEER]!({ databaseUrl: DATABASE_URL, redisUrl: REDIS_URL, fault });
let publicUrl = '';
let completed = 0;
const pushes = PARSER_URL ? createPushes(PARSER_URL, () => publicUrl) : undefined;
const app = createApp({ submit: peer.add, ...(pushes ? { callback: pushes.receive } : {}) });
const { url } = await listen(app);
publicUrl = url;
if (pushes)
  await peer.work(async (task) => {
    const report = await pushes.push(task);
    completed += 1;
    return report;
  });

answerRequests({ counts: async () => ({ ...(await peer.counts()), completed, faults }) }, { url }, () => peer.stop());
