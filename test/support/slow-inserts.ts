/** A PostgreSQL that takes submits slowly: each statement that stores tasks takes this much longer. Nothing else does. */
import type pg from 'pg';

export async function slowInserts(sql: pg.Pool, ms: number): Promise<void> {
  await sql.query(`
    CREATE FUNCTION test_slow_insert() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_sleep(${ms / 1_000}); RETURN NULL; END $$;
    CREATE TRIGGER test_slow_insert BEFORE INSERT ON task_scheduler_tasks
      FOR EACH STATEMENT EXECUTE FUNCTION test_slow_insert()`);
}

/** The value that this share of the values does not exceed. */
export const quantile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? Number.NaN;
