/** How many requests, and how large ones, are let in at once. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import type { Request, Response } from 'express';
import { type Admission, createAdmission } from '../../src/admission.ts';
import { AppError } from '../../src/errors.ts';

const sized = (bytes: number) => requestWith({ 'content-length': String(bytes) });
const requestWith = (headers: Record<string, string>) =>
  Object.assign(new EventEmitter(), { get: (name: string) => headers[name] }) as unknown as Request & EventEmitter;

/** Ends it; null when it was refused. */
function enter(admission: Admission, req: Request): (() => void) | null {
  const res = new EventEmitter();
  try {
    admission.admit(req, res as Response);
    return () => void res.emit('close');
  } catch (error) {
    assert.ok(error instanceof AppError && error.code === 'overloaded' && error.extras.retryAfterS === 1);
    return null;
  }
}

test('beyond so many requests the next is refused, until one is answered', () => {
  const admission = createAdmission({ maxBytes: 1_000_000, maxRequests: 2 });
  const [first] = [enter(admission, sized(1)), enter(admission, sized(1))];
  assert.equal(enter(admission, sized(1)), null);
  first!();
  assert.ok(enter(admission, sized(1)));
  assert.equal(enter(admission, sized(1)), null);
});

test('beyond so many bytes too; a large body is not kept out by small ones', () => {
  const admission = createAdmission({ maxBytes: 1_000, maxRequests: 100 });
  const small = enter(admission, sized(999));
  const large = enter(admission, sized(5_000));
  assert.equal(enter(admission, sized(1)), null);
  small!();
  assert.equal(enter(admission, sized(1)), null);
  large!();
  assert.ok(enter(admission, sized(1)));
});

test('a body in chunks counts as it arrives', () => {
  const admission = createAdmission({ maxBytes: 1_000, maxRequests: 100 });
  const chunked = requestWith({});
  const end = enter(admission, chunked);
  chunked.emit('data', Buffer.alloc(600));
  enter(admission, sized(10))!();
  chunked.emit('data', Buffer.alloc(600));
  assert.equal(enter(admission, sized(1)), null);
  end!();
  assert.ok(enter(admission, sized(1)));
});

test('a compressed body counts as what was read of it', () => {
  const admission = createAdmission({ maxBytes: 1_000, maxRequests: 100 });
  const res = new EventEmitter();
  const read = admission.admit(sized(10), res as Response);
  enter(admission, sized(1))!();
  read(1_000);
  assert.equal(enter(admission, sized(1)), null);
  res.emit('close');
  assert.ok(enter(admission, sized(1)));
});
