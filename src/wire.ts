/**
 * The shapes of requests: zod schemas that check them and that /openapi.json is generated from.
 */
import { z } from 'zod';
import { AppError, type ErrorCode, type InputFault } from './errors.ts';

/** 2^63 - 1. */
const INT64_MAX = 9_223_372_036_854_775_807n;
const MAX_RUN_AT_AHEAD_MS = 31_536_000_000;
/** An answer stays small however many faults a body has. */
const MAX_FAULTS = 100;
const ATTEMPT_ID = /^[A-Za-z0-9_-]{22,64}$/;

const fault = (ctx: { addIssue(issue: unknown): void }, code: ErrorCode, message: string) => {
  ctx.addIssue({ code: 'custom', message, params: { code } });
  return z.NEVER;
};

const INT64_EXPECTED = 'expected an integer 0..9223372036854775807, as a string or number';

/** 0 .. 2^63-1 as canonical decimal text; in JSON a string, or a number while that is exact. */
const int64 = z
  .union([z.string().regex(/^(0|[1-9][0-9]{0,18})$/, INT64_EXPECTED), z.number()], INT64_EXPECTED)
  .transform((value, ctx) => {
    if (typeof value === 'number' && Number.isInteger(value) && value > Number.MAX_SAFE_INTEGER)
      return fault(ctx, 'integer_not_exact', 'a JSON number above 9007199254740991 is not exact; send it as a string');
    if (typeof value === 'number' && (!Number.isInteger(value) || value < 0))
      return fault(ctx, 'invalid_field', 'expected an integer 0..9223372036854775807');
    if (typeof value === 'string' && BigInt(value) > INT64_MAX)
      return fault(ctx, 'invalid_field', 'expected an integer 0..9223372036854775807');
    return String(value);
  })
  .meta({ description: 'Integer 0 .. 2^63-1. Strings in answers; in requests a string, or a number up to 2^53-1.' });

export const queueName = z.string().regex(/^[a-z0-9_-]{1,64}$/, 'expected 1 to 64 of a-z 0-9 _ -');

/** Checked apart from `payload`, which is cut from the text: see json.ts. */
export const submitRequest = z.strictObject({
  queue: queueName.default('default'),
  task_id: int64,
  task_version: int64,
  priority: z.int('expected an integer 1..5').min(1, 'expected 1..5').max(5, 'expected 1..5').default(5),
  payload: z.unknown().meta({ description: 'Any JSON, null too. Passed to the parser byte for byte.' }),
  max_retries: z.int('expected an integer 0..1000').min(0).max(1000).optional(),
  run_at: z
    .int('expected ms since the epoch')
    .min(0)
    .refine((value) => value <= Date.now() + MAX_RUN_AT_AHEAD_MS, 'more than a year ahead')
    .optional()
    .meta({ description: 'Not claimable before this time, ms since the epoch; in the past: at once.' }),
});

export const batchRequest = z.strictObject({
  tasks: z.array(z.unknown()).min(1, 'expected 1 to 1000 tasks').max(1000, 'expected 1 to 1000 tasks'),
  atomic: z
    .boolean('expected true or false')
    .default(false)
    .meta({ description: 'All or nothing: a bad entry is the answer, and none is stored.' }),
});

const statusCode = z
  .union([z.string(), z.number()])
  .transform(
    (value, ctx) => readStatusCode(value) ?? fault(ctx, 'invalid_field', 'expected a 64-bit integer; 0 is success'),
  )
  .meta({ description: "0 is success; any other 64-bit integer is the parser's failure." });

/** Unknown members are ignored; `result` is cut from the text. */
export const callbackRequest = z.object({
  status_code: statusCode,
  status_msg: z.string().nullish(),
  result: z.unknown().optional().meta({ description: 'Any JSON; kept with status_code 0.' }),
});

const attemptId = z.string().regex(ATTEMPT_ID, 'expected 22 to 64 of A-Z a-z 0-9 _ -');

/** Without attempt_id only where the queue's fence is lenient. */
export const plainCallbackRequest = callbackRequest.extend({
  queue: queueName.default('default'),
  task_id: int64,
  task_version: int64,
  attempt_id: attemptId.optional(),
});

/** An entry of a batch; one that names a task_id is in the plain form. */
export const batchedCallbackRequest = callbackRequest.extend({ attempt_id: attemptId });

export const callbackBatchRequest = z.object({
  callbacks: z
    .array(z.unknown(), 'expected 1 to 1000 callbacks')
    .min(1, 'expected 1 to 1000 callbacks')
    .max(1000, 'expected 1 to 1000 callbacks')
    .meta({ description: 'Each as /v1/callbacks/{attempt_id} takes it, with its attempt_id; or in the plain form.' }),
});

