/** Pushes of a queue with secrets are signed as Standard Webhooks asks; a parser checks them with that library. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { accept, finish, type Push, reply, results } from '../support/answers.ts';
import { ended, install, setQueue, submit } from '../support/installation.ts';

const newSecret = () => `whsec_${randomBytes(32).toString('base64')}`;

/** As a parser does it: over the bytes it read, with the one key it knows. */
function isSigned({ raw, headers }: Push, secret: string): boolean {
  try {
    new Webhook(secret).verify(raw, headers as Record<string, string>);
    return true;
  } catch {
    return false;
  }
}

test('pushes are signed with each of the secrets of their queue', async (t) => {
  const place = await install(t, { limiter: 'postgres', env: { RETRY_BASE_MS: '100' } });
  const service = await place.start();
  const { parser } = place;
  const [older, newer, other] = [newSecret(), newSecret(), newSecret()];
  const set = (secrets: string[], batch = 1) =>
    setQueue(service, 'default', { targets: [{ url: parser.url, batch }], secrets });
  /** Submits a task and answers its first push. */
  const pushOf = async (task_id: number, payload: unknown = null): Promise<Push> => {
    const from = parser.pushes.length;
    await submit(service, { task_id, payload });
    return (await parser.waitForPushes(from + 1))[from]!;
  };
  parser.answerWith(accept);

  await t.test('by one key, over the bytes of the body', async () => {
    await set([older]);
    const push = await pushOf(1, { name: 'späße 𝄞 \u0000 " \\ \u2028' });
    assert.equal(push.headers['webhook-id'], push.body.attempt_id);
    assert.ok(Math.abs(Number(push.headers['webhook-timestamp']) * 1000 - Date.now()) < 10_000);
    assert.ok(isSigned(push, older));
    assert.ok(!isSigned(push, other));
    assert.ok(!isSigned({ ...push, raw: push.raw.replace('"1"', '"2"') }, older));
    assert.ok(!isSigned({ ...push, headers: { ...push.headers, 'webhook-id': 'another' } }, older));
  });

  await t.test('by both keys while they are rotated, then by the newer alone', async () => {
    await set([newer, older]);
    const during = await pushOf(2);
    assert.ok(isSigned(during, newer) && isSigned(during, older) && !isSigned(during, other));
    await set([newer]);
    const after = await pushOf(3);
    assert.ok(isSigned(after, newer) && !isSigned(after, older));
  });

  await t.test('each try anew', async () => {
    parser.answerWith((...asked) => (asked[0][0]!.body.attempt === 1 ? reply(500) : finish())(...asked));
    const from = parser.pushes.length;
    await submit(service, { task_id: 4 });
    assert.equal((await ended(service, 4)).status, 'Success');
    const tries = parser.pushes.slice(from);
    assert.equal(new Set(tries.map(({ headers }) => headers['webhook-id'])).size, 2);
    for (const one of tries) assert.ok(isSigned(one, newer));
  });

  await t.test('a batch as a whole', async () => {
    await set([newer, older], 5);
    parser.answerWith(results(() => ({ http_status: 202 })));
    const push = await pushOf(5);
    assert.match(push.raw, /^\{"tasks":\[/);
    assert.equal(push.headers['webhook-id'], push.headers['idempotency-key']);
    assert.notEqual(push.headers['webhook-id'], push.body.attempt_id);
    assert.ok(isSigned(push, newer) && isSigned(push, older) && !isSigned(push, other));
  });

  await t.test('not at all where there is none', async () => {
    await set([]);
    const { headers } = await pushOf(6);
    assert.deepEqual(
      Object.keys(headers).filter((name) => name.startsWith('webhook-')),
      [],
    );
  });

  await t.test('and no secret is logged', () => {
    const lines = service.lines.join('\n');
    for (const secret of [older, newer]) assert.ok(!lines.includes(secret.slice('whsec_'.length)));
  });
});
