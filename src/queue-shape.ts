/**
 * A Queue as clients see it and as the table queues keeps it: checks of the one, and the way to the other.
 */
import { z } from 'zod';
import { MAX_DURATION_MS, MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, MAX_TIMER_MS, MIN_DURATION_MS } from './config.ts';
import { queueName } from './wire.ts';

/** A queue as docsched_show_queue answers it: by column; `own` holds what the API set. */
export type QueueRow = Record<string, unknown> & {
  queue: string;
  own: Record<string, unknown>;
  secret_count: number;
};

const MAX_TARGETS = 64;
const MAX_URL_CHARACTERS = 2_000;
const LEVELS = ['1', '2', '3', '4', '5'] as const;

const integer = (min: number, max: number) => {
  const expected = `expected an integer ${min}..${max}`;
  return z.int(expected).min(min, expected).max(max, expected);
};
const fraction = () => z.number('expected 0..1').min(0, 'expected 0..1').max(1, 'expected 0..1');
const duration = () => integer(MIN_DURATION_MS, MAX_DURATION_MS);
const oneOf = <const Values extends readonly string[]>(values: Values) =>
  z.enum(values, `expected ${values.join(' or ')}`);

/** Visible ASCII only: what is stored is what is sent, and PostgreSQL can store it. */
const targetUrl = z
  .string('expected a URL')
  .max(MAX_URL_CHARACTERS, `expected at most ${MAX_URL_CHARACTERS} characters`)
  .refine(
    (text) => /^https?:\/\/[!-~]+$/i.test(text) && URL.canParse(text),
    'expected a URL beginning with http:// or https://',
  )
  .refine(
    (text) => !URL.canParse(text) || (new URL(text).username === '' && new URL(text).password === ''),
    'expected a URL without user and password',
  );

const targets = z
  .array(
    z.strictObject({
      url: targetUrl,
      mode: oneOf(['async', 'sync']).default('async'),
      batch: integer(1, 1_000).optional(),
      push_timeout_ms: integer(MIN_DURATION_MS, MAX_TIMER_MS).optional(),
    }),
    'expected a list of targets',
  )
  .max(MAX_TARGETS, `expected at most ${MAX_TARGETS} targets`)
  .superRefine((list, ctx) => {
    const urls = list.map(({ url }) => (URL.canParse(url) ? new URL(url).href : url));
    for (const [index, url] of urls.entries())
      if (urls.indexOf(url) < index)
        ctx.addIssue({ code: 'custom', path: [index, 'url'], message: 'the same URL stands before' });
  });

const weight = integer(0, 1_000_000).optional();
const priorityWeights = z
  .strictObject({ 1: weight, 2: weight, 3: weight, 4: weight, 5: weight }, 'expected weights by level, "1" to "5"')
  .refine((weights) => LEVELS.some((level) => (weights[level] ?? 0) > 0), 'at least one weight must be above 0');

/** `whsec_` and 24 to 64 bytes in base64, as Standard Webhooks has it. */
const secret = z.string('expected whsec_...').refine((text) => {
  const encoded = text.replace(/^whsec_/, '');
  const bytes = Buffer.from(encoded, 'base64');
  return encoded !== text && bytes.toString('base64') === encoded && bytes.length >= 24 && bytes.length <= 64;
}, 'expected whsec_ followed by 24 to 64 bytes in base64');

/** Body of PUT and PATCH. Null, and in a PUT what is not named: as the environment has it. */
export const queueSettings = z.strictObject({
  queue: queueName.optional().meta({ description: 'Of the path; may be repeated here.' }),
  targets: targets.nullish(),
  limit: integer(0, 100_000).nullish(),
  priority_weights: priorityWeights.nullish(),
  pending_expired_ms: duration().nullish(),
  processing_expired_ms: duration().nullish(),
  processing_max_ms: duration().nullish(),
  success_expired_ms: duration().nullish(),
  cleanup_after_ms: z
    .strictObject({ failed: duration().nullish(), stopped: duration().nullish(), timed_out: duration().nullish() })
    .nullish(),
  version_floor_ms: duration().nullish(),
  max_retries: integer(0, 1_000).nullish(),
  retry: z
    .strictObject({
      strategy: oneOf(['immediate', 'fixed', 'exponential']).nullish(),
      base_ms: duration().nullish(),
      max_ms: duration().nullish(),
      jitter: fraction().nullish(),
      demote: integer(0, 4).nullish(),
    })
    .nullish(),
  retry_share: fraction().nullish(),
  version_policy: oneOf(['keep', 'stop']).nullish(),
  fence: oneOf(['strict', 'lenient']).nullish(),
  callback_auth: oneOf(['attempt', 'signature']).nullish(),
  payload_max_bytes: integer(1, MAX_PAYLOAD_BYTES).nullish(),
  result_max_bytes: integer(1, MAX_RESULT_BYTES).nullish(),
  secrets: z.array(secret, 'expected a list of secrets').max(2, 'expected at most 2 secrets').nullish(),
  paused: z.boolean('expected true or false').nullish(),
});
export type QueueSettings = z.output<typeof queueSettings>;

