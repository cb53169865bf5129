/**
 * The instances: real processes of the service as it is, each behind proxies of its own to the stores. Who was killed,
 * or could not start because a store was away, is started again on its port, as by a supervisor.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { type RunningService, startService } from '../support/process.ts';
import { startProxy, type Way } from './proxy.ts';

export type InstanceOptions = {
  number: number;
  port: number;
  directory: string;
  /** Its way to the stores. */
  postgresPort: number;
  redisPort: number | null;
  env: (ports: { postgres: number; redis: number | null }) => Record<string, string>;
};
export type Instance = Awaited<ReturnType<typeof createInstance>>;

const CLOCK = fileURLToPath(new URL('./clock.ts', import.meta.url));
const RESTART_MS = 200;
const START_AGAIN_MS = 500;
/** An instance that is told to stop has SHUTDOWN_TIMEOUT_MS, and what a starved machine adds. */
const STOP_LIMIT_MS = 12_000;
const LOOK_EVERY_MS = 1_000;
/** No fault holds an instance up for longer: what does is the instance itself. */
const ANSWER_LIMIT_MS = 20_000;

export async function createInstance(options: InstanceOptions) {
  const { number, port, directory } = options;
  const postgres = await startProxy(options.postgresPort);
  const redis = options.redisPort === null ? null : await startProxy(options.redisPort);
  const clockFile = join(directory, `clock-${number}`);
  const setClock = (aheadMs: number) => writeFileSync(clockFile, String(aheadMs));
  setClock(0);
  const troubles: string[] = [];
  let service: RunningService | null = null;
  let wanted = false;
  let lives = 0;
  let starting: Promise<void> = Promise.resolve();

  return {
    number,
    url: `http://127.0.0.1:${port}`,
    postgres,
    redis: redis as Way,
    /** What went wrong without a fault that explains it, each a sentence: ends nobody asked for, and standing still. */
    troubles,
    isUp: () => service !== null,
    start: (more: Record<string, string> = {}) => {
      wanted = true;
      starting = launch(more);
      return starting;
    },
    pause: () => service?.pause(),
    resume: () => service?.resume(),
    /** SIGKILL; it is down afterwards. */
    kill: () => down((running) => running.kill()),
    /** SIGTERM, which one that is frozen gets as it wakes; resolves with what was wrong with its end, or null. */
    stop: async (): Promise<string | null> => {
      let trouble: string | null = null;
      await down(async (running) => {
        const stopping = running.stop();
        running.resume();
        const { code, signal, ms } = await stopping;
        if (code !== 0 || ms > STOP_LIMIT_MS) trouble = `ended with ${code ?? signal} after ${Math.round(ms)} ms`;
      });
      return trouble;
    },
    stepClock: (aheadMs: number) => {
      setClock(aheadMs);
      if (service) process.kill(service.pid, 'SIGUSR2');
    },
    close: async () => {
      await postgres.stop();
      await redis?.stop();
    },
  };

  async function launch(more: Record<string, string>): Promise<void> {
    setClock(0);
    const env = {
      ...options.env({ postgres: postgres.port, redis: redis?.port ?? null }),
      PORT: String(port),
      CHAOS_CLOCK_FILE: clockFile,
      ...more,
    };
    while (wanted) {
      try {
        const started = await startService({ env, nodeArgs: ['--import', CLOCK] });
        lives += 1;
        if (!wanted) return void (await started.kill());
        service = started;
        void watch(started, lives, more);
        void lookIn(started, lives);
        return;
      } catch {
        await sleep(START_AGAIN_MS);
      }
    }
  }

  async function watch(started: RunningService, life: number, more: Record<string, string>): Promise<void> {
    const { code, signal } = await started.exited;
    writeFileSync(join(directory, `instance-${number}-life-${life}.log`), started.lines.join('\n'));
    if (service !== started) return;
    service = null;
    troubles.push(`instance ${number} ended by itself with ${code ?? signal} in its life ${life}`);
    await sleep(RESTART_MS);
    if (wanted) starting = launch(more);
  }

  /** Whether it still answers, as long as it lives. */
  async function lookIn(started: RunningService, life: number): Promise<void> {
    for (; service === started; await sleep(LOOK_EVERY_MS)) {
      const error = await fetch(`${started.url}/livez`, { signal: AbortSignal.timeout(ANSWER_LIMIT_MS) }).then(
        (answer) => void answer.arrayBuffer(),
        (error: Error) => error,
      );
      if (error?.name !== 'TimeoutError' || service !== started) continue;
      troubles.push(`instance ${number} stood still for ${ANSWER_LIMIT_MS} ms in its life ${life}`);
    }
  }

  async function down(end: (running: RunningService) => Promise<unknown>): Promise<void> {
    wanted = false;
    await starting;
    const running = service;
    service = null;
    if (running) await end(running);
  }
}
