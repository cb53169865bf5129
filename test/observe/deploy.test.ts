/**
 * deploy/ without Docker and without a cluster: compose file and manifests against their schemas, rendered by kubectl,
 * and what they say of each other and of the settings. Their configurations go through the programs' own checkers.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Deployment } from 'kubernetes-models/apps/v1';
import { HorizontalPodAutoscaler } from 'kubernetes-models/autoscaling/v2';
import { NetworkPolicy } from 'kubernetes-models/networking.k8s.io/v1';
import { PodDisruptionBudget } from 'kubernetes-models/policy/v1';
import { ConfigMap, Secret, Service } from 'kubernetes-models/v1';
import { parse, parseAllDocuments } from 'yaml';
import { loadConfig, SETTINGS } from '../../src/config.ts';
import { openApiDocument } from '../../src/openapi.ts';
import { findProgram, type Program } from '../support/program.ts';
import { AMTOOL, PROMTOOL } from '../support/prometheus.ts';

// biome-ignore lint/suspicious/noExplicitAny: YAML of any shape; each test says what it looks for.
type Yaml = any;
type Model = { kind: string; validate(): void };

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DEPLOY = join(ROOT, 'deploy');
const KUBECTL: Program = {
  names: ['kubectl'],
  debianPackage: 'kubernetes-client',
  hint: 'this test needs kubectl: install it (Debian: apt-get install kubernetes-client; macOS: brew install kubectl)',
};
/** What the manifests may hold: the class that checks values, and where its type is, by which TypeScript knows all members. */
const MODELS: Record<string, [model: new (data: never) => Model, module: string]> = {
  'apps/v1 Deployment': [Deployment, 'kubernetes-models/apps/v1'],
  'autoscaling/v2 HorizontalPodAutoscaler': [HorizontalPodAutoscaler, 'kubernetes-models/autoscaling/v2'],
  'networking.k8s.io/v1 NetworkPolicy': [NetworkPolicy, 'kubernetes-models/networking.k8s.io/v1'],
  'policy/v1 PodDisruptionBudget': [PodDisruptionBudget, 'kubernetes-models/policy/v1'],
  'v1 ConfigMap': [ConfigMap, 'kubernetes-models/v1'],
  'v1 Secret': [Secret, 'kubernetes-models/v1'],
  'v1 Service': [Service, 'kubernetes-models/v1'],
};

const read = (path: string): string => readFileSync(join(DEPLOY, path), 'utf8');
const directory = mkdtempSync(join(tmpdir(), 'docsched-deploy-'));
after(() => rmSync(directory, { recursive: true }));