export const queuePath = z.strictObject({ queue: queueName });

export const redriveRequest = z.strictObject({
  reason: z
    .string()
    .regex(/^[a-z_]{1,64}$/, 'expected a reason, such as parser_failed')
    .nullish(),
  finished_before: z.int('expected ms since the epoch').min(0, 'expected ms since the epoch').nullish(),
  rate_per_s: z
    .number('expected 0.1..10000')
    .min(0.1, 'expected 0.1..10000')
    .max(10_000, 'expected 0.1..10000')
    .default(100),
  dry_run: z.boolean('expected true or false').default(false),
});

/** Member of a Queue -> column; of a member with members of its own, theirs. */
const COLUMNS: Record<Exclude<keyof QueueSettings, 'queue'>, string | Record<string, string>> = {
  targets: 'targets',
  limit: 'concurrency_limit',
  priority_weights: 'priority_weights',
  pending_expired_ms: 'pending_expired_ms',
  processing_expired_ms: 'processing_expired_ms',
  processing_max_ms: 'processing_max_ms',
  success_expired_ms: 'success_expired_ms',
  cleanup_after_ms: { failed: 'cleanup_failed_ms', stopped: 'cleanup_stopped_ms', timed_out: 'cleanup_timed_out_ms' },
  version_floor_ms: 'version_floor_ms',
  max_retries: 'max_retries',
  retry: {
    strategy: 'retry_strategy',
    base_ms: 'retry_base_ms',
    max_ms: 'retry_max_ms',
    jitter: 'retry_jitter',
    demote: 'retry_demote',
  },
  retry_share: 'retry_share',
  version_policy: 'version_policy',
  fence: 'fence',
  callback_auth: 'callback_auth',
  payload_max_bytes: 'payload_max_bytes',
  result_max_bytes: 'result_max_bytes',
  secrets: 'secrets',
  paused: 'paused',
};

/** What a request says, by column; null: as the environment has it. Columns it does not speak of are absent. */
export function columnsOf(settings: QueueSettings): Record<string, unknown> {
  const said = Object.entries(COLUMNS).flatMap(([member, column]): [string, unknown][] => {
    const value = settings[member as keyof typeof COLUMNS] as unknown;
    if (typeof column === 'string') return [[column, member === 'priority_weights' ? weightList(value) : value]];
    const members = value as Record<string, unknown> | null | undefined;
    return Object.entries(column).map(([name, nested]) => [nested, members === null ? null : members?.[name]]);
  });
  return Object.fromEntries(said.filter(([, value]) => value !== undefined));
}

/** A level that is not named weighs nothing. */
const weightList = (value: unknown): unknown =>
  value && LEVELS.map((level) => (value as Record<string, number | undefined>)[level] ?? 0);

/** The Queue of an answer: what the API set, null where it did not; then what is in force. Secrets are never shown. */
export const showQueue = (row: QueueRow): Record<string, unknown> => ({
  queue: row.queue,
  ...showSettings(row.own),
  secret_count: row.secret_count,
  effective: { ...showSettings(row), targets: fullTargets(row) },
  notes: notesOn(row),
});

function showSettings(columns: Record<string, unknown>): Record<string, unknown> {
  const show = (column: string | Record<string, string>): unknown =>
    typeof column === 'string'
      ? (columns[column] ?? null)
      : Object.fromEntries(Object.entries(column).map(([name, nested]) => [name, columns[nested] ?? null]));
  const { secrets: _, ...shown } = COLUMNS;
  const members = Object.fromEntries(Object.entries(shown).map(([member, column]) => [member, show(column)]));
  const weights = members.priority_weights as number[] | null;
  const named = weights && Object.fromEntries(LEVELS.map((level, index) => [level, weights[index]]));
  return { ...members, priority_weights: named };
}

const fullTargets = (row: QueueRow): unknown[] =>
  (row.targets as object[]).map((target) => ({
    mode: 'async',
    batch: 1,
    push_timeout_ms: row.push_timeout_ms,
    ...target,
  }));

/** What a reader of the settings might overlook, a sentence each. */
function notesOn(row: QueueRow): string[] {
  return [
    row.fence === 'lenient' &&
      'fence lenient: a plain callback without attempt_id counts for whatever attempt is open; for such callbacks neither the limit as parsers see it nor "the first callback wins" is guaranteed',
    row.paused === true && 'paused: tasks are accepted and held; what is Processing goes on',
    (row.targets as unknown[]).length === 0 && 'no targets: tasks are accepted and held',
    row.concurrency_limit === 0 && 'limit 0: tasks are accepted and held',
  ].filter((note) => note !== false);
}
