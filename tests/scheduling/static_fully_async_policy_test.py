import pytest

from hybridrl.scheduling import (
  Fleet,
  Phase,
  Reason,
  constrain,
  make_context,
  never,
  static_fully_async,
)


def _fleet(standalone):
  return Fleet(
    num_standalone=standalone,
    num_hybrid=2,
    required_samples=16,
    trigger_parameter_sync_step=4,
    staleness_threshold=0.5,
    max_required_samples=96,
  )


@pytest.mark.parametrize("factory", [static_fully_async, never])
@pytest.mark.parametrize("phase", [p for p in Phase if p != Phase.CYCLE_END])
@pytest.mark.parametrize("active", [0, 2])
def test_lends_nothing_and_waits_for_nothing(factory, phase, active):
  fleet, policy = _fleet(1), factory()
  context = make_context(phase=phase, fleet=fleet, hybrid_active=active)
  raw, _ = policy.decide(context, policy.init(fleet))
  assert int(raw.lend) == 0
  assert int(raw.wait_samples) == 0
  assert int(constrain(context, raw).lend) == 0


@pytest.mark.parametrize("factory", [static_fully_async, never])
def test_s3_an_only_hybrid_fleet_is_lent_until_the_cycle_is_there(factory):
  fleet, policy = _fleet(0), factory()
  for backlog, lend in ((0, 2), (63, 2), (64, 0)):
    context = make_context(
      phase=Phase.STEP_START,
      fleet=fleet,
      hybrid_active=2,
      backlog_samples=backlog,
    )
    raw, _ = policy.decide(context, policy.init(fleet))
    decision = constrain(context, raw)
    assert int(decision.lend) == lend
    if lend:
      assert int(decision.wait_samples) == 64
      assert int(decision.reason) == Reason.LIMIT_NO_STANDALONE
