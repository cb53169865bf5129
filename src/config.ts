/**
 * The only reader of the environment. SETTINGS is the one table of what can be set; README's table is compared with
 * it by a test. All problems are reported at once, and main.ts then exits 78.
 */
import leven from 'leven';
import { validate } from 'node-cron';
import { z } from 'zod';

const ROLES = ['api', 'pusher', 'watcher'] as const;
export type Role = (typeof ROLES)[number];

/** Durations may be as short as tests need and as long as a year. */
export const MIN_DURATION_MS = 100;
export const MAX_DURATION_MS = 31_536_000_000;
/** The longest a timer can wait; a longer one would fire at once. */
export const MAX_TIMER_MS = 2_147_483_647;
/** Of a payload and of a result: a request is held in memory as a whole. */
export const MAX_PAYLOAD_BYTES = 67_108_864;
export const MAX_RESULT_BYTES = 268_435_456;

const integer = (min: number, max: number) =>
  z
    .string()
    .regex(/^-?\d+$/, `expected integer ${min}..${max}`)
    .transform(Number)
    .refine((value) => value >= min && value <= max, `expected integer ${min}..${max}`);
const duration = () => integer(MIN_DURATION_MS, MAX_DURATION_MS);
const timer = () => integer(MIN_DURATION_MS, MAX_TIMER_MS);
const url = (...protocols: string[]) =>
  z
    .string()
    .refine(
      (value) => URL.canParse(value) && protocols.includes(new URL(value).protocol.slice(0, -1)),
      `expected a URL beginning with ${protocols.map((protocol) => `${protocol}://`).join(' or ')}`,
    );
const parserUrl = () =>
  url('http', 'https').refine(
    (value) => !URL.canParse(value) || (new URL(value).username === '' && new URL(value).password === ''),
    'expected a URL without user and password',
  );
const cron = () =>
  z
    .string()
    .refine(
      (value) => value.split(' ').length === 6 && validate(value),
      'expected a cron expression of six fields, seconds first',
    );
const roles = () =>
  z
    .string()
    .transform((value) => value.split(',').map((role) => role.trim()))
    .pipe(z.array(z.enum(ROLES, `expected a list of ${ROLES.join(', ')}`)).min(1));

/** name -> [type of its text, default text or null for absent, meaning]. */
export const SETTINGS = {
  DATABASE_URL: [url('postgres', 'postgresql'), null, 'PostgreSQL to use; absent: an embedded one under DATA_DIR'],
  DATABASE_DIRECT_URL: [
    url('postgres', 'postgresql'),
    null,
    'PostgreSQL itself, when DATABASE_URL leads to a pooler in transaction mode: for LISTEN and migrations',
  ],
  DATA_DIR: [z.string().min(1), '.docsched', 'where the embedded PostgreSQL keeps its data'],
  REDIS_URL: [url('redis', 'rediss'), null, 'Redis of the limiter and the leases; absent: both in PostgreSQL'],
  HOST: [z.string().min(1), '127.0.0.1', 'address to listen on'],
  PORT: [integer(0, 65_535), '8080', 'port to listen on; 0 takes a free one'],
  PUBLIC_URL: [
    url('http', 'https'),
    null,
    'how parsers reach the role api; required when HOST is not loopback, and for a pusher without the role api',
  ],
  PARSER_URL: [parserUrl(), null, 'target of queue `default`; absent: tasks are accepted and held'],
  MAX_PROCESSING: [
    integer(1, 100_000),
    '10',
    'limit of a queue that has none of its own: the most attempts open at once',
  ],
  GLOBAL_LIMIT: [integer(0, 1_000_000), '0', 'the most attempts open at once over all queues; 0: no such limit'],
  PENDING_EXPIRED_MS: [duration(), '86400000', 'Pending longer than this fails'],
  PROCESSING_EXPIRED_MS: [duration(), '1800000', 'an attempt without callback or progress for this long is closed'],
  SUCCESS_EXPIRED_MS: [duration(), '86400000', 'a Success is kept this long, then Stopped'],
  CLEANUP_AFTER_MS: [duration(), '604800000', 'a Failed or Stopped task is deleted after this long'],
  VERSION_FLOOR_MS: [
    duration(),
    '7776000000',
    'older versions are refused for this long after the last accepted submit',
  ],
  MAX_RETRIES: [integer(0, 1000), '3', 'retries of a task that names none'],
  RETRY_BASE_MS: [duration(), '1000', 'back-off before the first retry; doubles with each, up to 5 minutes'],
  TRIGGER_INTERVAL_MS: [timer(), '5000', 'the pusher looks for work at least this often'],
  ACQUIRE_TTL_MS: [duration(), '10000', 'a slot without an open attempt is dropped after this long'],
  PUSH_TIMEOUT_MS: [timer(), '10000', 'how long a push waits for its answer'],
  PAYLOAD_MAX_BYTES: [integer(1, MAX_PAYLOAD_BYTES), '262144', 'largest payload'],
  RESULT_MAX_BYTES: [integer(1, MAX_RESULT_BYTES), '8388608', 'largest result'],
  BATCH_MAX_BYTES: [integer(1024, 268_435_456), '8388608', 'largest body of a batch submit'],
  PG_POOL_MAX: [integer(2, 1000), '10', 'PostgreSQL connections of one instance, plus one that listens'],
  SHUTDOWN_TIMEOUT_MS: [timer(), '10000', 'a graceful stop takes at most this long'],
  WATCH_CRON: [cron(), '*/5 * * * * *', 'time-outs and retention'],
  PROMOTE_CRON: [cron(), '* * * * * *', 'delayed tasks and due retries'],
  RECONCILE_CRON: [cron(), '*/30 * * * * *', 'limiter versus open attempts'],
  CLEANUP_CRON: [cron(), '0 * * * * *', 'deletion of what is done'],
  ROLES: [roles(), ROLES.join(','), 'what this instance does'],
  LOG_LEVEL: [
    z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'], 'expected a pino level, e.g. info'),
    'info',
    'least severe level logged',
  ],
} as const satisfies Record<string, readonly [z.ZodType<unknown, string>, string | null, string]>;

