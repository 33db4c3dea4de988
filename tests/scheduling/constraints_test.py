import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.scheduling import (
  MAX_DRAIN_S,
  MIN_RECHECK_S,
  POLICIES,
  Fleet,
  Phase,
  Reason,
  constrain,
  constrained_step,
  make_context,
  make_decision,
  make_policy,
  never,
)
from hybridrl.testing import strategies
from hybridrl.testing.policy_conformance import assert_possible
from hybridrl.testing.policy_drive import Drive, Stuck

_constrain = jax.jit(constrain)

_decisions = st.builds(
  make_decision,
  lend=st.integers(-100, 100),
  wait_samples=st.integers(-1000, 100_000),
  recheck_s=st.floats(width=32),
  drain_s=st.floats(width=32),
  rebalance=st.booleans(),
  reason=st.sampled_from([*Reason, 1000, 4711]),
)


@settings(max_examples=200, deadline=None)
@given(strategies.contexts(), _decisions)
def test_any_decision_becomes_possible(context, decision):
  assert_possible(context, _constrain(context, decision))


@settings(max_examples=60, deadline=None)
@given(strategies.contexts(), _decisions)
def test_only_restricts_where_a_standalone_replica_serves(context, decision):
  result = _constrain(context, decision)
  if int(context.healthy_standalone) > 0:
    assert int(result.lend) <= max(0, int(decision.lend))
  if np.array_equal(result.lend, decision.lend):
    assert int(result.reason) == int(decision.reason)


@functools.cache
def _policy(name, ratio=0.3):
  """A policy and its step, compiled once for all fleets."""
  policy = make_policy(name, deactivate_ratio=ratio)
  return {"policy": policy, "step": constrained_step(policy)}


def _fleet(standalone=1, hybrid=2, required=16, k=4):
  return Fleet(
    num_standalone=standalone,
    num_hybrid=hybrid,
    required_samples=required,
    trigger_parameter_sync_step=k,
    staleness_threshold=0.0,
    max_required_samples=required * k,
  )


def test_a_possible_decision_is_left_alone():
  context = make_context(
    phase=Phase.STEP_START, fleet=_fleet(), backlog_samples=3, hybrid_active=2
  )
  decision = make_decision(
    lend=1,
    wait_samples=20,
    recheck_s=1.5,
    drain_s=2.0,
    rebalance=True,
    reason=1,
  )
  jax.tree.map(
    np.testing.assert_array_equal, constrain(context, decision), decision
  )


@pytest.mark.parametrize("wait", [33, 100, 10**6])
def test_s2_never_waits_for_more_than_can_arrive(wait):
  context = make_context(
    phase=Phase.STEP_START,
    fleet=_fleet(),
    backlog_samples=10,
    in_flight_samples=2,
    admissible_samples=50,
    remaining_samples=32,
    hybrid_active=2,
  )
  result = constrain(context, make_decision(lend=2, wait_samples=wait))
  assert (int(result.lend), int(result.wait_samples)) == (2, 32)


def test_lends_nothing_when_nothing_can_arrive():
  context = make_context(
    phase=Phase.EVENT, fleet=_fleet(0), backlog_samples=3, remaining_samples=3
  )
  result = constrain(context, make_decision(lend=2, wait_samples=64))
  assert (int(result.lend), int(result.wait_samples)) == (0, 0)
  assert int(result.reason) == Reason.LIMIT_NOTHING_ARRIVES


def test_standalone_replicas_that_failed_are_replaced_by_hybrid_ones():
  context = make_context(
    phase=Phase.EVENT,
    fleet=_fleet(2, 3),
    healthy_standalone=0,
    healthy_hybrid=2,
    backlog_samples=5,
    consumed_in_cycle=32,
  )
  result = constrain(context, make_decision(lend=0))
  assert (int(result.lend), int(result.wait_samples)) == (2, 32)
  assert int(result.reason) == Reason.LIMIT_NO_STANDALONE


def test_bad_times_are_bounded():
  context = make_context(phase=Phase.EVENT, fleet=_fleet())
  nan = constrain(
    context, make_decision(lend=0, recheck_s=np.nan, drain_s=np.nan)
  )
  assert np.isinf(nan.recheck_s)
  assert float(nan.drain_s) == 0
  spin = constrain(context, make_decision(lend=0, recheck_s=0, drain_s=np.inf))
  assert float(spin.recheck_s) == np.float32(MIN_RECHECK_S)
  assert float(spin.drain_s) == MAX_DRAIN_S


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("standalone", [0, 1])
@pytest.mark.parametrize("end_is_known", [True, False])
def test_s5_the_end_of_data_ends_the_run(name, standalone, end_is_known):
  # S = 8; whole cycles, a part of one, a part of a micro-step.
  fleet = _fleet(standalone, 2, required=2, k=4)
  for num_samples in (24, 26, 27):
    drive = Drive(
      **_policy(name, 1.0),
      fleet=fleet,
      staleness_text="0",
      num_samples=num_samples,
      num_cycles=100,
      end_is_known=end_is_known,
    ).run()
    assert sorted(drive.trained) == list(range(num_samples))
    assert drive.cycles == -(-num_samples // 8)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1.0])
def test_s5_1000_samples_do_not_fill_the_last_cycle_of_128(ratio):
  drive = Drive(
    **_policy("default", ratio),
    fleet=_fleet(2, 2, required=32, k=4),
    staleness_text="0",
    num_samples=1000,
    num_cycles=100,
    concurrent=16,
  ).run()
  assert sorted(drive.trained) == list(range(1000))
  assert drive.cycles == 8


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_dropped_samples_are_replaced_and_give_their_credit_back(name):
  fleet = _fleet(1, 1, required=2, k=2)
  drive = Drive(
    **_policy(name),
    fleet=fleet,
    staleness_text="0",
    num_samples=12,
    num_cycles=100,
    drop_every=3,
  ).run()
  assert len(drive.trained) == 12
  assert all(i % 3 for i in drive.trained)


def test_s6_surplus_is_the_backlog_at_all_times():
  # Training is so slow that the queue is full when a cycle begins, and cycles
  # pass in which little is generated.
  drive = Drive(
    **_policy("default"),
    fleet=Fleet(
      num_standalone=4,
      num_hybrid=2,
      required_samples=2,
      trigger_parameter_sync_step=2,
      staleness_threshold=2.0,
      max_required_samples=12,
    ),
    staleness_text="2",
    num_samples=60,
    num_cycles=100,
    train_ticks=20,
  ).run()
  assert drive.mismatches == 0
  assert len(drive.trained) == 60


def test_without_constrain_a_static_only_hybrid_fleet_is_stuck():
  """The drive can fail: it is constrain that keeps S3 alive."""
  policy = never()

  def unconstrained(context, state):
    raw, state = policy.decide(context, state)
    return raw, raw, state

  with pytest.raises(Stuck, match="nothing can happen"):
    Drive(
      policy=policy,
      step=unconstrained,
      fleet=_fleet(0),
      staleness_text="0",
      num_samples=None,
      num_cycles=1,
    ).run()
