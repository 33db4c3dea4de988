import pytest

from hybridrl.scheduling import (
  Fleet,
  Phase,
  Reason,
  fixed_ratio,
  make_context,
)

_FLEET = Fleet(
  num_standalone=1,
  num_hybrid=3,
  required_samples=16,
  trigger_parameter_sync_step=4,
  staleness_threshold=0.5,
  max_required_samples=96,
)


@pytest.mark.parametrize("backlog, lends", [(0, True), (31, True), (32, False)])
def test_lends_on_the_gap_alone(backlog, lends):
  policy = fixed_ratio(0.5)
  context = make_context(
    phase=Phase.SYNC_END,
    fleet=_FLEET,
    backlog_samples=backlog,
    # A tiny benefit against a huge cost: there is no cost gate.
    step_wait_times=[0.001],
    step_wait_samples=[16],
    last_activate_duration_s=1e4,
  )
  raw, _ = policy.decide(context, policy.init(_FLEET))
  assert int(raw.lend) == (3 if lends else 0)
  assert bool(raw.rebalance) == lends
  expected = Reason.LEND_BEHIND if lends else Reason.STAY_ON_PACE
  assert int(raw.reason) == expected


def test_ratio_never_changes():
  policy = fixed_ratio(0.5)
  state = policy.init(_FLEET)
  for waited in (0, 16, 0, 16):
    for phase in Phase:
      context = make_context(
        phase=phase,
        fleet=_FLEET,
        step_wait_samples=[waited],
        step_wait_times=[1.0],
      )
      _, state = policy.decide(context, state)
      assert float(state.ratio) == 0.5


@pytest.mark.parametrize("ratio", [0, -1, 1.2])
def test_s2_ratio_out_of_range_is_refused(ratio):
  with pytest.raises(ValueError, match="dynamic_schedule_deactivate_ratio"):
    fixed_ratio(ratio)
