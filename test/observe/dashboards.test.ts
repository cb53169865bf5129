/**
 * The dashboards against a real Prometheus that has scraped a service under a varied load: each panel's expressions are
 * accepted, name metrics that exist, and show something that moves. Grafana itself is not run.
 */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { startLoad } from '../support/load.ts';
import { type Series, startPrometheus, type TestPrometheus } from '../support/prometheus.ts';
import { renderDashboard } from './picture.ts';

const DASHBOARDS = fileURLToPath(new URL('../../deploy/grafana/dashboards', import.meta.url));
/** Pictures of what Prometheus answered are written here when it is set, one a dashboard. */
const PICTURES = process.env.PICTURES_DIR;
/** How long the load is scraped, once a second. */
const WATCHED_S = 75;
const RATE_INTERVAL = '5s';
/** Of Prometheus itself. */
const ITS_OWN = ['up', 'scrape_duration_seconds', 'scrape_samples_post_metric_relabeling'];
const FUNCTIONS =
  /^(sum|max|min|by|on|rate|increase|time|histogram_quantile|le|unless|or|and|group_left|offset|changes|label_values)$/;

type Target = { expr: string; legendFormat: string; datasource: { uid: string }; exemplar?: boolean };
type Panel = {
  id: number;
  type: string;
  title: string;
  description: string;
  datasource: { uid: string };
  targets: Target[];
  fieldConfig: { defaults: { unit: string } };
};
type Dashboard = { uid: string; title: string; panels: Panel[]; templating: { list: { name: string }[] } };

const dashboards: Dashboard[] = readdirSync(DASHBOARDS)
  .toSorted()
  .map((file) => JSON.parse(readFileSync(join(DASHBOARDS, file), 'utf8')));

const substitute = (expr: string): string =>
  expr.replaceAll('$__rate_interval', RATE_INTERVAL).replaceAll('$queue', '.*').replaceAll('$instance', '.*');

/** Names in an expression that could be metrics: outside of braces, brackets and label lists. */
function metricsOf(expr: string): string[] {
  const bare = expr
    .replace(/\{[^}]*\}|\[[^\]]*\]|"[^"]*"/g, '')
    .replace(/\b(by|on|without|group_left)\s*\([^)]*\)/g, '');
  return [...bare.matchAll(/\b[a-z_][a-z0-9_]*\b/gi)].map(([name]) => name).filter((name) => !FUNCTIONS.test(name));
}

const numbersOf = ({ values }: Series): number[] => values.map(([, value]) => Number(value)).filter(Number.isFinite);

/** Not all the same, and not nothing but zero. */
const moves = (series: Series): boolean => new Set(numbersOf(series)).size > 1;

let load: Awaited<ReturnType<typeof startLoad>>;
let prometheus: TestPrometheus;
let watchedUntilS: number;

before(async () => {
  load = await startLoad();
  prometheus = await startPrometheus({
    global: { scrape_interval: '1s' },
    scrape_configs: [{ job_name: 'docsched', static_configs: [{ targets: load.hosts }] }],
  });
  await load.run(WATCHED_S);
  await sleep(1_500);
  watchedUntilS = Date.now() / 1000;
});
after(async () => {
  await prometheus?.stop();
  await load?.stop();
});

test('each dashboard can be provisioned: fixed uids, its own data source variable, units, and words for each panel', () => {
  assert.deepEqual(
    dashboards.map(({ uid }) => uid),
    ['docsched-overview', 'docsched-pipeline', 'docsched-runtime'],
  );
  for (const { title, panels, templating } of dashboards) {
    assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length, `${title}: panel ids`);
    assert.equal(templating.list[0]?.name, 'datasource');
    for (const panel of panels) {
      const what = `${title} / ${panel.title}`;
      assert.ok(panel.description.length > 40, `${what}: what to do when it looks bad`);
      assert.ok(panel.fieldConfig.defaults.unit, `${what}: unit`);
      for (const { datasource, legendFormat } of panel.targets) {
        // biome-ignore lint/suspicious/noTemplateCurlyInString: Grafana's own variable.
        assert.equal(datasource.uid, '${datasource}', what);
        assert.ok(legendFormat, what);
      }
    }
  }
});

for (const { title, panels } of dashboards)
  for (const panel of panels)
    test(`${title} / ${panel.title} shows the load`, async () => {
      const known = new Set([...(await prometheus.names()), ...ITS_OWN]);
      let moving = 0;
      for (const { expr } of panel.targets) {
        for (const name of metricsOf(expr)) assert.ok(known.has(name), `there is no metric ${name}`);
        const answer = await prometheus.queryRange(substitute(expr), WATCHED_S, watchedUntilS);
        assert.ok(answer.length > 0, `no data: ${expr}`);
        moving += answer.filter(moves).length;
      }
      assert.ok(moving > 0, 'nothing moves');
    });

test('latencies lead to traces: exemplars were scraped', async () => {
  const end = Date.now() / 1000;
  const query = new URLSearchParams({
    query: 'docsched_processing_duration_seconds_bucket',
    start: `${end - 120}`,
    end: `${end}`,
  });
  const answer = await fetch(`${prometheus.url}/api/v1/query_exemplars?${query}`);
  const { data } = (await answer.json()) as { data: { exemplars: { labels: { trace_id?: string } }[] }[] };
  const ids = data.flatMap(({ exemplars }) => exemplars.map(({ labels }) => labels.trace_id));
  assert.ok(ids.some((id) => /^[0-9a-f]{32}$/.test(id ?? '')));
});

test('pictures of the panels can be drawn from what Prometheus answers', async () => {
  for (const { uid, title, panels } of dashboards) {
    const drawn = await Promise.all(
      panels.map(async (panel) => ({
        title: panel.title,
        // A heatmap's unit is that of its buckets; drawn are the counts in them.
        unit: panel.type === 'heatmap' ? 'short' : panel.fieldConfig.defaults.unit,
        lines: (
          await Promise.all(
            panel.targets.map(async ({ expr, legendFormat }) =>
              (
                await prometheus.queryRange(substitute(expr), WATCHED_S, watchedUntilS)
              ).map((series) => ({
                name: legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => series.metric[label] ?? ''),
                points: series.values.map(([at, value]): [number, number] => [at, Number(value)]),
              })),
            ),
          )
        ).flat(),
      })),
    );
    const svg = renderDashboard(title, drawn);
    assert.match(svg, /<polyline/);
    if (!PICTURES) continue;
    mkdirSync(PICTURES, { recursive: true });
    writeFileSync(join(PICTURES, `${uid}.svg`), svg);
  }
});