type Settings = typeof SETTINGS;
/** Every setting by its name; undefined only where the default is absent. */
export type Config = Readonly<{
  [Name in keyof Settings]: z.output<Settings[Name][0]> | (Settings[Name][1] extends null ? undefined : never);
}>;

/** Every problem of the environment, one a line. */
export class ConfigError extends Error {
  readonly problems: readonly string[];
  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.problems = problems;
  }
}

/** Reads settings from `env`. An empty value counts as absent. Throws ConfigError. */
export function loadConfig(env: Record<string, string | undefined>): Config {
  const problems = misspelt(env);
  const config: Record<string, unknown> = {};
  for (const [name, [type, fallback]] of Object.entries(SETTINGS)) {
    const text = env[name] || fallback;
    if (text === null) continue;
    const parsed = (type as z.ZodType).safeParse(text);
    if (parsed.success) config[name] = parsed.data;
    else problems.push(`${name}: ${parsed.error.issues[0]!.message}, got '${redact(name, text)}'`);
  }
  if (config.PUBLIC_URL === undefined && !env.PUBLIC_URL) problems.push(...unreachable(config as Config));
  if (problems.length > 0) throw new ConfigError(problems);
  return Object.freeze(config) as Config;
}

/** Why parsers could not call back without a PUBLIC_URL. */
function unreachable({ HOST, ROLES = [] }: Partial<Config>): string[] {
  if (HOST !== undefined && !isLoopback(HOST))
    return [`PUBLIC_URL: required when HOST (${HOST}) is not loopback: parsers call back to it`];
  if (ROLES.includes('pusher') && !ROLES.includes('api'))
    return ['PUBLIC_URL: required for a pusher without the role api: parsers call back to an instance that has it'];
  return [];
}

const isLoopback = (host: string): boolean => host === 'localhost' || host === '::1' || /^127\./.test(host);

/** URLs may hold passwords. */
const redact = (name: string, text: string): string =>
  name.endsWith('_URL') ? text.replace(/^([a-z0-9+.-]*:\/\/)?.*@/is, '$1***@') : text;

/** Names two letters or fewer away from a setting, so that a typing error does not pass in silence. */
function misspelt(env: Record<string, string | undefined>): string[] {
  const names = Object.keys(SETTINGS);
  return Object.keys(env)
    .filter((name) => !names.includes(name) && name.length > 5 && name.includes('_'))
    .flatMap((name) => {
      const near = names.find((known) => leven(name, known) <= 2);
      return near === undefined ? [] : [`${name}: there is no such setting; did you mean ${near}?`];
    });
}

/** What `--help` prints. */
export function usage(): string {
  const rows = Object.entries(SETTINGS).map(([name, [, fallback, meaning]]) => {
    const shown = fallback === null ? '' : ` [${fallback}]`;
    return `  ${name.padEnd(22)}${meaning}${shown}`;
  });
  return `docsched takes no arguments; it is set up by environment variables, for example:\n
  PORT=9000 PARSER_URL=http://127.0.0.1:9090/parse npm start\n
Settings [default]; durations in ms:\n${rows.join('\n')}\n`;
}
