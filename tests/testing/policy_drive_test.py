import functools

import pytest

from hybridrl.scheduling import (
  Fleet,
  Phase,
  constrained_step,
  make_policy,
)
from hybridrl.testing.policy_drive import Drive, Stuck


@functools.cache
def _policy(name):
  policy = make_policy(name)
  return {"policy": policy, "step": constrained_step(policy)}


def _drive(name, *, standalone=1, **changes):
  fleet = Fleet(
    num_standalone=standalone,
    num_hybrid=2,
    required_samples=4,
    trigger_parameter_sync_step=2,
    staleness_threshold=0.5,
    max_required_samples=12,
  )
  settings = {"num_samples": None, "num_cycles": 4} | changes
  return Drive(**_policy(name), fleet=fleet, staleness_text="0.5", **settings)


def test_phases_come_in_the_order_of_the_design():
  drive = _drive("default", num_cycles=1).run()
  phases = [phase for phase, _, _ in drive.decisions]
  assert phases[:2] == [Phase.SYNC_END, Phase.STEP_START]
  assert phases[-2:] == [Phase.SYNC_END, Phase.CYCLE_END]
  assert phases.count(Phase.STEP_START) == 2


def test_every_sample_is_trained_once():
  drive = _drive("default", num_samples=37, num_cycles=100).run()
  assert sorted(drive.trained) == list(range(37))
  assert drive.cycles == 5


def test_lending_is_seen():
  assert _drive("never").run().lent_ticks == 0
  lent = _drive("always").run().lent_ticks
  assert lent > 0
  # A trainer so slow that the backlog suffices leaves nothing to lend for.
  assert _drive("default", train_ticks=50).run().lent_ticks < lent


@pytest.mark.parametrize("end_is_known", [True, False])
def test_a_loop_in_which_nothing_happens_is_told(end_is_known):
  policy = make_policy("never")

  def unconstrained(context, state):
    raw, state = policy.decide(context, state)
    return raw, raw, state

  drive = _drive("never", standalone=0, num_samples=5)
  drive.step, drive.end_is_known = unconstrained, end_is_known
  with pytest.raises(Stuck, match="lent 0: Counts"):
    drive.run()
