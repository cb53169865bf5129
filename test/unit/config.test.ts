/** Settings: defaults, types, and every problem told at once. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ConfigError, loadConfig, SETTINGS } from '../../src/config.ts';
import { startService } from '../support/process.ts';

function problemsOf(env: Record<string, string>): readonly string[] {
  try {
    loadConfig(env);
    return [];
  } catch (error) {
    assert.ok(error instanceof ConfigError);
    return error.problems;
  }
}

test('an empty environment gives the defaults of the contract', () => {
  assert.deepEqual(loadConfig({}), {
    DATA_DIR: '.docsched',
    HOST: '127.0.0.1',
    PORT: 8080,
    MAX_PROCESSING: 10,
    GLOBAL_LIMIT: 0,
    PENDING_EXPIRED_MS: 86_400_000,
    PROCESSING_EXPIRED_MS: 1_800_000,
    SUCCESS_EXPIRED_MS: 86_400_000,
    CLEANUP_AFTER_MS: 604_800_000,
    VERSION_FLOOR_MS: 7_776_000_000,
    MAX_RETRIES: 3,
    RETRY_BASE_MS: 1000,
    TRIGGER_INTERVAL_MS: 5000,
    ACQUIRE_TTL_MS: 10_000,
    PUSH_TIMEOUT_MS: 10_000,
    PAYLOAD_MAX_BYTES: 262_144,
    RESULT_MAX_BYTES: 8_388_608,
    BATCH_MAX_BYTES: 8_388_608,
    PG_POOL_MAX: 10,
    SHUTDOWN_TIMEOUT_MS: 10_000,
    WATCH_CRON: '*/5 * * * * *',
    PROMOTE_CRON: '* * * * * *',
    RECONCILE_CRON: '*/30 * * * * *',
    CLEANUP_CRON: '0 * * * * *',
    ROLES: ['api', 'pusher', 'watcher'],
    LOG_LEVEL: 'info',
  });
});

test('an empty value is an absent one', () => {
  assert.deepEqual(loadConfig({ PORT: '', REDIS_URL: '' }), loadConfig({}));
});

test('values are read by their type', () => {
  const config = loadConfig({
    PORT: '0',
    ROLES: 'api, watcher',
    RETRY_BASE_MS: '100',
    REDIS_URL: 'rediss://cache:6380',
  });
  assert.deepEqual(
    [config.PORT, config.ROLES, config.RETRY_BASE_MS, config.REDIS_URL],
    [0, ['api', 'watcher'], 100, 'rediss://cache:6380'],
  );
});

test('all problems are told at once, each with its name, what is expected and what was found', () => {
  assert.deepEqual(
    problemsOf({
      MAX_PROCESSING: 'ten',
      PORT: '65536',
      RETRY_BASE_MS: '99',
      PG_POOL_MAX: '1',
      PARSER_URL: 'parser:9090',
      ROLES: 'api,parser',
      WATCH_CRON: '* * * * *',
      LOG_LEVEL: 'loud',
    }).toSorted(),
    [
      "LOG_LEVEL: expected a pino level, e.g. info, got 'loud'",
      "MAX_PROCESSING: expected integer 1..100000, got 'ten'",
      "PARSER_URL: expected a URL beginning with http:// or https://, got 'parser:9090'",
      "PG_POOL_MAX: expected integer 2..1000, got '1'",
      "PORT: expected integer 0..65535, got '65536'",
      "RETRY_BASE_MS: expected integer 100..31536000000, got '99'",
      "ROLES: expected a list of api, pusher, watcher, got 'api,parser'",
      "WATCH_CRON: expected a cron expression of six fields, seconds first, got '* * * * *'",
    ],
  );
});

test('integers are written in digits only', () => {
  for (const text of ['1e3', '10.5', '0x10', ' 10', '10ms', '+10'])
    assert.deepEqual(problemsOf({ MAX_PROCESSING: text }), [
      `MAX_PROCESSING: expected integer 1..100000, got '${text}'`,
    ]);
});

test('a name that is nearly a setting is a problem; one that is far from all is not', () => {
  assert.deepEqual(problemsOf({ MAX_PROCESING: '5' }), [
    'MAX_PROCESING: there is no such setting; did you mean MAX_PROCESSING?',
  ]);
  assert.deepEqual(problemsOf({ PATH: '/bin', HOME: '/', XDG_DATA_DIRS: '/usr', LC_ALL: 'C', POST: '1' }), []);
});

test('PUBLIC_URL is required as soon as HOST is not loopback', () => {
  assert.match(problemsOf({ HOST: '0.0.0.0' }).join(), /^PUBLIC_URL: required when HOST \(0\.0\.0\.0\)/);
  assert.match(problemsOf({ HOST: '0.0.0.0', PUBLIC_URL: '' }).join(), /^PUBLIC_URL: required/);
  assert.deepEqual(problemsOf({ HOST: '0.0.0.0', PUBLIC_URL: 'https://docs.example' }), []);
  for (const HOST of ['localhost', '127.0.0.2', '::1']) assert.deepEqual(problemsOf({ HOST }), []);
});

test('no problem shows the password of a URL', () => {
  const urls = [
    'mysql://user:secret@host/db',
    'mysql:user:secret@host',
    'mysql://user:x@secret@host',
    'user:secret@host',
  ];
  for (const url of urls) {
    const [problem] = problemsOf({ DATABASE_URL: url });
    assert.ok(problem?.startsWith('DATABASE_URL: expected a URL') && !problem.includes('secret'), url);
  }
});

test('every default is itself a valid value, and every setting says what it means', () => {
  for (const [name, [type, fallback, meaning]] of Object.entries(SETTINGS)) {
    if (fallback !== null) assert.ok(type.safeParse(fallback).success, name);
    assert.ok(meaning.length > 10, name);
  }
});

test('a service with wrong settings lists them and exits 78 before it touches anything', async () => {
  const service = await startService({ env: { MAX_PROCESSING: 'ten', PORT: '-1' }, ready: false });
  assert.equal((await service.exited).code, 78);
  const said = service.lines.join('\n');
  assert.match(said, /MAX_PROCESSING: expected integer/);
  assert.match(said, /PORT: expected integer/);
});
