/** Functions that change get a new revision: by it an instance knows whether those of the database are newer than its own. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { functionsAtHand } from '../../src/schema.ts';

test('schema/functions/REVISION is of the functions as they are', () => {
  const [revision, hash] = readFileSync(new URL('../../schema/functions/REVISION', import.meta.url), 'utf8')
    .trim()
    .split(' ');
  const now = functionsAtHand();
  const line = `${Number(revision) + 1} ${now.hash}`;
  assert.equal(hash, now.hash, `the functions changed: write into schema/functions/REVISION\n${line}\n`);
});
