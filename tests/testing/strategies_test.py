from hypothesis import find, given, settings
from hypothesis import strategies as st

from hybridrl.accounting import max_required_samples
from hybridrl.scheduling import Phase
from hybridrl.testing import strategies


@settings(max_examples=50, deadline=None)
@given(strategies.fleets(), strategies.fleets(only_hybrid=True))
def test_every_fleet_can_generate(fleet, only_hybrid):
  assert fleet.num_standalone + fleet.num_hybrid >= 1
  assert fleet.max_required_samples >= fleet.step_required_samples
  assert only_hybrid.num_standalone == 0
  assert only_hybrid.num_hybrid >= 1


@settings(max_examples=30, deadline=None)
@given(strategies.staleness_texts(), st.integers(1, 100))
def test_texts_are_decimals(text, samples):
  assert samples <= max_required_samples(samples, text) <= 3 * samples


@settings(max_examples=30, deadline=None)
@given(strategies.contexts(phase=Phase.EVENT))
def test_a_given_phase_is_kept(context):
  assert context.phase == Phase.EVENT


def test_contexts_reach_the_corners():
  quiet = settings(database=None, max_examples=2000, deadline=None)
  for condition in (
    lambda c: c.arrivable_samples == c.backlog_samples,
    lambda c: c.healthy_standalone == 0 and c.healthy_hybrid > 0,
    lambda c: 0 < c.remaining_samples < c.step_required_samples,
    lambda c: c.hybrid_active > 0,
  ):
    find(strategies.contexts(), condition, settings=quiet)


def test_ledger_actions_cover_every_event():
  seen = set()

  @settings(max_examples=200, deadline=None)
  @given(strategies.ledger_actions(2))
  def collect(action):
    assert action.sample_id in (0, 1)
    seen.add(action.name)

  collect()
  assert {"offer", "take", "trained", "drop", "restore"} <= seen
