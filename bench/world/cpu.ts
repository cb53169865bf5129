/** CPU time and memory of processes, as Linux counts them in /proc. */
import { readdirSync, readFileSync } from 'node:fs';

/** USER_HZ: fixed at 100 by the kernel's interface to user space. */
const TICKS_A_SECOND = 100;

type Stat = { parent: number; ownS: number; endedChildrenS: number };

function statOf(pid: number): Stat | null {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name in parentheses may hold anything; the fields after it are numbers. See proc_pid_stat(5).
    const fields = text
      .slice(text.lastIndexOf(')') + 2)
      .split(' ')
      .map(Number);
    const [, parent, , , , , , , , , , utime, stime, cutime, cstime] = fields as number[] & { length: 50 };
    return {
      parent: parent!,
      ownS: (utime! + stime!) / TICKS_A_SECOND,
      endedChildrenS: (cutime! + cstime!) / TICKS_A_SECOND,
    };
  } catch {
    return null;
  }
}

/** CPU seconds of one process since its start. */
export const cpuOf = (pid: number): number => statOf(pid)?.ownS ?? 0;

/** CPU seconds of a process, its live children and those that have ended: a PostgreSQL server with its backends. */
export function cpuOfFamily(pid: number): number {
  const self = statOf(pid);
  if (!self) return 0;
  const children = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map((name) => statOf(Number(name)))
    .filter((stat) => stat?.parent === pid);
  return self.ownS + self.endedChildrenS + children.reduce((sum, child) => sum + child!.ownS, 0);
}

export const parentOf = (pid: number): number => statOf(pid)?.parent ?? 0;

/** Resident memory in bytes. */
export function residentBytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? 0) * 1024;
}
