"""Every registered policy passes every law, on contexts of many kinds."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as RunPhase
from hypothesis import strategies as st

from hybridrl.scheduling import POLICIES
from hybridrl.testing import strategies
from hybridrl.testing.policy_conformance import LAWS

# Shrinking a context of 36 fields costs minutes and tells little more.
_SETTINGS = settings(
  max_examples=3,
  deadline=None,
  phases=(RunPhase.explicit, RunPhase.generate),
  suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("law", sorted(LAWS))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policy_obeys_law(name, law):
  @_SETTINGS
  @given(st.data())
  def check(data):
    fleet = data.draw(strategies.fleets())
    contexts = data.draw(
      st.lists(strategies.contexts(fleet=fleet), min_size=6, max_size=12)
    )
    LAWS[law](POLICIES[name], fleet, contexts)

  check()
