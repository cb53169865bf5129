/**
 * Finds database connections on which no answer will ever come: half-open ones, whose other end is gone, or behind a
 * network that swallows what is sent, without this end being told. A statement may take long, so time alone says
 * nothing: PostgreSQL itself is asked, over a new connection, whether it still works for this one. What it does not work
 * for is broken off: the statement fails with an unknown outcome, as when a connection breaks by itself.
 *
 * Connections come to be half-open together. So after one was found, the idle ones as old as it are closed, and those
 * in use are asked about sooner.
 */
import type { Log } from './log.ts';

export type Connection = {
  /** The server's process. */
  pid: number;
  /** Bytes sent and received so far: while this grows, the other end is there. */
  moved(): number;
  breakOff(): void;
};

export type HalfOpenDeps = {
  /** Of these server processes, those at work for their clients. Rejects when PostgreSQL cannot be asked. */
  findWorking: (pids: number[]) => Promise<number[]>;
  log: Log;
};

export type HalfOpenGuard = {
  opened(connection: Connection): void;
  /** A statement goes out over it. */
  used(connection: Connection): void;
  /** It was answered. */
  freed(connection: Connection): void;
  closed(connection: Connection): void;
  /** One look at those that wait for an answer. */
  runOnce(): Promise<void>;
  start(): void;
  stop(): void;
};

const LOOK_EVERY_MS = 500;
/** When nothing moved for this long, PostgreSQL is asked. Nearly all statements take a hundredth of it. */
const PATIENCE_MS = 3_000;
/** The same for connections as old as one that was found half-open. */
const SUSPECT_PATIENCE_MS = 1_000;

/** quietSince: since when nothing moved, while an answer is awaited. */
type State = { openedAt: number; quietSince: number | null; moved: number };

export function createHalfOpenGuard({ findWorking, log }: HalfOpenDeps): HalfOpenGuard {
  const connections = new Map<Connection, State>();
  /** Connections opened before this are suspects. */
  let foundAt = Number.NEGATIVE_INFINITY;
  let looking = false;
  let timer: NodeJS.Timeout | undefined;

  return {
    opened: (connection) => {
      connections.set(connection, { openedAt: performance.now(), quietSince: null, moved: 0 });
    },
    used: (connection) => note(connection, performance.now()),
    freed: (connection) => note(connection, null),
    closed: (connection) => {
      connections.delete(connection);
    },
    runOnce,
    start() {
      timer = setInterval(runOnce, LOOK_EVERY_MS).unref();
    },
    stop: () => clearInterval(timer),
  };

  function note(connection: Connection, quietSince: number | null): void {
    const state = connections.get(connection);
    if (state) state.quietSince = quietSince;
  }

  async function runOnce(): Promise<void> {
    if (looking) return;
    const quiet = findQuiet();
    if (quiet.size === 0) return;
    looking = true;
    try {
      const working = new Set(await findWorking([...quiet.keys()].map(({ pid }) => pid)));
      // What was answered meanwhile is alive, whatever PostgreSQL said.
      const still = findQuiet();
      breakOff([...quiet].filter(([one, since]) => !working.has(one.pid) && still.get(one) === since));
    } catch (error) {
      // Away for new connections too, or full: the statements' own time-outs decide.
      log.debug({ event: 'db_quiet_connections_unknown', error: (error as Error).message });
    } finally {
      looking = false;
    }
  }

  /** Connections on which nothing moved for too long, and since when. */
  function findQuiet(): Map<Connection, number> {
    const now = performance.now();
    const quiet = new Map<Connection, number>();
    for (const [connection, state] of connections) {
      if (state.quietSince === null) continue;
      const moved = connection.moved();
      if (moved !== state.moved) Object.assign(state, { moved, quietSince: now });
      const patience = state.openedAt < foundAt ? SUSPECT_PATIENCE_MS : PATIENCE_MS;
      if (now - state.quietSince >= patience) quiet.set(connection, state.quietSince);
    }
    return quiet;
  }

  function breakOff(dead: [Connection, number][]): void {
    if (dead.length === 0) return;
    foundAt = performance.now();
    const idle = [...connections].filter(([, { quietSince }]) => quietSince === null);
    log.warn({ event: 'db_connections_half_open', found: dead.length, idle_closed: idle.length });
    for (const [connection] of [...dead, ...idle]) {
      connections.delete(connection);
      connection.breakOff();
    }
  }
}
