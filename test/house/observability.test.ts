/** docs/observability.md is what the code shows of itself: metrics, spans, attributes, log events, alerts, checks. */
import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { createMetrics, OUTCOMES } from '../../src/metrics.ts';
import { ATTRIBUTE, EVENT } from '../../src/trace.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (path: string) => readFileSync(`${ROOT}/${path}`, 'utf8');
const text = read('docs/observability.md');

/** Cells of the rows below the heading of a table that begins with these columns. */
function table(...columns: string[]): string[][] {
  const start = text.indexOf(`\n| ${columns.join(' | ')} |`);
  assert.ok(start >= 0, `no table of ${columns}`);
  const lines = text
    .slice(start + 1)
    .split('\n')
    .slice(2);
  return lines
    .slice(
      0,
      lines.findIndex((line) => !line.startsWith('|')),
    )
    .map((line) =>
      line
        .split(/ ?\| ?/)
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
}
const list = (cell = ''): string[] => (cell === '' ? [] : cell.split(', '));

test('every metric, with its type, labels, unit and help', async () => {
  const documented = table('metric', 'type', 'labels', 'unit', 'meaning');
  const all = await createMetrics({ version: '0' }).registry.getMetricsAsJSON();
  assert.deepEqual(
    documented.map(([name, type, , , help]) => [name, type, help]),
    all.filter(({ name }) => name.startsWith('docsched_')).map(({ name, type, help }) => [name, String(type), help]),
  );
  const source = read('src/metrics.ts').replace(/\s+/g, ' ');
  for (const [name = '', , labels, unit = ''] of documented) {
    const [found = ''] = source.slice(source.indexOf(`'${name}'`)).match(/\[[^\]]*\]/) ?? [];
    assert.deepEqual(
      [...found.matchAll(/'(\w+)'/g)].map(([, label]) => label),
      list(labels),
      `labels of ${name}`,
    );
    const seconds = name.includes('timestamp') ? 'seconds since 1970' : name.endsWith('_seconds') ? 'seconds' : unit;
    assert.ok(unit !== '' && unit === seconds, `unit of ${name}`);
  }
});

test('every outcome that is counted', () => {
  const documented = new Map(table('label', 'values').map(([label, values]) => [label, list(values)]));
  for (const [metric, outcomes] of Object.entries(OUTCOMES))
    assert.deepEqual(documented.get(`outcome of ${metric}`)?.toSorted(), outcomes.toSorted(), metric);
});

test('every span, with its kind and type, every attribute and every event', () => {
  const operations = read('src/trace.ts').matchAll(/^ {2}(\w+): \{ kind: SpanKind\.(\w+), type: '(\w+)' \}/gm);
  assert.deepEqual(
    table('span', 'kind').map(([span, kind, type]) => [span, kind, type]),
    [...operations].map(([, operation, kind, type]) => [`\`${operation} <queue>\``, kind, type]),
  );
  assert.deepEqual(
    table('attribute', 'spans', 'meaning')
      .map(([name]) => name!)
      .toSorted(),
    Object.values(ATTRIBUTE).toSorted(),
  );
  assert.deepEqual(
    table('span event', 'spans', 'at').map(([name]) => name),
    Object.values(EVENT),
  );
});

type Line = { event: string; level: string | undefined; members: string[]; complete: boolean; file: string };

/** The text between the brace at `from` and its end. */
function insideBraces(source: string, from: number): string {
  let depth = 0;
  for (let i = from; i < source.length; i++) {
    if ('{[('.includes(source[i]!)) depth += 1;
    if ('}])'.includes(source[i]!) && --depth === 0) return source.slice(from + 1, i);
  }
  throw new Error(`no end: ${source.slice(from, from + 80)}`);
}

/** Members of an object literal: what its parts outside of inner brackets begin with. */
function membersOf(literal: string): string[] {
  let flat = literal.replace(/\/\/.*$/gm, '').replace(/'[^']*'|`[^`]*`/g, "''");
  for (let before = ''; before !== flat; ) {
    before = flat;
    flat = flat.replace(/\{[^{}]*\}|\[[^[\]]*\]|\([^()]*\)/g, '');
  }
  return flat
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
}

