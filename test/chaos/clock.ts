/**
 * Loaded into an instance with `--import`: its wall clock runs ahead of the machine's by what CHAOS_CLOCK_FILE says
 * (ms), read anew at SIGUSR2. The monotonic clock is left alone, as by any step of a real clock.
 */
import { readFileSync } from 'node:fs';

const file = process.env.CHAOS_CLOCK_FILE!;
const machineNow = Date.now;
let aheadMs = 0;

process.on('SIGUSR2', () => {
  aheadMs = Number(readFileSync(file, 'utf8'));
});

globalThis.Date = new Proxy(Date, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [machineNow() + aheadMs] : args, newTarget),
  apply: () => new Date().toString(),
});
Date.now = () => machineNow() + aheadMs;
