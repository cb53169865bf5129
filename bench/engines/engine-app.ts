/** The process of an engine: ENGINE, DATABASE_URL, REDIS_URL. Answers how long a drain took. */
import { clockMs } from '../load/wire.ts';
import { answerRequests } from '../world/child.ts';
import { createDocschedEngine } from './docsched.ts';
import type { Engine, EngineDeps } from './engine.ts';
import { createGraphileEngine } from './graphile-worker.ts';
import { createPgBossEngine } from './pg-boss.ts';

const ENGINES: Record<string, (deps: EngineDeps) => Promise<Engine>> = {
  docsched: createDocschedEngine,
  'pg-boss': createPgBossEngine,
  'graphile-worker': createGraphileEngine,
};

const { ENGINE = '', DATABASE_URL = '', REDIS_URL = '' } = process.env;
const engine = await ENGINES[ENGINE]!({ databaseUrl: DATABASE_URL, redisUrl: REDIS_URL });

answerRequests(
  {
    fill: engine.fill,
    drain: async (count: number) => {
      const startedAt = clockMs();
      await engine.drain(count);
      return clockMs() - startedAt;
    },
    counts: engine.counts,
  },
  {},
  engine.stop,
);
