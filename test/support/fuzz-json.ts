/**
 * JSON that need not be what JSON.stringify makes: members twice, numbers no double holds, nesting 100,000 levels deep. A
 * tree is made from a JSON schema, then spoilt in places. Large things are kept as their description, so that a
 * counterexample can be read.
 */
import fc from 'fast-check';

export type Tree =
  | { object: [string, Tree][] }
  | { array: Tree[] }
  /** JSON text, or what stands in its place. */
  | { raw: string }
  | { big: Big; size: number };
type Big = 'string' | 'digits' | 'array' | 'object' | 'nested arrays' | 'nested objects';

export type JsonSchema = {
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  anyOf?: JsonSchema[];
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  minItems?: number;
  maxItems?: number;
  maxLength?: number;
};

/** What a tree is spoilt with. `at` counts places of the tree, modulo their number. */
export type Spoiling =
  | { fault: 'replaced'; at: number; by: Tree }
  | { fault: 'dropped'; at: number }
  | { fault: 'added'; at: number; name: string; value: Tree }
  | { fault: 'twice'; at: number; value: Tree };

const BIG: Record<Big, (size: number) => string> = {
  string: (size) => `"${'x'.repeat(size)}"`,
  digits: (size) => `1${'0'.repeat(size)}`,
  array: (size) => `[${'0,'.repeat(size)}0]`,
  object: (size) => `{${Array.from({ length: size }, (_, i) => `"k${i}":0`).join()}}`,
  'nested arrays': (size) => '['.repeat(size) + ']'.repeat(size),
  'nested objects': (size) => `${'{"a":'.repeat(size)}0${'}'.repeat(size)}`,
};

export function toTree(value: unknown): Tree {
  if (Array.isArray(value)) return { array: value.map(toTree) };
  if (typeof value === 'object' && value !== null)
    return { object: Object.entries(value).map(([name, member]) => [name, toTree(member)]) };
  return { raw: JSON.stringify(value) };
}

export function textOf(tree: Tree): string {
  if ('raw' in tree) return tree.raw;
  if ('big' in tree) return BIG[tree.big](tree.size);
  if ('array' in tree) return `[${tree.array.map(textOf).join()}]`;
  return `{${tree.object.map(([name, value]) => `${JSON.stringify(name)}:${textOf(value)}`).join()}}`;
}

const ODD_VALUES = [
  ...['null', 'true', 'false', '""', '" "', '"x"', '[]', '{}', '[[]]', '[null]', '{"a":{"b":[]}}'],
  ...['0', '-0', '1', '-1', '1.0', '1e0', '1.5', '5e-324', '1e-400', '1e400', '-1e400', '6', '0.1', '101'],
  ...['2147483647', '2147483648', '4294967296', '9007199254740991', '9007199254740992', '-9007199254740993'],
  ...['9223372036854775807', '9223372036854775808', '-9223372036854775808', '1e18', '1E+300'],
  ...['"9223372036854775807"', '"9223372036854775808"', '"-9223372036854775808"', '"-0"', '"00"', '"1e3"', '"0x10"'],
  ...['"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udc00\\ud800"', '"\uFEFF"', '"\u0661"', '"\\n"', '"\u{10FFFF}"'],
  ...['{"__proto__":{"queue":"x"}}', '{"constructor":{"prototype":{}}}', '["__proto__"]', '"__proto__"'],
  // No JSON at all.
  ...['NaN', 'Infinity', '-', '01', '+1', '.5', '1.', "'x'", 'undefined', '"\u0000"', '"\\x"', '"', '{"a":1,}', '//'],
];
const ODD_NAMES = [
  ...['__proto__', 'constructor', 'prototype', 'toString', 'hasOwnProperty', 'then', 'toJSON', '', ' ', '0', '-1'],
  ...['a/b', '~', '~1', '/', '\0', '\ud800', '\uFEFF', 'TASK_ID', 'task_id ', 'status', 'x'.repeat(2_000)],
];
const BIG_SIZES = [1, 100, 2_000, 70_000, 100_000, 300_000];

export const oddTree: fc.Arbitrary<Tree> = fc.oneof(
  { weight: 12, arbitrary: fc.constantFrom(...ODD_VALUES).map((raw): Tree => ({ raw })) },
  { weight: 3, arbitrary: fc.jsonValue({ maxDepth: 2 }).map(toTree) },
  {
    weight: 1,
    arbitrary: fc.record({ big: fc.constantFrom(...(Object.keys(BIG) as Big[])), size: fc.constantFrom(...BIG_SIZES) }),
  },
);
const place = fc.nat(200);
const oddName = fc.oneof(fc.constantFrom(...ODD_NAMES), fc.string({ maxLength: 8 }));

