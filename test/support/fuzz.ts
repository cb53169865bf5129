/**
 * Requests for every route of an OpenAPI document: good ones, and ones with a fault or two in their values, bytes,
 * headers, path, method or framing. A request is data until it is built, so that fast-check can shrink and show it.
 */
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { FRAMINGS, type Framed, frame } from './fuzz-framing.ts';
import { type JsonSchema, type Spoiling, spoil, spoiling, textOf, toTree, valuesOf } from './fuzz-json.ts';

type Parameter = { name: string; in: 'path' | 'query'; schema: JsonSchema };
type Operation = {
  parameters?: Parameter[];
  requestBody?: { content: { 'application/json': { schema: { $ref: string } } } };
};
export type OpenApi = {
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, JsonSchema> };
};
export type Route = {
  method: string;
  path: string;
  parameters: Parameter[];
  /** Name of the body's schema and the schema. */
  body: [string, JsonSchema] | null;
};

/** An attempt that exists. In a request `@attempt:7` and `@task:7` stand for one, which is known only when it is sent. */
export type KnownAttempt = { attemptId: string; taskId: string };

type Fault =
  | ({ in: 'value' } & Spoiling)
  | { in: 'bytes'; how: (typeof BYTES)[number]; at: number }
  | { in: 'coding'; how: (typeof CODINGS)[number] }
  | { in: 'header'; name: string; value: string | null }
  | { in: 'flood'; headers: number; size: number }
  | { in: 'method'; method: string }
  | { in: 'path'; at: number; text: string }
  | { in: 'query'; name: string; value: string }
  | { in: 'framing'; how: (typeof FRAMINGS)[number] };

export type FuzzRequest = {
  method: string;
  path: string;
  parameters: Record<string, string>;
  query: [string, string][];
  body: unknown;
  faults: Fault[];
};

export type Built = Framed & {
  /** Its method or path are not the route's. */
  astray: boolean;
  /** The body arrives as these bytes. */
  readable: boolean;
  /** What they say; undefined when they are not JSON. */
  json: unknown;
};

const BYTES = [
  'flip',
  'cut',
  'doubled',
  'bad utf-8',
  'nul',
  'overlong',
  'bom',
  'utf-16le',
  'utf-16be',
  'empty',
] as const;
const CODINGS = [
  ...(['gzip', 'deflate', 'br', 'gzip claimed', 'gzip cut', 'bomb', 'unknown', 'identity', 'twice'] as const),
] as const;
const METHODS = [
  ...['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT', 'PROPFIND', 'QUERY', 'SEARCH'],
  ...['get', 'FOO', 'G@T', 'X'.repeat(300), 'POST\t'],
];
const TYPES = [
  ...[null, '', 'text/plain', 'application/json; charset=utf-16', 'application/json;', 'application/jsonx', '*/*'],
  ...['application/x-www-form-urlencoded', 'multipart/form-data; boundary=x', 'APPLICATION/JSON', 'text/json'],
  ...['application/vnd.x+json', 'application/json, text/plain', 'application/json; charset="'],
];
const SEGMENTS = [
  ...['%00', '%ff', '%25%30%31', '%2e%2e', '..', '.', '%2e%2e%2f', '%2fv1', '%', '%zz', '%c3%28', '%ED%A0%80', '//'],
  ...['-1', '01', '1e3', '1.0', '0x1', '9223372036854775808', '%31', '+1', ' ', '\u0661', '\xff', ';a=b', '#x', '@'],
  ...['__proto__', 'constructor', 'null', 'undefined', '{}', '[]', '*', 'x'.repeat(65), 'x'.repeat(7_000)],
];
const QUERY_VALUES = [
  ...['', '0', '-1', '1.5', '1e400', '9007199254740993', 'NaN', 'Infinity', '0x10', 'true', 'null', '%00', '%ff', '%'],
  ...[
    '%25',
    'a%26b%3Dc',
    '[]',
    '{}',
    'x'.repeat(3_000),
    'default',
    '%C3%A9',
    '\xe9',
    'WyJhIl0',
    'W10',
    'e30',
    'bnVsbA',
  ],
];
const QUERY_NAMES = ['__proto__', 'constructor', 'a[b]', 'queue[]', 'a.b', '', '%00', '%ff', 'QUEUE', 'x'];
const HEADERS: [string, string[]][] = [
  ['traceparent', ['', '00-0-0-0', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '\xff\xfe']],
  ['authorization', ['Bearer x', 'Basic =', '\xff']],
  ['if-none-match', ['*', '"x", W/"y"', ',', '"'.repeat(2_000)]],
  ['last-event-id', ['0', '-1', 'x', '9'.repeat(400)]],
  ['webhook-id', ['x', '']],
  ['webhook-timestamp', ['0', '-1', 'x', '1e400', '9'.repeat(30)]],
  ['webhook-signature', ['v1,', 'v1,AAAA', ',', ' ', 'v1a,'.repeat(500)]],
  ['accept', ['', 'application/openmetrics-text', 'x/y', '\xff']],
  ['cookie', ['a=b', '='.repeat(4_000)]],
  ['x-forwarded-for', ['1.2.3.4', '\xff']],
  ['x-http-method-override', ['DELETE']],
  ['range', ['bytes=0-1']],
  ['te', ['trailers']],
  ['host', ['', 'x y', '[', 'a:b:c']],
];