const lines: Line[] = globSync('src/**/*.ts', { cwd: ROOT }).flatMap((file) => {
  const source = read(file);
  return [...source.matchAll(/\{\s*event: '(\w+)'/g)].map((found) => {
    const members = membersOf(insideBraces(source, found.index));
    const [, level] = source.slice(0, found.index).match(/log\.(\w+)\(\s*$/) ?? [];
    const names = members.filter((member) => !member.startsWith('...')).map((member) => member.match(/^\w+/)![0]);
    const complete = names.length === members.length;
    return { event: found[1]!, level, members: names.filter((name) => !/^(event|msg)$/.test(name)), complete, file };
  });
});

test('every event that is logged, with its level and fields, and no other', () => {
  const documented = new Map(table('event', 'level', 'fields', 'meaning').map((cells) => [cells[0]!, cells]));
  const everywhere = globSync('src/**/*.ts', { cwd: ROOT }).flatMap((file) => read(file).match(/\bevent: /g) ?? []);
  assert.ok(lines.length > 40 && lines.length <= everywhere.length, `${lines.length}`);
  assert.deepEqual([...documented.keys()].toSorted(), [...new Set(lines.map(({ event }) => event))].toSorted());
  const wrong = lines.flatMap(({ event, level, members, complete, file }) => {
    const [, levels = '', fields = '', meaning = ''] = documented.get(event)!;
    const named = list(fields.replace(/ \([^)]*\)/g, ''));
    // `queue` may be the logger's own.
    const missing = named.filter((name) => name !== 'queue' && !members.includes(name));
    const isAlone = lines.filter((line) => line.event === event).length === 1;
    return [
      ...(meaning.length > 3 ? [] : ['what does it mean?']),
      ...((level ? new RegExp(`\\b${level}\\b`) : /debug.*warn|warn.*error/).test(levels) ? [] : [`level ${level}`]),
      ...members.filter((member) => !named.includes(member)).map((member) => `${member} is not documented`),
      ...(complete && isAlone ? missing.map((name) => `has no ${name}`) : []),
    ].map((fault) => `${event} in ${file}: ${fault}`);
  });
  assert.deepEqual(wrong, []);
});

test('every alert with its severity and its heading in the runbook, and every recording rule', () => {
  const rules = read('deploy/prometheus/rules.yaml');
  const alerts = [...rules.matchAll(/- alert: (\w+)[\s\S]*?severity: (\w+)[\s\S]*?runbook_url: (\S+)/g)];
  assert.deepEqual(
    table('alert', 'severity').map(([alert, severity]) => [alert, severity]),
    alerts.map(([, name, severity]) => [`[${name}](runbook.md#${name!.toLowerCase()})`, severity]),
  );
  const headings = [...read('docs/runbook.md').matchAll(/^## (\w+)$/gm)].map(([, name]) => name!.toLowerCase());
  for (const [, name, , url] of alerts) {
    assert.equal(url, `docs/runbook.md#${name!.toLowerCase()}`);
    assert.ok(headings.includes(name!.toLowerCase()), `docs/runbook.md has no heading ${name}`);
  }
  assert.deepEqual(
    table('recording rule', 'meaning').map(([name]) => name),
    [...rules.matchAll(/- record: (\S+)/g)].map(([, name]) => name),
  );
});

test('every check of /readyz', () => {
  const source = read('src/health.ts') + read('src/main.ts');
  const checks = [...source.matchAll(/\{\s*name: '(\w+)',\s*lastOkAgeMs/g)].map(([, name]) => name);
  assert.match(read('src/watcher/watcher.ts'), /name: `watcher_\$\{name\}`/);
  assert.deepEqual(
    table('check', 'of', 'limit').map(([name]) => name),
    [...checks, 'watcher_…'],
  );
});

test('the runbook speaks of metrics, events and alerts that there are', () => {
  const runbook = read('docs/runbook.md');
  const metrics = table('metric', 'type').map(([name]) => name!);
  for (const [, name = ''] of runbook.matchAll(/\b(docsched_[a-z_]+)/g))
    assert.ok(metrics.includes(name.replace(/_(count|sum|bucket)$/, '')), name);
  const events = table('event', 'level').map(([name]) => name!);
  const sentences = runbook.matchAll(/log events? ((?:`[a-z_]+`(?:,? (?:and )?)?)+)/g);
  const named = [...sentences].flatMap(([, names]) => [...names!.matchAll(/`(\w+)`/g)].map(([, name]) => name!));
  assert.ok(named.length > 5);
  assert.deepEqual(
    named.filter((name) => !events.includes(name)),
    [],
  );
});
