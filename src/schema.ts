/**
 * Loads schema/queries/*.sql and schema/scripts/*.lua by name, and brings a database to this version's schema.
 * Migrations (schema/migrations, run by node-pg-migrate under its advisory lock) are forward-only, each in a
 * transaction. A database migrated by a newer docsched is used as it is, unless one of the migrations unknown here
 * has `breaking` in its name: then this version refuses to start.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { runner } from 'node-pg-migrate';
import pg from 'pg';

const DIRECTORY = fileURLToPath(new URL('../schema', import.meta.url));
const MIGRATIONS = `${DIRECTORY}/migrations`;
const MIGRATIONS_TABLE = 'docsched_migrations';

/** Text of each file of schema/<folder> ending in `extension`, by its name without the extension. */
function loadFolder(folder: string, extension: string): Record<string, string> {
  const names = readdirSync(`${DIRECTORY}/${folder}`).filter((name) => name.endsWith(extension));
  return Object.fromEntries(
    names.map((name) => [name.slice(0, -extension.length), readFileSync(`${DIRECTORY}/${folder}/${name}`, 'utf8')]),
  );
}

export const loadStatements = (): Record<string, string> => loadFolder('queries', '.sql');
export const loadScripts = (): Record<string, string> => loadFolder('scripts', '.lua');

export class NewerSchemaError extends Error {}

/** Applies what is missing. Throws NewerSchemaError when a newer docsched made a breaking change to this database. */
export async function migrate(databaseUrl: string): Promise<void> {
  await refuseNewerBreaking(databaseUrl);
  await runner({
    databaseUrl,
    dir: MIGRATIONS,
    migrationsTable: MIGRATIONS_TABLE,
    direction: 'up',
    count: Number.POSITIVE_INFINITY,
    checkOrder: false,
    advisoryLockMode: 'wait',
    logger: { debug: () => {}, info: () => {}, warn: () => {}, error: console.error },
  });
}

async function refuseNewerBreaking(databaseUrl: string): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: 5_000 });
  await client.connect().catch((cause) => {
    throw new Error(`the database cannot be reached (DATABASE_URL): ${cause.message || cause.code}`, { cause });
  });
  try {
    const exists = await client.query('SELECT to_regclass($1) AS found', [MIGRATIONS_TABLE]);
    if (exists.rows[0].found === null) return;
    const applied = await client.query<{ name: string }>(`SELECT name FROM ${MIGRATIONS_TABLE}`);
    const known = new Set(readdirSync(MIGRATIONS).map((name) => name.replace(/\.sql$/, '')));
    const breaking = applied.rows
      .map((row) => row.name)
      .filter((name) => !known.has(name) && name.includes('breaking'));
    if (breaking.length > 0)
      throw new NewerSchemaError(
        `the database was migrated by a newer docsched (${breaking.join(', ')}); upgrade this one`,
      );
  } finally {
    await client.end();
  }
}
