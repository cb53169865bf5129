/** Signatures against the vector of the Standard Webhooks specification, and what must not pass. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { sign, verify } from '../../src/signature.ts';

const OLD = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
const NEW = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;
const BODY = '{"test": 2432232314}';

const headersOf = (signed: ReturnType<typeof sign>) => ({
  id: signed['webhook-id'],
  timestamp: signed['webhook-timestamp'],
  signature: signed['webhook-signature'],
});

test("the specification's own example gives the signature it names", () => {
  assert.deepEqual(sign([OLD], 'msg_p5jXN8AQM9LWM0D4loKWxJek', 1_614_265_330_000, BODY), {
    'webhook-id': 'msg_p5jXN8AQM9LWM0D4loKWxJek',
    'webhook-timestamp': '1614265330',
    'webhook-signature': 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
  });
});

test('a push signed with both keys is accepted by whoever knows either', () => {
  const signed = sign([NEW, OLD], 'attempt', Date.now(), BODY);
  for (const secret of [NEW, OLD]) assert.deepEqual(new Webhook(secret).verify(BODY, signed), JSON.parse(BODY));
});

test('a callback is accepted when any of the secrets signed these very bytes, lately', () => {
  const body = Buffer.from(BODY);
  const signed = headersOf(sign([OLD], 'id', Date.now(), BODY));
  assert.equal(verify([NEW, OLD], signed, body), true);
  assert.equal(verify([NEW], signed, body), false, 'another key');
  assert.equal(verify([], signed, body), false, 'no key');
  assert.equal(verify([OLD], signed, Buffer.from(`${BODY} `)), false, 'another body');
  assert.equal(verify([OLD], { ...signed, id: 'other' }, body), false, 'another id');
  assert.equal(verify([OLD], headersOf(sign([OLD], 'id', Date.now() - 301_000, BODY)), body), false, 'too old');
  assert.equal(verify([OLD], headersOf(sign([OLD], 'id', Date.now() + 302_000, BODY)), body), false, 'too new');
});

test('headers that are absent or nonsense are refused, never an error', () => {
  const signed = headersOf(sign([OLD], 'id', Date.now(), BODY));
  for (const broken of [
    { id: undefined },
    { timestamp: undefined },
    { signature: undefined },
    { timestamp: 'yesterday' },
    { signature: 'v1' },
    { signature: 'v1,' },
    { signature: signed.signature.replace('v1,', 'v2,') },
    { signature: ' '.repeat(1000) },
  ])
    assert.equal(verify([OLD], { ...signed, ...broken }, Buffer.from(BODY)), false, JSON.stringify(broken));
});
