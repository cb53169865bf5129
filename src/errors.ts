/**
 * The closed table of error codes and the one error class.
 * Expected outcomes (stale, duplicate, busy ...) are values elsewhere; an AppError is what a caller did wrong
 * or what docsched cannot do right now. `http.ts` turns it into an RFC 9457 problem.
 */

/** code -> [HTTP status, title]. Codes are stable: clients match on them. docs/errors.md lists each. */
export const ERROR_CODES = {
  malformed_request: [400, 'The request is not valid HTTP'],
  malformed_json: [400, 'The body is not valid JSON'],
  invalid_field: [400, 'A field has a value that is not allowed'],
  missing_field: [400, 'A required field is missing'],
  unknown_field: [400, 'A field is not known'],
  integer_not_exact: [400, 'An integer is too large to be exact; send it as a string'],
  bad_signature: [401, 'The signature is missing or wrong'],
  not_found: [404, 'There is no such route'],
  unknown_queue: [404, 'There is no such queue'],
  unknown_task: [404, 'There is no such task'],
  unknown_attempt: [404, 'There is no such attempt'],
  method_not_allowed: [405, 'The route does not know this method'],
  request_timeout: [408, 'The request did not arrive in time'],
  stale_version: [409, 'A higher version of the task was accepted'],
  stale_attempt: [409, 'The attempt is closed'],
  state_forbids: [409, 'The task is in a state that does not allow this'],
  payload_too_large: [413, 'The payload is too large'],
  result_too_large: [413, 'The result is too large'],
  body_too_large: [413, 'The body is too large'],
  unsupported_media_type: [415, 'The body must be application/json'],
  headers_too_large: [431, 'The headers are too large'],
  internal: [500, 'Something went wrong inside docsched'],
  overloaded: [503, 'Too much is waiting; try again shortly'],
  task_locked: [503, 'The task is locked by another transaction; try again'],
  store_unavailable: [503, 'The database cannot be reached; try again shortly'],
  shutting_down: [503, 'This instance is shutting down; try again'],
} as const satisfies Record<string, readonly [number, string]>;

export type ErrorCode = keyof typeof ERROR_CODES;

/** One fault of an input: `pointer` is an RFC 6901 JSON pointer into the body, or the name of a parameter. */
export type InputFault = { pointer: string; code: ErrorCode; detail: string };

export type ErrorExtras = {
  pointer?: string;
  /** All faults, when there is more than one. */
  faults?: InputFault[];
  /** Sent as Retry-After. */
  retryAfterS?: number;
  /** Further members of the problem object. */
  members?: Record<string, unknown>;
  cause?: unknown;
};

/** The one error class. `message` is shown to the caller as `detail`, so it holds no secrets. */
export class AppError extends Error {
  readonly code: ErrorCode;
  readonly extras: ErrorExtras;
  constructor(code: ErrorCode, message: string, extras: ErrorExtras = {}) {
    super(message, extras.cause === undefined ? undefined : { cause: extras.cause });
    this.name = 'AppError';
    this.code = code;
    this.extras = extras;
  }
  get status(): number {
    return ERROR_CODES[this.code][0];
  }
}

/** RFC 9457 problem object of an error. */
export function toProblem(error: AppError): Record<string, unknown> {
  const [status, title] = ERROR_CODES[error.code];
  const { pointer, faults, members } = error.extras;
  return {
    type: `urn:docsched:problem:${error.code}`,
    title,
    status,
    code: error.code,
    detail: error.message,
    ...(pointer === undefined ? {} : { pointer }),
    ...(faults && faults.length > 1 ? { errors: faults } : {}),
    ...members,
  };
}

/** Turns anything thrown into an AppError; what is not known becomes `internal` with the cause kept. */
export function toAppError(thrown: unknown): AppError {
  if (thrown instanceof AppError) return thrown;
  return new AppError('internal', 'An unexpected error; it was logged with this request', { cause: thrown });
}
