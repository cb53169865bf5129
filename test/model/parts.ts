/** The service's factories, as they are or from sources that were changed on the way (mutate.ts). */

/** `suffix` is appended to each module's URL: '' for the real ones. */
export async function loadParts(suffix = '') {
  const at = (path: string): string => new URL(`../../src/${path}${suffix}`, import.meta.url).href;
  const limiter: typeof import('../../src/limiter/limiter.ts') = await import(at('limiter/limiter.ts'));
  const redisLimiter: typeof import('../../src/limiter/redis.ts') = await import(at('limiter/redis.ts'));
  const postgresLimiter: typeof import('../../src/limiter/postgres.ts') = await import(at('limiter/postgres.ts'));
  const settle: typeof import('../../src/receiver/settle.ts') = await import(at('receiver/settle.ts'));
  const claim: typeof import('../../src/pusher/claim.ts') = await import(at('pusher/claim.ts'));
  const targets: typeof import('../../src/pusher/targets.ts') = await import(at('pusher/targets.ts'));
  const chooser: typeof import('../../src/pusher/chooser.ts') = await import(at('pusher/chooser.ts'));
  const outcome: typeof import('../../src/pusher/outcome.ts') = await import(at('pusher/outcome.ts'));
  const pusher: typeof import('../../src/pusher/pusher.ts') = await import(at('pusher/pusher.ts'));
  const inserter: typeof import('../../src/inserter/inserter.ts') = await import(at('inserter/inserter.ts'));
  const expire: typeof import('../../src/watcher/expire-processing.ts') = await import(
    at('watcher/expire-processing.ts')
  );
  const promote: typeof import('../../src/watcher/promote.ts') = await import(at('watcher/promote.ts'));
  return {
    ...limiter,
    ...redisLimiter,
    ...postgresLimiter,
    ...settle,
    ...claim,
    ...targets,
    ...chooser,
    ...outcome,
    ...pusher,
    ...inserter,
    ...expire,
    ...promote,
  };
}

export type ServiceParts = Awaited<ReturnType<typeof loadParts>>;
