/**
 * Loads schema/queries/*.sql and schema/scripts/*.lua by name, and brings a database to this version's schema.
 * Migrations (schema/migrations, run by node-pg-migrate under its advisory lock) are forward-only, each in a
 * transaction; they hold tables and indexes. After them the functions (schema/functions) are replaced when their text
 * changed, unless those in force are of a higher revision: an old instance that restarts beside new ones leaves theirs.
 * A database migrated by a newer docsched is used as it is, functions too, unless one of the migrations unknown here has
 * `breaking` in its name: then this version refuses to start.
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { runner } from 'node-pg-migrate';
import pg from 'pg';

const DIRECTORY = fileURLToPath(new URL('../schema', import.meta.url));
const MIGRATIONS = `${DIRECTORY}/migrations`;
const MIGRATIONS_TABLE = 'docsched_migrations';
/** Any fixed number: instances that start together replace the functions one after another. */
const FUNCTIONS_LOCK = 7_220_371_845;

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
  const client = new pg.Client({ connectionString: databaseUrl, connectionTimeoutMillis: 5_000 });
  await client.connect().catch((cause) => {
    throw new Error(`the database cannot be reached (DATABASE_URL): ${cause.message || cause.code}`, { cause });
  });
  try {
    const newer = await findNewerMigrations(client);
    const breaking = newer.filter((name) => name.includes('breaking'));
    if (breaking.length > 0)
      throw new NewerSchemaError(
        `the database was migrated by a newer docsched (${breaking.join(', ')}); upgrade this one`,
      );
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
    if (newer.length === 0) await replaceFunctions(client);
  } finally {
    await client.end();
  }
}

/** Migrations applied to the database that this version does not know. */
async function findNewerMigrations(client: pg.Client): Promise<string[]> {
  const exists = await client.query('SELECT to_regclass($1) AS found', [MIGRATIONS_TABLE]);
  if (exists.rows[0].found === null) return [];
  const applied = await client.query<{ name: string }>(`SELECT name FROM ${MIGRATIONS_TABLE}`);
  const known = new Set(readdirSync(MIGRATIONS).map((name) => name.replace(/\.sql$/, '')));
  return applied.rows.map((row) => row.name).filter((name) => !known.has(name));
}

/** What schema/functions holds: its revision (the file REVISION, which a test keeps up to date) and the hash of its texts. */
export function functionsAtHand(): { texts: string[]; revision: number; hash: string } {
  const texts = Object.values(loadFolder('functions', '.sql'));
  const revision = Number.parseInt(readFileSync(`${DIRECTORY}/functions/REVISION`, 'utf8'), 10);
  return { texts, revision, hash: createHash('sha256').update(texts.join('\n')).digest('hex') };
}

/** All in one transaction, so that no caller ever sees functions of two versions. */
async function replaceFunctions(client: pg.Client): Promise<void> {
  const { texts, revision, hash } = functionsAtHand();
  const atHand = `${revision} ${hash}`;
  await client.query('BEGIN');
  await client.query('SELECT pg_advisory_xact_lock($1)', [FUNCTIONS_LOCK]);
  const { rows } = await client.query<{ hash: string }>('SELECT hash FROM docsched_functions');
  const inForce = rows[0]?.hash ?? '';
  if (inForce !== atHand && revisionOf(inForce) <= revision) {
    // They call each other: checked when they run, whatever order they are created in.
    await client.query('SET LOCAL check_function_bodies = off');
    for (const text of texts) await client.query(text);
    await client.query(
      'INSERT INTO docsched_functions (hash) VALUES ($1) ON CONFLICT (only_row) DO UPDATE SET hash = excluded.hash',
      [atHand],
    );
  }
  await client.query('COMMIT');
}

/** 0 when it names none. */
const revisionOf = (inForce: string): number => Number(/^(\d+) /.exec(inForce)?.[1] ?? 0);
