/** The model of the push protocol, looked at whole; and the same with each of its rules left out. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { explore } from './explore.ts';
import { MUTANTS, SCOPES } from './scopes.ts';
import type { Broken } from './state.ts';
import { show } from './steps.ts';

/** Fewer states than this, and the model no longer looks at what it should. */
const FEWEST_STATES = 500_000;
const FEWEST_IN_A_SCOPE = 10_000;

test('in every state that two instances, crashes, lost answers and lost stores can reach, the invariants hold and what was begun ends', (t) => {
  let states = 0;
  for (const scope of SCOPES) {
    const explored = explore(scope);
    states += explored.states;
    t.diagnostic(
      `${scope.name}: ${explored.states} states, ${explored.edges} steps, ended within ${explored.longestEnd}`,
    );
    assert.equal(explored.breach && `${explored.breach.what}: ${explored.breach.trace.map(show).join('; ')}`, null);
    assert.ok(explored.states > FEWEST_IN_A_SCOPE, `${scope.name}: only ${explored.states} states`);
  }
  assert.ok(states > FEWEST_STATES, `only ${states} states`);
});

describe('without one of its rules the protocol breaks an invariant:', () => {
  for (const [broken, scope] of Object.entries(MUTANTS))
    test(broken, (t) => {
      const { breach, states } = explore({ ...scope, broken: broken as Broken });
      assert.ok(breach, `not noticed in ${states} states`);
      t.diagnostic(breach.what);
      for (const [i, step] of breach.trace.entries()) t.diagnostic(`  ${i + 1}. ${show(step)}`);
    });
});