/** The routes of the document, in its order. */
export const routesOf = (document: OpenApi): Route[] =>
  Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { parameters = [], requestBody }]): Route => {
      const name = requestBody?.content['application/json'].schema.$ref.split('/').at(-1);
      const body = name === undefined ? null : ([name, document.components.schemas[name]!] as [string, JsonSchema]);
      return { method: method.toUpperCase(), path, parameters, body };
    }),
  );

/**
 * Requests to a route that name things of `queue`. `parserUrl`: a target that may be set. Throws when a parameter or a
 * schema is of a kind that nothing here can make.
 */
export function requestsTo(
  { method, path, parameters, body }: Route,
  document: OpenApi,
  { queue, parserUrl }: { queue: string; parserUrl: string },
): fc.Arbitrary<FuzzRequest> {
  const known = knownValues(queue, parserUrl, body?.[0] === 'QueueSettings');
  const inPath = parameters.filter((one) => one.in === 'path');
  const named = new Set([...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!));
  if (inPath.length !== named.size || inPath.some(({ name }) => !named.has(name) || !known[name]))
    throw new Error(`${method} ${path}: nothing here makes values for its parameters`);
  const values = (list: Parameter[]): Record<string, fc.Arbitrary<string>> =>
    Object.fromEntries(list.map(({ name, schema }) => [name, (known[name] ?? valuesOf(schema, known)).map(String)]));
  const good = fc.record({
    method: fc.constant(method),
    path: fc.constant(path),
    parameters: fc.record(values(inPath)),
    query: queriesOf(values(parameters.filter((one) => one.in === 'query')), queue),
    body: body === null ? fc.constant(undefined) : bodiesOf(body[0], document, known, queue),
  });
  return fc
    .tuple(good, fc.oneof({ weight: 3, arbitrary: fc.constant([]) }, faultsOf(body !== null, inPath.length > 0)))
    .map(([request, faults]) => ({ ...request, faults: [...faults] }));
}

/** The lane's own queue is named most of the time: elsewhere there is little to be found. */
const queriesOf = (values: Record<string, fc.Arbitrary<string>>, queue: string): fc.Arbitrary<[string, string][]> =>
  fc
    .record(values, { requiredKeys: [] })
    .map((query) => Object.entries<string>({ ...('queue' in values ? { queue } : {}), ...query }));

/** Bodies a schema allows; entries of batches by the schema of a single one, which the document does not name there. */
function bodiesOf(
  name: string,
  { components: { schemas } }: OpenApi,
  known: Record<string, fc.Arbitrary<unknown>>,
  queue: string,
): fc.Arbitrary<unknown> {
  const list = (entry: fc.Arbitrary<unknown>) => fc.array(entry, { minLength: 1, maxLength: 6 });
  const reports = matching(valuesOf(schemas.PlainCallbackRequest!, known), queue);
  if (name === 'PlainCallbackRequest') return reports;
  const tasks = list(valuesOf(schemas.SubmitRequest!, known));
  return valuesOf(schemas[name]!, { ...known, tasks, callbacks: list(reports) });
}

/** Half of them name the task of their attempt. */
const matching = (reports: fc.Arbitrary<unknown>, queue: string): fc.Arbitrary<unknown> =>
  fc.tuple(reports, fc.nat(1_000), fc.boolean()).map(([report, n, matches]) => {
    const task = { queue, task_id: `@task:${n}`, task_version: '1', attempt_id: `@attempt:${n}` };
    return matches ? { ...Object(report), ...task } : report;
  });

