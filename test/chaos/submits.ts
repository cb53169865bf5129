/** What the submitters were promised, put together from their log, and whether versions went backwards. */
import { type Breach, keyText, type Lines, type SubmitLine } from './evidence.ts';

/** An accepted submit: [sent, answered, answered on the wall clock]. */
type Accepted = { sentAt: number; at: number; wall: number; outcome: string };
export type Submitted = {
  /** By queue/task/version. */
  accepted: Map<string, Accepted[]>;
  /** Versions accepted, by queue/task. */
  versions: Map<string, string[]>;
  cancelled: Set<string>;
  stale: number;
  /** Refusals that no submitter expects, by code. */
  refused: Map<string, number>;
};

const ACCEPTED = new Set(['created', 'refreshed', 'recreated', 'existing']);
const STALE = new Set(['stale', 'stale_version']);

export async function gatherSubmits(lines: Lines<SubmitLine>): Promise<Submitted> {
  const submitted: Submitted = {
    accepted: new Map(),
    versions: new Map(),
    cancelled: new Set(),
    stale: 0,
    refused: new Map(),
  };
  for await (const line of lines) {
    const key = keyText(line.q, line.i, line.v);
    if (line.e === 'cancel') submitted.cancelled.add(key);
    else if (ACCEPTED.has(line.o)) accept(submitted, key, line);
    else if (STALE.has(line.o)) submitted.stale += 1;
    else submitted.refused.set(line.o, (submitted.refused.get(line.o) ?? 0) + 1);
  }
  return submitted;
}

function accept({ accepted, versions }: Submitted, key: string, line: SubmitLine & { e: 'submit' }): void {
  const one = { sentAt: line.s, at: line.t, wall: line.w, outcome: line.o };
  const before = accepted.get(key);
  if (before) {
    before.push(one);
    return;
  }
  accepted.set(key, [one]);
  const task = `${line.q}/${line.i}`;
  const known = versions.get(task);
  if (known) known.push(line.v);
  else versions.set(task, [line.v]);
}

/** An older version was sent after the acceptance of a newer one was known, and accepted all the same. */
export function findRegress({ accepted, versions }: Submitted): Breach[] {
  return [...versions].flatMap(([task, known]) => {
    const ordered = known.toSorted((a, b) => Number(BigInt(b) - BigInt(a)));
    let newerAt = Number.POSITIVE_INFINITY;
    const breaches: Breach[] = [];
    for (const version of ordered) {
      const all = accepted.get(`${task}/${version}`)!;
      const late = all.find(({ sentAt }) => sentAt > newerAt);
      if (late)
        breaches.push({ rule: 'version regress', what: `${task}/${version} was ${late.outcome} after a newer one` });
      newerAt = Math.min(newerAt, ...all.map(({ at }) => at));
    }
    return breaches;
  });
}

/**
 * A claim judges by its snapshot, and may then wait for locks (2 s at most) before it notes its time; so only what was
 * accepted longer ago counts as seen by it.
 */
const CLAIM_MAY_WAIT_MS = 3_000;

/** An older version was claimed while a newer one had been waiting for long. `claims`: times by queue/task/version. */
export function findOvertaken(
  { accepted, versions, cancelled }: Submitted,
  claims: ReadonlyMap<string, readonly number[]>,
): Breach[] {
  return [...versions].flatMap(([task, known]) =>
    known.flatMap((newer): Breach[] => {
      const key = `${task}/${newer}`;
      const [only, ...more] = accepted.get(key)!;
      if (known.length === 1 || more.length > 0 || only!.outcome !== 'created' || cancelled.has(key)) return [];
      const claimedAt = Math.min(...(claims.get(key) ?? []));
      if (!Number.isFinite(claimedAt)) return [];
      return known
        .filter((older) => BigInt(older) < BigInt(newer))
        .filter((older) =>
          (claims.get(`${task}/${older}`) ?? []).some((at) => at > only!.wall + CLAIM_MAY_WAIT_MS && at < claimedAt),
        )
        .map((older) => ({ rule: 'older claimed first', what: `${task}/${older} while version ${newer} waited` }));
    }),
  );
}
