"""Every registered policy passes every law, on contexts of many kinds."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as RunPhase
from hypothesis import strategies as st

from hybridrl.scheduling import POLICIES, Phase
from hybridrl.testing import strategies
from hybridrl.testing.policy_conformance import LAWS


@pytest.mark.parametrize("law", sorted(LAWS))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policy_obeys_law(name, law):
  # Shrinking contexts of 36 fields costs minutes and tells little more. Each
  # example compiles anew; many contexts in few examples are cheaper.
  @settings(
    max_examples=1 if law == "only_hybrid_makes_progress" else 2,
    deadline=None,
    phases=(RunPhase.explicit, RunPhase.generate),
    suppress_health_check=list(HealthCheck),
  )
  @given(st.data())
  def check(data):
    fleet = data.draw(strategies.fleets())
    contexts = [
      data.draw(strategies.contexts(fleet=fleet, phase=phase))
      for _ in range(4)
      for phase in Phase
    ]
    LAWS[law](POLICIES[name], fleet, contexts)

  check()