/** Values that a schema cannot tell: ids that exist, hosts that may be pushed to, waits that end. */
function knownValues(queue: string, parserUrl: string, settings: boolean): Record<string, fc.Arbitrary<unknown>> {
  const taskId = fc.oneof(
    { weight: 8, arbitrary: fc.integer({ min: 1, max: 40 }).map(String) },
    { weight: 1, arbitrary: fc.constantFrom('0', '9223372036854775807', '123456789') },
  );
  const attemptId = fc.oneof(
    { weight: 8, arbitrary: fc.nat(1_000).map((n) => `@attempt:${n}`) },
    { weight: 1, arbitrary: fc.stringMatching(/^[A-Za-z0-9_-]{22,64}$/) },
  );
  return {
    task_id: taskId,
    task_version: fc.oneof(fc.constantFrom('1', '2'), fc.integer({ min: 1, max: 9 }).map(String)),
    attempt_id: attemptId,
    queue: settings ? fc.constant(queue) : fc.constantFrom(queue, queue, queue, 'default', 'nowhere'),
    status_code: fc.oneof(fc.constantFrom(0, '0', 0, 1, -1, '9223372036854775807'), fc.maxSafeInteger()),
    url: fc.constant(parserUrl),
    secrets: fc.constantFrom(null, [], [`whsec_${Buffer.alloc(24, 7).toString('base64')}`]),
    wait: fc.constantFrom('0', '0.01', '0.05'),
    cursor: fc.constantFrom('WyJkZWZhdWx0IiwiMSIsIjEiXQ'),
    run_at: fc.constantFrom(0, 1, Date.now() + 86_400_000),
  };
}

function faultsOf(hasBody: boolean, hasPath: boolean): fc.Arbitrary<Fault[]> {
  const place = fc.nat(400);
  const value: fc.Arbitrary<Fault> = spoiling.map((one) => ({ in: 'value', ...one }));
  const header = fc
    .constantFrom(...HEADERS)
    .chain(([name, texts]) => fc.constantFrom(...texts).map((text) => [name, text]));
  const query = fc.tuple(
    fc.constantFrom('queue', 'wait', 'limit', 'cursor', ...QUERY_NAMES),
    fc.constantFrom(...QUERY_VALUES),
  );
  const fault: fc.Arbitrary<Fault> = fc.oneof(
    { weight: hasBody ? 14 : 0, arbitrary: value },
    {
      weight: hasBody ? 3 : 0,
      arbitrary: fc.record({ in: fc.constant('bytes' as const), how: fc.constantFrom(...BYTES), at: place }),
    },
    {
      weight: hasBody ? 2 : 0,
      arbitrary: fc.record({ in: fc.constant('coding' as const), how: fc.constantFrom(...CODINGS) }),
    },
    {
      weight: hasBody ? 2 : 0,
      arbitrary: fc.constantFrom(...TYPES).map((type): Fault => ({ in: 'header', name: 'content-type', value: type })),
    },
    { weight: 2, arbitrary: header.map(([name, text]): Fault => ({ in: 'header', name: name!, value: text! })) },
    {
      weight: 1,
      arbitrary: fc.record({
        in: fc.constant('flood' as const),
        headers: fc.constantFrom(1, 90, 1_900, 4_000),
        size: fc.constantFrom(1, 200, 9_000, 70_000),
      }),
    },
    { weight: 2, arbitrary: fc.constantFrom(...METHODS).map((method): Fault => ({ in: 'method', method })) },
    {
      weight: hasPath ? 4 : 1,
      arbitrary: fc.tuple(place, fc.constantFrom(...SEGMENTS)).map(([at, text]): Fault => ({ in: 'path', at, text })),
    },
    { weight: 4, arbitrary: query.map(([name, text]): Fault => ({ in: 'query', name, value: text })) },
    { weight: 3, arbitrary: fc.constantFrom(...FRAMINGS).map((how): Fault => ({ in: 'framing', how })) },
  );
  return fc.array(fault, { minLength: 1, maxLength: 2 });
}

