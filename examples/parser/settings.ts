/**
 * The parser's settings, read once from the environment. All problems are reported together.
 * README.md lists them with their meaning.
 */
import { realpathSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';

const integer = (fallback: number, min: number, max: number) =>
  z.coerce.number().int().min(min).max(max).default(fallback);

/** The folder itself, behind any symbolic links, so that locate.ts can compare paths. */
function toRealFolder(path: string, context: z.RefinementCtx): string {
  try {
    return realpathSync(path);
  } catch {
    context.addIssue({ code: 'custom', message: `there is no folder ${path}` });
    return z.NEVER;
  }
}

const SETTINGS = z.object({
  HOST: z.string().min(1).default('127.0.0.1'),
  PORT: integer(9090, 0, 65_535),
  DOCUMENTS_DIR: z
    .string()
    .default(fileURLToPath(new URL('../documents', import.meta.url)))
    .transform(toRealFolder),
  PARSER_SLOTS: integer(4, 1, 1_000),
  PARSE_TIMEOUT_MS: integer(60_000, 100, 86_400_000),
  PARSE_MEMORY_MB: integer(256, 16, 65_536),
  RESULT_MAX_BYTES: integer(8_388_608, 1, 1_073_741_824),
  PAGE_DELAY_MS: integer(0, 0, 60_000),
  LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']).default('info'),
});

export type Settings = {
  host: string;
  /** 0 takes any free port. */
  port: number;
  /** Payloads of the form `{file}` are resolved in here and nowhere else. */
  documentsDir: string;
  /** Parses that run at the same time; one more push is answered 429. */
  slots: number;
  logLevel: string;
  limits: Limits;
};

/** What one parse may use. */
export type Limits = {
  /** After this long the thread is ended, whatever it is doing. */
  timeoutMs: number;
  /** JavaScript heap of the thread. */
  memoryMb: number;
  /** Size of the result as JSON; above it the run is reported as failed. */
  resultMaxBytes: number;
  /** Pause after each page or section, so that progress can be watched in a demo. */
  pageDelayMs: number;
};

/** Throws one Error whose message has a line for each bad setting. An empty value counts as absent. */
export function readSettings(env: Record<string, string | undefined>): Settings {
  const present = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== undefined && value !== ''));
  const parsed = SETTINGS.safeParse(present);
  if (!parsed.success) {
    throw new Error(parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`).join('\n'));
  }
  const value = parsed.data;
  return {
    host: value.HOST,
    port: value.PORT,
    documentsDir: value.DOCUMENTS_DIR,
    slots: value.PARSER_SLOTS,
    logLevel: value.LOG_LEVEL,
    limits: {
      timeoutMs: value.PARSE_TIMEOUT_MS,
      memoryMb: value.PARSE_MEMORY_MB,
      resultMaxBytes: value.RESULT_MAX_BYTES,
      pageDelayMs: value.PAGE_DELAY_MS,
    },
  };
}
