/**
 * Standard Webhooks signatures (standardwebhooks.com): pushes are signed with them, and callbacks where a queue asks for
 * it. HMAC-SHA256 over `<id>.<timestamp>.<body>`; the timestamp may be five minutes off.
 */
import { Webhook, WebhookVerificationError } from 'standardwebhooks';

export type SignatureHeaders = { 'webhook-id': string; 'webhook-timestamp': string; 'webhook-signature': string };

const signers = new Map<string, Webhook>();
/** More secrets than an installation has at a time: an old one is dropped, and made again should it return. */
const MAX_SIGNERS = 1_000;

/** One signature a secret (`whsec_<base64>`), so that a receiver that knows either of two keys accepts it. */
export function sign(secrets: readonly string[], id: string, timestampMs: number, body: string): SignatureHeaders {
  const timestamp = new Date(timestampMs);
  return {
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(timestampMs / 1000)),
    'webhook-signature': secrets.map((secret) => signerOf(secret).sign(id, timestamp, body)).join(' '),
  };
}

/** Whether `body` was signed with any of the secrets. Header values are undefined when they were not sent. */
export function verify(
  secrets: readonly string[],
  headers: { id: string | undefined; timestamp: string | undefined; signature: string | undefined },
  body: Uint8Array,
): boolean {
  const { id, timestamp, signature } = headers;
  if (!id || !timestamp || !signature) return false;
  const given = { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature };
  const text = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  return secrets.some((secret) => isSignedBy(signerOf(secret), text, given));
}

function isSignedBy(signer: Webhook, body: Buffer, headers: SignatureHeaders): boolean {
  try {
    signer.verify(body, headers, { jsonParse: false });
    return true;
  } catch (error) {
    if (error instanceof WebhookVerificationError) return false;
    throw error;
  }
}

function signerOf(secret: string): Webhook {
  const known = signers.get(secret);
  if (known) return known;
  if (signers.size >= MAX_SIGNERS) signers.delete(signers.keys().next().value!);
  const signer = new Webhook(secret);
  signers.set(secret, signer);
  return signer;
}
