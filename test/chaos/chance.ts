/** Chance that can be repeated: everything drawn follows from the seed and from what it is drawn for. */

/** A number in [0, 1) that depends on nothing but `parts`. */
export function draw(...parts: readonly (string | number)[]): number {
  // FNV-1a over the text, then murmur3's finaliser, so that neighbouring keys are far apart.
  let hash = 0x811c9dc5;
  const text = parts.join('|');
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) / 2 ** 32;
}

export type Chance = {
  next(): number;
  /** An integer in min .. max. */
  between(min: number, max: number): number;
  pick<T>(items: readonly T[]): T;
  shuffle<T>(items: readonly T[]): T[];
};

/** A sequence of its own for each name. */
export function createChance(seed: number, name: string): Chance {
  let turn = 0;
  const next = () => draw(seed, name, ++turn);
  const between = (min: number, max: number) => min + Math.floor(next() * (max - min + 1));
  return {
    next,
    between,
    pick: (items) => items[between(0, items.length - 1)]!,
    shuffle: (items) =>
      items
        .map((item) => ({ item, at: next() }))
        .toSorted((a, b) => a.at - b.at)
        .map(({ item }) => item),
  };
}

/** One of the keys, by weight. */
export function weighed<Name extends string>(weights: Partial<Record<Name, number>>, at: number): Name {
  const entries = Object.entries(weights) as [Name, number][];
  let left = at * entries.reduce((sum, [, weight]) => sum + weight, 0);
  for (const [name, weight] of entries) {
    left -= weight;
    if (left < 0) return name;
  }
  return entries.at(-1)![0];
}
