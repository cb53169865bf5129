/** What is explored: each scope small in most respects, so that it is looked at whole; and the mutants of the protocol. */
import type { Broken, Scope } from './state.ts';

const USUAL: Scope = {
  name: 'one slot',
  limit: 1,
  stores: 1,
  tasks: 'two',
  maxRetries: 0,
  faults: 1,
  receivers: [1],
  watchers: [1],
  submits: 0,
};

export const ONE_SLOT: Scope = { ...USUAL, name: 'one slot, any two faults', faults: 2 };
export const TWO_SLOTS: Scope = { ...USUAL, name: 'two slots', limit: 2 };
export const RETRIES: Scope = { ...USUAL, name: 'retries', maxRetries: 1 };
export const WATCHERS: Scope = { ...USUAL, name: 'two watchers without a lock', receivers: [0, 1], watchers: [0, 1] };
export const STORES: Scope = { ...USUAL, name: 'two stores', stores: 2, receivers: [0, 1], watchers: [0, 1] };
export const VERSIONS: Scope = { ...USUAL, name: 'two versions of a task', tasks: 'versions', submits: 3 };

export const SCOPES = [ONE_SLOT, TWO_SLOTS, RETRIES, WATCHERS, STORES, VERSIONS];

/** Each rule of the protocol, and a scope in which leaving it out is noticed. */
export const MUTANTS: Record<Broken, Scope> = {
  'release before commit': WATCHERS,
  'no attempt guard': RETRIES,
  'no confirm': ONE_SLOT,
  'rebuild overwrites': ONE_SLOT,
  'rebuild reads before the bump': STORES,
  'no version floor': VERSIONS,
  'claim without the higher-version check': VERSIONS,
  'slots expire': TWO_SLOTS,
  'claim without the epoch': STORES,
  'repair drops what was touched since': ONE_SLOT,
  'attempts read before slots': ONE_SLOT,
  'time-out without a second look': ONE_SLOT,
  'a push in doubt is given back': ONE_SLOT,
  'cancel frees the slot': ONE_SLOT,
  'no time-outs': WATCHERS,
  'no reconciliation': WATCHERS,
};
