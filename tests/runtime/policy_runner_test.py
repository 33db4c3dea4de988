"""Tests of policy_runner.py: log, replay and state of every policy."""

import json
import math

import pytest

from hybridrl import scheduling
from hybridrl.runtime.policy_runner import PolicyRunner, reason_name, replay
from hybridrl.scheduling import Fleet, Phase
from hybridrl.testing.scripted_run import cached_policy


def make_fleet(**changes):
  values = {
    "num_standalone": 1,
    "num_hybrid": 2,
    "required_samples": 4,
    "trigger_parameter_sync_step": 2,
    "staleness_threshold": 0.5,
    "max_required_samples": 12,
  }
  return Fleet(**(values | changes))


# (phase, facts) of some cycles with waits and switches.
CALLS = [
  (Phase.SYNC_END, {}),
  (Phase.STEP_START, {"hybrid_active": 2, "backlog_samples": 1}),
  (Phase.EVENT, {"hybrid_active": 2, "backlog_samples": 3}),
  (
    Phase.SYNC_END,
    {
      "backlog_samples": 1,
      "step_wait_times": [0.1, 2.3],
      "step_wait_samples": [1, 3],
      "step_train_times": [1.7],
      "elapsed_s": 1 / 3,
    },
  ),
  (
    Phase.CYCLE_END,
    {
      "step_wait_times": [0.1, 2.3],
      "step_wait_samples": [1, 3],
      "last_activate_duration_s": 0.7,
      "last_deactivate_duration_s": 0.1,
    },
  ),
  (Phase.CYCLE_END, {"step_wait_times": [0.2], "step_wait_samples": [4]}),
  (Phase.SYNC_END, {"backlog_samples": 2, "global_steps": 4}),
]


def drive(runner, calls=CALLS):
  return [runner.decide(phase, **facts) for phase, facts in calls]


@pytest.mark.parametrize("name", sorted(scheduling.POLICIES))
def test_i7_the_log_replays_to_the_same_decisions(name):
  log = []
  runner = PolicyRunner(cached_policy(name), make_fleet(), log.append)
  decisions = drive(runner)
  through_disk = json.loads(json.dumps(log))
  assert replay(cached_policy(name), make_fleet(), through_disk) == decisions
  assert [r["phase"] for r in log] == [p.name for p, _ in CALLS]
  assert [r["decision"]["lend"] for r in log] == [d.lend for d in decisions]
  assert log[-1]["step"] == 4


@pytest.mark.parametrize("name", sorted(scheduling.POLICIES))
def test_a_restored_state_decides_alike(name):
  policy, fleet = cached_policy(name), make_fleet()
  whole = PolicyRunner(policy, fleet, lambda record: None)
  expected = drive(whole)
  first = PolicyRunner(policy, fleet, lambda record: None)
  drive(first, CALLS[:5])
  second = PolicyRunner(policy, fleet, lambda record: None)
  second.load_state_dict(json.loads(json.dumps(first.state_dict())))
  assert drive(second, CALLS[5:]) == expected[5:]


def test_another_policys_state_is_refused():
  fleet = make_fleet()
  one = PolicyRunner(cached_policy("default"), fleet, lambda record: None)
  other = PolicyRunner(cached_policy("never"), fleet, lambda record: None)
  with pytest.raises(ValueError, match="policy"):
    other.load_state_dict(one.state_dict())


def test_decisions_are_python_numbers_after_constrain():
  log = []
  runner = PolicyRunner(cached_policy("always"), make_fleet(), log.append)
  decision = runner.decide(
    Phase.SYNC_END, healthy_hybrid=1, remaining_samples=3
  )
  assert decision.lend == 1 and type(decision.lend) is int
  assert decision.wait_samples == 3
  assert decision.recheck_s == math.inf
  assert decision.rebalance is True
  assert log[0]["raw"]["lend"] == 2


def test_the_state_digest_changes_with_the_state():
  log = []
  runner = PolicyRunner(cached_policy("default"), make_fleet(), log.append)
  drive(runner)
  digests = [r["state"] for r in log]
  assert digests[0] == digests[1] == digests[2]
  assert len(set(digests)) > 1


class Recorder(scheduling.DynamicSchedulePolicyBase):
  def __init__(self, deactivate_ratio=0.5):
    self.ratio = deactivate_ratio
    self.rebalanced = []

  def should_deactivate(self, global_steps, is_hybrid_active, ctx):
    return is_hybrid_active

  def deactivate_wait_samples(self, ctx):
    return int(ctx.step_required_samples * self.ratio)

  def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
    return True


async def _await(hook, handle):
  await hook(handle)


def test_a_class_in_the_seeds_style_runs_and_logs():
  policy = scheduling.SeedStylePolicy(Recorder, 0.5)
  log = []
  runner = PolicyRunner(policy, make_fleet(), log.append)
  decisions = drive(runner)
  assert decisions[0].lend == 2
  assert decisions[1].lend == 2 and decisions[1].wait_samples == 4
  assert replay(policy, make_fleet(), json.loads(json.dumps(log))) == decisions
  assert runner.request_rebalance is None


def test_an_overridden_rebalance_gets_the_handle():
  import asyncio

  seen = []

  class Own(Recorder):
    async def request_rebalance(self, global_steps, ctx, handle=None):
      seen.append((global_steps, ctx.required_samples, handle))

  policy = scheduling.SeedStylePolicy(Own, 0.5)
  runner = PolicyRunner(policy, make_fleet(), lambda record: None)
  hook = runner.request_rebalance
  runner.decide(Phase.SYNC_END, global_steps=6)
  asyncio.run(_await(hook, "the handle"))
  assert seen == [(6, 4, "the handle")]


def test_reason_names():
  assert reason_name(scheduling.Reason.NEVER) == "never"
  assert reason_name(1234) == "reason 1234"
