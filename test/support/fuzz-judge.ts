/** Whether an answer is one that docsched may give to a request. */
import assert from 'node:assert/strict';
import { ERROR_CODES, type ErrorCode } from '../../src/errors.ts';
import type { Built, FuzzRequest, Route } from './fuzz.ts';
import type { Said } from './fuzz-wire.ts';

type Problem = { code: ErrorCode; pointer?: string; errors?: Problem[] } & Record<string, unknown>;
type Result = { outcome?: string; task?: Key; error?: Problem };
type Key = { queue: string; task_id: string; task_version: string };

/** What an answer says was done. */
export type Done = {
  /** The request's own answer; undefined when none came. */
  status: number | undefined;
  /** By outcome, of one or of each of a batch. */
  results: Result[];
};

/** Codes of what was wrong with the input: they say where. */
const OF_INPUT = new Set<ErrorCode>([
  ...(['malformed_json', 'invalid_field', 'missing_field', 'unknown_field', 'integer_not_exact'] as const),
  ...(['payload_too_large', 'result_too_large', 'body_too_large'] as const),
]);
/** What a good request may meet. */
const EXPECTED = new Set<ErrorCode>([
  ...(['stale_version', 'unknown_attempt', 'stale_attempt', 'state_forbids', 'unknown_task', 'unknown_queue'] as const),
]);

/** Throws when one of the answers is none that may be given. */
export function judge(route: Route, request: FuzzRequest, built: Built, answers: Said[]): Done {
  answers.forEach((answer, index) => {
    if (index !== built.own)
      assert.ok(answer.status === 200 || answer.status === 400, `the neighbour got ${answer.status}`);
    assert.ok(answer.status >= 200 && answer.status < 500, `answered ${answer.status}: ${answer.body.slice(0, 500)}`);
  });
  const own = answers[built.own];
  if (!own) {
    assert.ok(!built.answered, 'no answer');
    return { status: undefined, results: [] };
  }
  if (own.status >= 400 && built.methods[built.own] !== 'HEAD') judgeProblem(route, request, built, own);
  const isJson = own.status < 400 && own.headers.get('content-type')?.startsWith('application/json') && own.body !== '';
  const body = isJson ? JSON.parse(own.body) : {};
  const results: Result[] = body.results ?? (body.outcome === undefined ? [] : [body]);
  for (const { error } of body.results ?? []) if (error) checkProblem(route, built, error, expectsNothing);
  return { status: own.status, results };
}

const expectsNothing = () => {};

function judgeProblem(route: Route, request: FuzzRequest, built: Built, { status, headers, body }: Said): void {
  const said = `${status} ${body.slice(0, 500)}`;
  assert.match(headers.get('content-type') ?? '', /^application\/problem\+json/, said);
  const problem = JSON.parse(body) as Problem;
  assert.equal(problem.status, status, said);
  if (status === 405) assert.ok(headers.has('allow'), 'no Allow');
  checkProblem(route, built, problem, () => {
    if (request.faults.length === 0) assert.ok(isExpected(route, problem), `a good request was refused: ${said}`);
  });
}

/** Settings that are each allowed may not go together; plain reports need an attempt where the fence is strict. */
function isExpected(route: Route, { code, pointer = '' }: Problem): boolean {
  if (EXPECTED.has(code)) return true;
  if (code === 'missing_field') return pointer.endsWith('/attempt_id');
  return code === 'invalid_field' && (route.body?.[0] === 'QueueSettings' || pointer === 'cursor');
}

function checkProblem(route: Route, built: Built, problem: Problem, more: () => void): void {
  const said = JSON.stringify(problem).slice(0, 500);
  const known = ERROR_CODES[problem.code];
  assert.ok(known, `a code that is not in the table: ${said}`);
  assert.deepEqual([problem.status, problem.title], [...known], said);
  assert.equal(problem.type, `urn:docsched:problem:${problem.code}`);
  assert.ok(typeof problem.detail === 'string' && problem.detail.length > 0, said);
  for (const one of [problem, ...(problem.errors ?? [])]) {
    if (OF_INPUT.has(one.code)) assert.equal(typeof one.pointer, 'string', `no pointer: ${said}`);
    if (one.pointer !== undefined) checkPointer(route, built, one, said);
  }
  more();
}

function checkPointer(route: Route, built: Built, { code, pointer = '' }: Problem, said: string): void {
  if (pointer === '') return;
  if (!pointer.startsWith('/')) {
    // A spoilt path may be another route's, whose parameters these are.
    const elsewhere = built.astray && /^[a-z_]+$/.test(pointer);
    const isParameter = route.parameters.some(({ name }) => name === pointer);
    assert.ok(isParameter || elsewhere || code === 'unknown_field', `a parameter that is not there: ${said}`);
    return;
  }
  if (!built.readable) return;
  const steps = pointer
    .slice(1)
    .split('/')
    .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
  const last = steps.pop()!;
  const parent = steps.reduce<unknown>((value, step) => own(value, step), built.json);
  // What is missing is not there, and a default may be what was wrong; what it would stand in is.
  if (code === 'missing_field')
    assert.ok(Object(parent) === parent && own(parent, last) === undefined, `not missing: ${said}`);
  else if (code === 'unknown_queue') assert.ok(Object(parent) === parent, said);
  else assert.ok(Object(parent) === parent && Object.hasOwn(parent as object, last), `nothing is there: ${said}`);
}

const own = (value: unknown, name: string): unknown =>
  Object(value) === value && Object.hasOwn(value as object, name)
    ? (value as Record<string, unknown>)[name]
    : undefined;