/** `attempts`: ids that exist, which the placeholders stand for. */
export function build(request: FuzzRequest, attempts: readonly KnownAttempt[]): Built {
  const real = (text: string) =>
    text.replaceAll(/@(attempt|task):(\d+)/g, (_, what, n) => {
      const one = attempts[Number(n) % Math.max(1, attempts.length)];
      return (what === 'task' ? one?.taskId : one?.attemptId) ?? '0';
    });
  const of = <Kind extends Fault['in']>(kind: Kind) =>
    request.faults.filter((fault): fault is Extract<Fault, { in: Kind }> => fault.in === kind);
  const method = of('method').at(-1)?.method ?? request.method;
  const target = Buffer.from(targetOf(request, of('path'), of('query'), real), 'latin1');
  const { content, encoding } = contentOf(request, of('value'), of('bytes'), of('coding'), real);
  const headers: [string, string][] = [['host', 'docsched.test']];
  if (content) headers.push(['content-type', 'application/json']);
  if (encoding !== undefined) headers.push(['content-encoding', encoding]);
  for (const { name, value } of of('header')) {
    const index = headers.findIndex(([known]) => known === name);
    if (index >= 0) headers.splice(index, 1);
    if (value !== null) headers.push([name, value]);
  }
  for (const { headers: count, size } of of('flood'))
    for (let i = 0; i < count && i * size < 150_000; i++) headers.push([`x-${i}`, 'x'.repeat(size)]);
  const framed = frame(of('framing').at(-1)?.how, method, target, headers, content);
  const readable = framed.whole && encoding === undefined && content !== null;
  const astray = request.faults.some((fault) => fault.in === 'method' || fault.in === 'path');
  return { ...framed, astray, readable, json: readable ? parsed(content) : undefined };
}

function targetOf(
  { path, parameters, query }: FuzzRequest,
  paths: { at: number; text: string }[],
  queries: { name: string; value: string }[],
  real: (text: string) => string,
): string {
  const segments = path.split('/').map((segment) => {
    const name = /^\{(\w+)\}$/.exec(segment)?.[1];
    return name === undefined ? segment : encodeURIComponent(real(parameters[name]!));
  });
  for (const { at, text } of paths) segments[1 + (at % (segments.length - 1))] = text.replaceAll(' ', '%20');
  const pairs = [
    ...query.map(([name, value]) => `${name}=${encodeURIComponent(value)}`),
    ...queries.map(({ name, value }) => `${name}=${value}`),
  ];
  return segments.join('/') + (pairs.length > 0 ? `?${pairs.join('&')}` : '');
}

function contentOf(
  { body }: FuzzRequest,
  values: Spoiling[],
  bytes: { how: (typeof BYTES)[number]; at: number }[],
  codings: { how: (typeof CODINGS)[number] }[],
  real: (text: string) => string,
): { content: Buffer | null; encoding: string | undefined } {
  if (body === undefined) return { content: null, encoding: undefined };
  const tree = values.reduce(spoil, toTree(body));
  const plain = bytes.reduce<Buffer>((text, { how, at }) => garble(text, how, at), Buffer.from(real(textOf(tree))));
  const coding = codings.at(-1)?.how;
  switch (coding) {
    case undefined:
      return { content: plain, encoding: undefined };
    case 'gzip':
      return { content: gzipSync(plain), encoding: 'gzip' };
    case 'deflate':
      return { content: deflateSync(plain), encoding: 'deflate' };
    case 'br':
      return { content: brotliCompressSync(plain), encoding: 'br' };
    case 'gzip claimed':
      return { content: plain, encoding: 'gzip' };
    case 'gzip cut':
      return { content: gzipSync(plain).subarray(0, -9), encoding: 'gzip' };
    case 'bomb':
      return { content: gzipSync(Buffer.alloc(30_000_000, 0x20)), encoding: 'gzip' };
    case 'unknown':
      return { content: plain, encoding: 'zstd-x' };
    case 'identity':
      return { content: plain, encoding: 'identity' };
    case 'twice':
      return { content: gzipSync(gzipSync(plain)), encoding: 'gzip, gzip' };
    default:
      return coding satisfies never;
  }
}

function garble(text: Buffer, how: (typeof BYTES)[number], at: number): Buffer {
  const index = text.length === 0 ? 0 : at % text.length;
  const inserted = (bytes: number[]) =>
    Buffer.concat([text.subarray(0, index), Buffer.from(bytes), text.subarray(index)]);
  switch (how) {
    case 'flip':
      return Buffer.concat([
        text.subarray(0, index),
        Buffer.from([(text[index] ?? 0) ^ 0x24]),
        text.subarray(index + 1),
      ]);
    case 'cut':
      return text.subarray(0, index);
    case 'doubled':
      return Buffer.concat([text, text]);
    case 'bad utf-8':
      return inserted([0xff]);
    case 'nul':
      return inserted([0]);
    case 'overlong':
      return inserted([0xc0, 0xaf]);
    case 'bom':
      return Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), text]);
    case 'utf-16le':
      return Buffer.from(text.toString('utf8'), 'utf16le');
    case 'utf-16be':
      return Buffer.from(`\uFEFF${text.toString('utf8')}`, 'utf16le').swap16();
    case 'empty':
      return Buffer.alloc(0);
    default:
      return how satisfies never;
  }
}

function parsed(content: Buffer): unknown {
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(content));
  } catch {
    return undefined;
  }
}
