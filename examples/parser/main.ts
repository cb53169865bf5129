/**
 * The example parser: takes pushes from docsched, parses documents in threads, calls back. `node examples/parser/main.ts`.
 * SIGTERM or SIGINT stops it gracefully; a second one at once.
 */
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { pino } from 'pino';
import { post } from './post.ts';
import { createRuns } from './runs.ts';
import { createServer } from './server.ts';
import { readSettings, type Settings } from './settings.ts';

/** sysexits.h EX_CONFIG. */
const EXIT_BAD_SETTINGS = 78;
/** Work was cut off. */
const EXIT_FORCED = 1;

async function main(settings: Settings): Promise<void> {
  const log = pino({
    level: settings.logLevel,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
  });
  const runs = createRuns({ slots: settings.slots, limits: settings.limits, post, log });
  const server = createServer({ documentsDir: settings.documentsDir, runs, log }).listen(settings.port, settings.host);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const host = settings.host.includes(':') ? `[${settings.host}]` : settings.host;
  log.info({ event: 'parser_listening', url: `http://${host}:${port}`, slots: settings.slots });

  let isStopping = false;
  async function stop(): Promise<void> {
    if (isStopping) process.exit(EXIT_FORCED);
    isStopping = true;
    log.info({ event: 'parser_stopping', ...runs.stats() });
    const undelivered = await runs.stop();
    server.close();
    server.closeAllConnections();
    log.info({ event: 'parser_stopped', ...runs.stats(), undelivered });
    process.exit(0);
  }
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
}

function settingsOrExit(): Settings {
  try {
    return readSettings(process.env);
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n`);
    process.exit(EXIT_BAD_SETTINGS);
  }
}

await main(settingsOrExit());