function run(program: string, args: string[]): string {
  try {
    return execFileSync(program, args, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  } catch (error) {
    const { stdout, stderr } = error as { stdout: string; stderr: string };
    throw new Error(`${program} ${args.join(' ')}:\n${stdout}${stderr}`, { cause: error });
  }
}

/** Every setting has a known name and a value that the service would start with. */
function assertSettings(env: Record<string, string>): void {
  const names = Object.keys(env).filter((name) => !name.startsWith('OTEL_'));
  assert.deepEqual(
    names.filter((name) => !(name in SETTINGS)),
    [],
  );
  loadConfig({ HOST: '0.0.0.0', ...env });
}

const isPinned = (image: string): boolean => /:v?\d[\w.-]*$/.test(image) && !image.endsWith(':latest');
const portOf = (url: string): number => Number(new URL(url).port);

describe('deploy/kubernetes', () => {
  const rendered = run(findProgram(KUBECTL), ['kustomize', join(DEPLOY, 'kubernetes')]);
  const objects: Yaml[] = parseAllDocuments(rendered).map((document) => document.toJS());
  const secret = parse(read('kubernetes/secret.example.yaml'));
  const of = (kind: string): Yaml => objects.find((object) => object.kind === kind);
  const pod = of('Deployment').spec.template;
  const [container] = pod.spec.containers;
  const selects = (selector: Record<string, string>): boolean =>
    Object.entries(selector).every(([label, value]) => pod.metadata.labels[label] === value);

  test('is rendered by kubectl from every file that is meant to be applied', () => {
    const files = readdirSync(join(DEPLOY, 'kubernetes')).filter((file) => !/example|kustomization/.test(file));
    assert.deepEqual(parse(read('kubernetes/kustomization.yaml')).resources.toSorted(), files.toSorted());
    assert.equal(objects.length, files.length + 1, 'and the generated ConfigMap');
  });

  test('is valid by the schemas of Kubernetes: values, and names of members', () => {
    const source = [...objects, secret].map((object, i) => {
      const known = MODELS[`${object.apiVersion} ${object.kind}`];
      assert.ok(known, `${object.apiVersion} ${object.kind}`);
      const [Kind, module] = known;
      new Kind(object as never).validate();
      const types = join(ROOT, 'node_modules', module, 'index.d.ts');
      return `export const o${i}: import('${types}').I${object.kind} = ${JSON.stringify(object, null, 1)};`;
    });
    const file = join(directory, 'manifests.ts');
    writeFileSync(file, source.join('\n'));
    const options = '--noEmit --ignoreConfig --skipLibCheck --strict --module nodenext --target esnext';
    run(process.execPath, [join(ROOT, 'node_modules/typescript/bin/tsc'), ...options.split(' '), file]);
  });

  test('gives settings that there are, and that the service starts with', () => {
    assertSettings({ ...of('ConfigMap').data, ...secret.stringData });
    assert.deepEqual(
      container.envFrom.map((from: Yaml) => from.configMapRef?.name ?? from.secretRef?.name),
      [of('ConfigMap').metadata.name, secret.metadata.name],
    );
  });

  test('probes paths that are served, on the port that the image listens on', () => {
    const { containerPort, name } = container.ports[0];
    const paths = Object.keys(openApiDocument().paths as object);
    const probes = { livenessProbe: '/livez', readinessProbe: '/readyz', startupProbe: '/livez' };
    for (const [probe, path] of Object.entries(probes)) {
      assert.deepEqual(container[probe].httpGet, { path, port: name }, probe);
      assert.ok(paths.includes(path), path);
    }
    assert.match(read('Dockerfile'), new RegExp(`^ENV .*PORT=${containerPort}$`, 'm'));
    const [port] = of('Service').spec.ports;
    assert.equal(port.targetPort, name);
    assert.equal(portOf(of('ConfigMap').data.PUBLIC_URL), port.port);
    assert.equal(new URL(of('ConfigMap').data.PUBLIC_URL).hostname, of('Service').metadata.name);
    assert.equal(pod.metadata.annotations['prometheus.io/port'], String(containerPort));
  });

  test('selects its own pods everywhere', () => {
    assert.ok(selects(of('Deployment').spec.selector.matchLabels));
    assert.ok(selects(of('Service').spec.selector));
    assert.ok(selects(of('PodDisruptionBudget').spec.selector.matchLabels));
    assert.ok(selects(of('NetworkPolicy').spec.podSelector.matchLabels));
    assert.ok(selects(pod.spec.topologySpreadConstraints[0].labelSelector.matchLabels));
    const { scaleTargetRef, minReplicas } = of('HorizontalPodAutoscaler').spec;
    assert.equal(scaleTargetRef.name, of('Deployment').metadata.name);
    assert.ok(of('PodDisruptionBudget').spec.minAvailable < minReplicas, 'a node can be drained');
  });

  test('leaves time for the drain: preStop and SHUTDOWN_TIMEOUT_MS together are shorter than the grace period', () => {
    const [command, seconds] = container.lifecycle.preStop.exec.command;
    assert.equal(command, 'sleep');
    const timeoutMs = loadConfig(of('ConfigMap').data).SHUTDOWN_TIMEOUT_MS;
    assert.ok(pod.spec.terminationGracePeriodSeconds > Number(seconds) + timeoutMs / 1000);
    // Long enough for the endpoints to forget it at the next probe.
    assert.ok(Number(seconds) >= container.readinessProbe.periodSeconds);
  });

  test('runs as nobody special, from an image of this version', () => {
    assert.deepEqual([pod.spec.securityContext.runAsNonRoot, pod.spec.automountServiceAccountToken], [true, false]);
    assert.deepEqual(container.securityContext, {
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'] },
    });
    assert.ok(container.resources.limits.memory && container.resources.requests.cpu);
    const { version } = createRequire(import.meta.url)('../../package.json') as { version: string };
    assert.equal(container.image, `docsched:${version}`);
  });

  test('lets through what it needs and names it: the stores, the parser, traces, DNS, and callers', () => {
    const { ingress, egress } = of('NetworkPolicy').spec;
    const ports = (rules: Yaml[]): number[] => rules.flatMap((rule) => rule.ports.map(({ port }: Yaml) => port));
    assert.deepEqual(ports(ingress), [container.ports[0].containerPort]);
    const { DATABASE_URL, REDIS_URL } = secret.stringData;
    const needed = [DATABASE_URL, REDIS_URL, of('ConfigMap').data.PARSER_URL].map(portOf);
    assert.deepEqual(new Set(ports(egress)), new Set([53, 4318, ...needed]));
  });

  test('scales by a metric that the adapter makes of a recording rule that there is', () => {
    const [metric] = of('HorizontalPodAutoscaler').spec.metrics;
    const [rule] = parse(read('kubernetes/prometheus-adapter.example.yaml')).rules.external;
    assert.equal(metric.external.metric.name, rule.name.as);
    const [, record] = rule.seriesQuery.match(/^\{__name__="([^"]+)"\}$/);
    assert.match(read('prometheus/rules.yaml'), new RegExp(`- record: ${record}$`, 'm'));
  });
});

describe('deploy/compose', () => {
  const compose = parse(read('compose/compose.yaml'));
  const services: Record<string, Yaml> = compose.services;
  const collector = parse(read('compose/otel-collector.yaml'));
  const tempo = parse(read('compose/tempo.yaml'));

  test('is valid by the schema of the Compose specification, and by the rules of dclint', () => {
    run(process.execPath, ['node_modules/dclint/bin/dclint.cjs', '--quiet', join(DEPLOY, 'compose/compose.yaml')]);
  });

  test('gives settings that there are, and time for a graceful stop', () => {
    assertSettings(services.docsched.environment);
    const { SHUTDOWN_TIMEOUT_MS } = loadConfig(services.docsched.environment);
    assert.ok(Number.parseInt(services.docsched.stop_grace_period, 10) * 1000 > SHUTDOWN_TIMEOUT_MS);
    assert.ok(services.docsched.deploy.replicas >= 2);
    assert.ok(services.redis.command.join(' ').includes('--maxmemory-policy noeviction'));
  });

  test('runs images of pinned versions, and builds from targets of the Dockerfile', () => {
    for (const [name, { image, build }] of Object.entries(services))
      if (build) assert.match(read('Dockerfile'), new RegExp(`^FROM \\S+ AS ${build.target}$`, 'm'), name);
      else assert.ok(isPinned(image), `${name}: ${image}`);
  });

  test('names services that there are, mounts files that there are, and publishes to this machine only', () => {
    for (const [name, service] of Object.entries(services)) {
      for (const other of Object.keys(service.depends_on ?? {})) {
        assert.ok(services[other], `${name} depends on ${other}`);
        if (service.depends_on[other].condition === 'service_healthy') assert.ok(services[other].healthcheck, other);
      }
      for (const volume of service.volumes ?? []) {
        const [source] = volume.split(':');
        if (source.startsWith('.')) assert.ok(existsSync(join(DEPLOY, 'compose', source)), volume);
        else assert.ok(source in compose.volumes, `${name}: ${volume}`);
      }
      for (const port of service.ports ?? []) assert.match(port, /^127\.0\.0\.1:/, name);
    }
    const { DATABASE_URL, REDIS_URL, PUBLIC_URL, PARSER_URL, OTEL_EXPORTER_OTLP_ENDPOINT } =
      services.docsched.environment;
    const hosts = [DATABASE_URL, REDIS_URL, PUBLIC_URL, PARSER_URL, OTEL_EXPORTER_OTLP_ENDPOINT];
    for (const url of hosts) assert.ok(services[new URL(url).hostname], url);
  });

  test('leads traces from the service over the collector to Tempo, and Grafana to both stores', () => {
    const otlp = services.docsched.environment.OTEL_EXPORTER_OTLP_ENDPOINT;
    const port = (endpoint: string): number => Number(endpoint.split(':').at(-1));
    assert.equal(port(collector.receivers.otlp.protocols.http.endpoint), portOf(otlp));
    const { receivers, processors, exporters } = collector.service.pipelines.traces;
    for (const name of receivers) assert.ok(name in collector.receivers, name);
    for (const name of processors) assert.ok(name in collector.processors, name);
    for (const name of exporters) assert.ok(name in collector.exporters, name);
    const [host] = collector.exporters.otlp.endpoint.split(':');
    assert.ok(services[host]);
    assert.equal(
      port(tempo.distributor.receivers.otlp.protocols.grpc.endpoint),
      port(collector.exporters.otlp.endpoint),
    );
    const { datasources } = parse(read('grafana/provisioning/datasources/datasources.yaml'));
    for (const { url } of datasources) assert.ok(services[new URL(url).hostname], url);
    const tempoUrl = datasources.find(({ type }: Yaml) => type === 'tempo').url;
    assert.equal(portOf(tempoUrl), tempo.server.http_listen_port);
    const [{ options }] = parse(read('grafana/provisioning/dashboards/dashboards.yaml')).providers;
    assert.ok(services.grafana.volumes.some((volume: string) => volume.includes(`dashboards:${options.path}:ro`)));
  });

  test('promtool accepts its Prometheus configuration, and amtool that of Alertmanager', () => {
    const file = join(directory, 'prometheus.yml');
    const text = read('compose/prometheus.yml');
    assert.ok(
      services.prometheus.volumes.some((volume: string) => volume.includes(`:${parse(text).rule_files[0]}:ro`)),
    );
    writeFileSync(file, text.replace('/etc/prometheus/rules.yaml', join(DEPLOY, 'prometheus/rules.yaml')));
    assert.match(run(findProgram(PROMTOOL), ['check', 'config', file]), /1 rule files found/);
    assert.match(run(findProgram(AMTOOL), ['check-config', join(DEPLOY, 'prometheus/alertmanager.yml')]), /SUCCESS/);
    const { static_configs } = parse(text).alerting.alertmanagers[0];
    assert.ok(services[static_configs[0].targets[0].split(':')[0]]);
    assert.deepEqual(parse(text).scrape_configs[0].dns_sd_configs[0].names, ['docsched']);
  });
});
