import assert from 'node:assert/strict';
import { afterEach, beforeEach, mock, test } from 'node:test';
import { type Connection, createHalfOpenGuard, type HalfOpenGuard } from '../../src/half-open.ts';
import { createLog } from '../../src/log.ts';

/** Longer than it is waited for an answer before PostgreSQL is asked; and the same for suspects. */
const LONG_MS = 3_500;
const SUSPECT_MS = 1_500;

let now = 0;
let asked: number[][] = [];
let broken: number[] = [];
let working: number[] = [];
let ask: (pids: number[]) => Promise<number[]>;
let guard: HalfOpenGuard;

beforeEach(() => {
  now = 1_000_000;
  asked = [];
  broken = [];
  working = [];
  ask = async () => working;
  mock.method(performance, 'now', () => now);
  guard = createHalfOpenGuard({
    findWorking: (pids) => {
      asked.push(pids);
      return ask(pids);
    },
    log: createLog('silent'),
  });
});
afterEach(() => mock.restoreAll());

function open(pid: number): Connection & { bytes: number } {
  const connection = { pid, bytes: 0, moved: () => connection.bytes, breakOff: () => void broken.push(pid) };
  guard.opened(connection);
  return connection;
}

async function lookAfter(ms: number): Promise<void> {
  now += ms;
  await guard.runOnce();
}

test('nobody is asked about connections that are idle, or answer soon', async () => {
  open(1);
  guard.used(open(2));
  await lookAfter(1_000);
  const answered = open(3);
  guard.used(answered);
  guard.freed(answered);
  await lookAfter(1_000);
  assert.deepEqual([asked, broken], [[], []]);
});

test('a statement that PostgreSQL still works on may take any time', async () => {
  guard.used(open(1));
  working = [1];
  for (let i = 0; i < 10; i++) await lookAfter(LONG_MS);
  assert.deepEqual([asked.length, broken], [10, []]);
});

test('a connection that PostgreSQL does not work for is broken off, and the idle ones as old with it', async () => {
  guard.used(open(1));
  open(2);
  guard.used(open(3));
  working = [3];
  await lookAfter(LONG_MS);
  assert.deepEqual([asked, broken], [[[1, 3]], [1, 2]]);
});

test('after one was found, those as old that are in use are asked about sooner, new ones are not', async () => {
  guard.used(open(1));
  now += LONG_MS - 500;
  const old = open(2);
  guard.used(old);
  await lookAfter(500);
  assert.deepEqual(broken, [1]);
  guard.used(old);
  now += 1;
  guard.used(open(3));
  await lookAfter(SUSPECT_MS);
  assert.deepEqual([asked.at(-1), broken], [[2], [1, 2]]);
});

test('while bytes move, a slow connection is alive', async () => {
  const slow = open(1);
  guard.used(slow);
  for (let i = 0; i < 10; i++) {
    slow.bytes += 1;
    await lookAfter(LONG_MS);
  }
  assert.deepEqual([asked, broken], [[], []]);
});

test('a connection that is answered while PostgreSQL is asked is left alone', async () => {
  const [first, second] = [open(1), open(2)];
  guard.used(first);
  guard.used(second);
  ask = async () => {
    guard.freed(first);
    guard.freed(second);
    guard.used(second);
    return [];
  };
  await lookAfter(LONG_MS);
  assert.deepEqual(broken, []);
});

test('while PostgreSQL cannot be asked nothing is broken off', async () => {
  guard.used(open(1));
  ask = () => Promise.reject(new Error('away'));
  await lookAfter(LONG_MS);
  assert.deepEqual([asked.length, broken], [1, []]);
  ask = async () => [];
  await lookAfter(500);
  assert.deepEqual(broken, [1]);
});