export const progressRequest = z.object({
  // Kept to two decimals: what is smaller does not fit the column's type.
  percent: z
    .number()
    .min(0, 'expected 0..100')
    .max(100, 'expected 0..100')
    .transform((percent) => Math.round(percent * 100) / 100)
    .nullish(),
  message: z.string().nullish(),
  done: z.boolean().nullish(),
});

const listLimit = z.coerce
  .number('expected 1..1000')
  .int('expected 1..1000')
  .min(1, 'expected 1..1000')
  .max(1000, 'expected 1..1000');
const timeParameter = z.coerce.number('expected ms since the epoch').int('expected ms since the epoch').min(0);

export const listQuery = z.strictObject({
  queue: queueName.optional(),
  status: z.enum(['Pending', 'Processing', 'Success', 'Failed', 'Stopped']).optional(),
  priority: z.coerce.number().int().min(1, 'expected 1..5').max(5, 'expected 1..5').optional(),
  reason: z
    .string()
    .regex(/^[a-z_]{1,64}$/)
    .optional(),
  updated_after: timeParameter.optional(),
  finished_before: timeParameter.optional(),
  limit: listLimit.default(100),
  cursor: z.string().optional(),
});

export const taskQuery = z.strictObject({ queue: queueName.default('default') });
export const versionQuery = taskQuery.extend({
  wait: z.coerce.number('expected 0..60').min(0, 'expected 0..60').max(60, 'expected 0..60').default(0),
  include: z.literal('payload').optional(),
});

/** Ids in a path: canonical decimals. */
export const taskPath = z.object({ task_id: int64, task_version: int64.optional() });

/** What a list's cursor holds: the key to go on after; in a list of finished tasks the time and the key. */
export const cursorKey = z.tuple([queueName, int64, int64]);
export const cursorFinished = z.tuple([z.literal('finished'), int64, int64, int64]);

/** True when `value` can be an attempt id at all. */
export const isAttemptId = (value: string): boolean => ATTEMPT_ID.test(value);

/** Checks `value`. Throws the AppError of the first fault, with all faults; `at` is the pointer of `value` itself. */
export function check<Schema extends z.ZodType>(schema: Schema, value: unknown, at = ''): z.output<Schema> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw faulty(parsed.error.issues.flatMap((issue) => toFaults(issue, value, at)));
}

/** The same for path and query parameters: what points at one is its name. */
export function checkParameters<Schema extends z.ZodType>(schema: Schema, value: unknown): z.output<Schema> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.flatMap((issue) => toFaults(issue, value, ''));
  throw faulty(faults.map((one) => ({ ...one, pointer: one.pointer.slice(1) })));
}

function faulty(faults: InputFault[]): AppError {
  const { code, detail, pointer } = faults[0]!;
  return new AppError(code, detail, { pointer, faults: faults.slice(0, MAX_FAULTS) });
}

const pointerTo = (path: readonly PropertyKey[]): string =>
  path.map((step) => `/${String(step).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');

function toFaults(issue: z.core.$ZodIssue, root: unknown, at: string): InputFault[] {
  const pointer = at + pointerTo(issue.path);
  if (issue.code === 'unrecognized_keys')
    return issue.keys.map((key) => ({
      pointer: pointer + pointerTo([key]),
      code: 'unknown_field',
      detail: `there is no field '${key}'`,
    }));
  const name = issue.path.at(-1);
  const parent = issue.path
    .slice(0, -1)
    .reduce<unknown>((value, step) => (value as Record<PropertyKey, unknown>)?.[step], root);
  const absent = name !== undefined && (parent as Record<PropertyKey, unknown>)?.[name] === undefined;
  if (absent) return [{ pointer, code: 'missing_field', detail: `'${String(name)}' is required` }];
  const code =
    issue.code === 'custom' ? ((issue.params?.code as ErrorCode | undefined) ?? 'invalid_field') : 'invalid_field';
  return [{ pointer, code, detail: `${name === undefined ? 'the value' : `'${String(name)}'`}: ${issue.message}` }];
}

/** Text PostgreSQL can store: no NUL, no lone surrogates; cut to `maxLength` characters. */
export const storable = (text: string, maxLength: number): string =>
  text.slice(0, maxLength).replaceAll('\0', '\uFFFD').toWellFormed();

/** A 64-bit integer as decimal text, from an exact JSON number or a decimal string; null when it is none. */
export function readStatusCode(value: unknown): string | null {
  if (typeof value === 'number') return Number.isSafeInteger(value) ? String(value) : null;
  if (typeof value !== 'string' || !/^-?(0|[1-9]\d{0,18})$/.test(value)) return null;
  return BigInt.asIntN(64, BigInt(value)) === BigInt(value) ? String(BigInt(value)) : null;
}