export const spoiling: fc.Arbitrary<Spoiling> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ fault: fc.constant('replaced' as const), at: place, by: oddTree }) },
  { weight: 1, arbitrary: fc.record({ fault: fc.constant('dropped' as const), at: place }) },
  {
    weight: 2,
    arbitrary: fc.record({ fault: fc.constant('added' as const), at: place, name: oddName, value: oddTree }),
  },
  { weight: 1, arbitrary: fc.record({ fault: fc.constant('twice' as const), at: place, value: oddTree }) },
);

/** A copy of the tree with that fault. */
export function spoil(tree: Tree, spoiling: Spoiling): Tree {
  if (spoiling.fault === 'replaced') {
    const target = pick(nodes(tree), spoiling.at);
    return change(tree, (node) => (node === target ? spoiling.by : node));
  }
  const target = pick(nodes(tree).filter(isObject), spoiling.at);
  if (!target) return tree;
  return change(tree, (node) => (node === target ? { object: spoilMembers(target.object, spoiling) } : node));
}

function spoilMembers(members: [string, Tree][], spoiling: Exclude<Spoiling, { fault: 'replaced' }>): [string, Tree][] {
  const index = members.length === 0 ? 0 : spoiling.at % members.length;
  switch (spoiling.fault) {
    case 'dropped':
      return members.toSpliced(index, 1);
    case 'added':
      return [...members, [spoiling.name, spoiling.value]];
    case 'twice':
      return members.length === 0 ? members : [...members, [members[index]![0], spoiling.value]];
    default:
      return spoiling satisfies never;
  }
}

const isObject = (tree: Tree): tree is { object: [string, Tree][] } => 'object' in tree;
const pick = <T>(list: T[], at: number): T | undefined => list[at % list.length];

function nodes(tree: Tree): Tree[] {
  if ('object' in tree) return [tree, ...tree.object.flatMap(([, value]) => nodes(value))];
  if ('array' in tree) return [tree, ...tree.array.flatMap(nodes)];
  return [tree];
}

function change(tree: Tree, by: (node: Tree) => Tree): Tree {
  const changed = by(tree);
  if (changed !== tree) return changed;
  if ('object' in tree) return { object: tree.object.map(([name, value]) => [name, change(value, by)]) };
  if ('array' in tree) return { array: tree.array.map((value) => change(value, by)) };
  return tree;
}

/**
 * Values a schema allows. `known` wins for members of that name: what the schema cannot say. Throws for a schema it does
 * not understand.
 */
export function valuesOf(schema: JsonSchema, known: Record<string, fc.Arbitrary<unknown>>): fc.Arbitrary<unknown> {
  const inside = (one: JsonSchema) => valuesOf(one, known);
  if (schema.enum) return fc.constantFrom(...schema.enum);
  if ('const' in schema) return fc.constant(schema.const);
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map(inside));
  if (Array.isArray(schema.type)) return fc.oneof(...schema.type.map((type) => inside({ ...schema, type })));
  const { minimum = -1_000_000, maximum = 1_000_000 } = schema;
  switch (schema.type) {
    case 'object': {
      const members = Object.entries(schema.properties ?? {}).map(([name, one]): [string, fc.Arbitrary<unknown>] => [
        name,
        known[name] ?? inside(one),
      ]);
      return fc.record(Object.fromEntries(members), { requiredKeys: schema.required ?? [] });
    }
    case 'array':
      return fc.array(inside(schema.items ?? {}), {
        minLength: schema.minItems ?? 0,
        maxLength: Math.min(schema.maxItems ?? 5, 5),
      });
    case 'integer':
      return fc.oneof(fc.constantFrom(minimum, maximum), fc.integer({ min: minimum, max: maximum }));
    case 'number':
      return fc.oneof(
        fc.constantFrom(minimum, maximum),
        fc.double({ min: minimum, max: maximum, noNaN: true, noDefaultInfinity: true }),
      );
    case 'boolean':
      return fc.boolean();
    case 'null':
      return fc.constant(null);
    case 'string':
      return schema.pattern
        ? fc.stringMatching(new RegExp(schema.pattern))
        : fc.string({ unit: 'binary', maxLength: Math.min(schema.maxLength ?? 50, 50) });
    case undefined:
      return fc.jsonValue({ maxDepth: 3 });
    default:
      throw new Error(`no values for the schema ${JSON.stringify(schema)}`);
  }
}
