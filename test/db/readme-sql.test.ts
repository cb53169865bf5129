/** The README's SQL, run as it stands. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { createWorld, type World } from '../support/world.ts';

let world: World;
before(async () => {
  world = await createWorld('readme_sql');
});
after(() => world.end());

test("the README's transaction stores its task with its data, and its GRANT is what it says", async () => {
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8');
  const [, block = ''] = /```sql\n([\s\S]*?)```/.exec(readme)!;
  await world.sql.query('CREATE TABLE documents (id bigint PRIMARY KEY, version bigint)');
  await world.sql.query('INSERT INTO documents VALUES (4720, 7)');
  await world.sql.query(block);
  assert.equal((await world.task({ taskId: 4720, taskVersion: 8 })).priority, 1);
  const [grant = ''] = /GRANT EXECUTE [^`]*/.exec(readme)!;
  await world.sql.query('CREATE ROLE readme_role');
  await world.sql.query(grant.replace('your_role', 'readme_role'));
  await world.sql.query('DROP OWNED BY readme_role');
  await world.sql.query('DROP ROLE readme_role');
});
