/** A task submitted inside a transaction of the submitter's own is pushed once that is committed. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import pg from 'pg';
import { eventually } from '../support/eventually.ts';
import { ended, get, install, LIMITERS } from '../support/installation.ts';

/** Far below the safety net's interval, far above what the wake-up takes. */
const SOON_MS = 10_000;

for (const limiter of LIMITERS)
  test(`docsched_enqueue: pushed after the commit, without waiting for the periodic trigger (${limiter} limiter)`, async (t) => {
    const place = await install(t, { limiter, env: { TRIGGER_INTERVAL_MS: '60000' } });
    place.parser.autoCallback();
    const instance = await place.start();
    // The first round after the start is over.
    await eventually(async () => (await get(instance, '/readyz')).body.status === 'ready');
    const client = new pg.Client({ connectionString: place.database.url });
    await client.connect();
    await client.query('BEGIN');
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    await client.query(
      `SELECT docsched_enqueue('default', 4711, 2, '{"n":12345678901234567890,"s":"\\u0000"}', traceparent => $1)`,
      [traceparent],
    );
    assert.equal((await get(instance, '/v1/tasks/4711')).body.code, 'unknown_task');
    await client.query('COMMIT');
    await client.end();
    const committed = performance.now();
    assert.equal((await ended(instance, 4711, 2)).status, 'Success');
    assert.ok(performance.now() - committed < SOON_MS, `${performance.now() - committed} ms`);
    const [push] = place.parser.pushes;
    assert.ok(push?.raw.includes('"payload":{"n":12345678901234567890,"s":"\\u0000"}'));
    assert.equal(String(push?.headers.traceparent).slice(0, 35), traceparent.slice(0, 35));
  });
