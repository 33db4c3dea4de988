import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybridrl.accounting import max_required_samples
from hybridrl.scheduling import (
  Fleet,
  Phase,
  Reason,
  constrained_step,
  default,
  make_context,
)


def _fleet(required=32, k=4, standalone=2, hybrid=2):
  return Fleet(
    num_standalone=standalone,
    num_hybrid=hybrid,
    required_samples=required,
    trigger_parameter_sync_step=k,
    staleness_threshold=0.1,
    max_required_samples=max_required_samples(required * k, "0.1"),
  )


class SeedDefault:
  """The seed's section 3.1 in float64, by its own order of calls.

  The lower bound of the ratio, the measured surplus and the kept first switch
  cost are the differences that the design asks for.
  """

  def __init__(self, given_ratio, required, k):
    self.given, self.required, self.k = given_ratio, required, k
    self.s = required * k
    self.ratio = given_ratio
    self.per_sample_s = 1000.0
    self.costs = []
    self.cycles = 0

  def threshold(self):
    return int(np.floor(self.ratio * self.s + 1e-3))

  def should_activate(self, backlog, times, samples):
    if sum(times) > 0 and sum(samples) > 0:
      self.per_sample_s = sum(times) / sum(samples)
    cost = np.mean(self.costs[-3:]) if self.costs else 10.0
    self.gap = self.ratio * self.s - backlog
    self.margin = self.gap * self.per_sample_s - cost
    return self.gap > 1e-3 and self.margin > 0

  def update(self, samples, activate_s, reclaim_s):
    if activate_s + reclaim_s > 0:
      self.costs.append(activate_s + reclaim_s)
    waited = sum(samples)
    if self.cycles:
      step = np.clip(waited / self.s, 0.02, 0.10) if waited else -0.02
      low = min(self.given, self.required / self.s)
      self.ratio = float(np.clip(self.ratio + step, low, 1.0))
    self.cycles += 1


@functools.cache
def _compiled(ratio):
  policy = default(ratio)
  return policy, constrained_step(policy)


_STEP = _compiled(0.3)[1]


@st.composite
def _cycle(draw, k=4, required=32):
  waits = draw(
    st.lists(
      st.tuples(st.floats(0, 100, width=32), st.integers(0, required)),
      min_size=k,
      max_size=k,
    )
  )
  calm = draw(st.booleans())
  return {
    "backlog": draw(st.integers(0, 140)),
    "times": [0.0 if calm else t for t, _ in waits],
    "samples": [0 if calm else n for _, n in waits],
    "activate_s": draw(st.sampled_from([0.0, 0.5, 20.0, 300.0])),
    "reclaim_s": draw(st.sampled_from([0.0, 0.25, 6.0])),
  }


@settings(max_examples=60, deadline=None)
@given(st.lists(_cycle(), min_size=1, max_size=12))
def test_agrees_with_the_seed_in_float64(cycles):
  fleet, seed = _fleet(), SeedDefault(0.3, 32, 4)
  state = default(0.3).init(fleet)
  for cycle in cycles:
    facts = {
      "backlog_samples": cycle["backlog"],
      "arrivable_samples": cycle["backlog"] + 100,
      "step_wait_times": cycle["times"],
      "step_wait_samples": cycle["samples"],
      "last_activate_duration_s": cycle["activate_s"],
      "last_deactivate_duration_s": cycle["reclaim_s"],
    }

    def decide(phase, state, facts=facts, **more):
      context = make_context(phase=phase, fleet=fleet, **facts, **more)
      return _STEP(context, state)

    raw, _, state = decide(Phase.SYNC_END, state)
    activate = seed.should_activate(
      cycle["backlog"], cycle["times"], cycle["samples"]
    )
    # Nearer than float32 resolves, either answer is right.
    assume(abs(seed.margin) > 1e-3 * (1 + seed.per_sample_s))
    assume(abs(seed.gap - 1e-3) > 1e-4)
    exact = seed.ratio * seed.s + 1e-3
    assume(abs(exact - round(exact)) > 1e-4)
    assert int(raw.lend) == (2 if activate else 0)
    _, _, state = decide(Phase.CYCLE_END, state)
    seed.update(cycle["samples"], cycle["activate_s"], cycle["reclaim_s"])
    np.testing.assert_allclose(state.ratio, seed.ratio, rtol=1e-5)
    exact = seed.ratio * seed.s + 1e-3
    assume(abs(exact - round(exact)) > 1e-4)
    raw, _, state = decide(Phase.STEP_START, state, hybrid_active=2)
    waits = cycle["backlog"] < seed.threshold()
    assert int(raw.lend) == (2 if waits else 0)
    assert int(raw.wait_samples) == (seed.threshold() if waits else 0)


def _run_cycles(given_ratio, waits, fleet=None):
  """Ratio and T after each cycle; waits: samples waited for, per cycle."""
  fleet = fleet or _fleet()
  policy, step = _compiled(given_ratio)
  state = policy.init(fleet)
  trace = []
  for waited in waits:
    context = make_context(
      phase=Phase.CYCLE_END,
      fleet=fleet,
      step_wait_samples=[waited],
      step_wait_times=[float(waited)],
    )
    _, _, state = step(context, state)
    start = make_context(
      phase=Phase.STEP_START, fleet=fleet, hybrid_active=2, in_flight_samples=64
    )
    raw, _, _ = step(start, state)
    trace.append((float(state.ratio), int(raw.wait_samples)))
  return trace


@pytest.mark.parametrize("calm", [1, 2, 10, 40, 200])
@pytest.mark.parametrize("given_ratio", [0.05, 0.3, 1.0])
def test_s1_ratio_stays_in_bounds_and_one_starving_cycle_raises_t(
  given_ratio, calm
):
  trace = _run_cycles(given_ratio, [0] * calm + [100])
  floor = min(given_ratio, 32 / 128)
  for ratio, wait in trace:
    assert np.float32(floor) <= ratio <= 1.0
    assert wait > 0
  starved, before = trace[-1], trace[-2]
  if before[0] < 0.9:
    assert starved[1] > before[1]
    assert starved[1] == int((before[0] + 0.10) * 128 + 1e-3)


def test_s1_ratio_never_exceeds_one():
  ratios = [ratio for ratio, _ in _run_cycles(0.9, [128] * 20)]
  assert max(ratios) == ratios[-1] == 1.0


@pytest.mark.parametrize(
  "waited, change",
  [(0, -0.02), (1, 0.02), (2, 0.02), (8, 8 / 128), (13, 0.10), (128, 0.10)],
)
def test_ratio_moves_by_the_waited_share_within_bounds(waited, change):
  (first, _), (second, _) = _run_cycles(0.5, [128, waited])
  assert first == 0.5  # the first cycle adapts nothing
  np.testing.assert_allclose(second, 0.5 + change, atol=1e-6)


@pytest.mark.parametrize(
  "ratio", [0.0, -0.1, 1.0001, 1.2, float("nan"), float("inf")]
)
def test_s2_ratio_out_of_range_is_refused(ratio):
  with pytest.raises(ValueError) as error:
    default(ratio)
  message = str(error.value)
  assert "--dynamic_schedule_deactivate_ratio" in message
  assert str(ratio) in message
  assert "(0, 1]" in message


def _activation(state, **facts):
  fleet = facts.pop("fleet", _fleet())
  context = make_context(
    phase=Phase.SYNC_END, fleet=fleet, arrivable_samples=200, **facts
  )
  raw, _, state = _STEP(context, state)
  return int(raw.lend) > 0, Reason(int(raw.reason)), state


def test_s9_assumed_cost_and_rate_give_way_to_the_first_measurement():
  fleet = _fleet()
  state = default(0.3).init(fleet)
  # Assumed: 1000 s per sample, 10 s per switch.
  assert _activation(state, backlog_samples=38)[0]
  # Behind by 0.4 samples only; the first measured rate is 2 s per sample.
  facts = {"step_wait_times": [8.0], "step_wait_samples": [4]}
  lends, reason, state = _activation(state, backlog_samples=38, **facts)
  assert (lends, reason) == (False, Reason.STAY_TOO_COSTLY)
  assert float(state.seconds_per_sample) == 2.0
  # Without new waits the rate stays; 8.4 samples x 2 s > the assumed 10 s.
  assert _activation(state, backlog_samples=30)[0]
  # The first cycle's cost of 17 s is not discarded: 16.8 s do not pay now.
  context = make_context(
    phase=Phase.CYCLE_END,
    fleet=fleet,
    last_activate_duration_s=12.0,
    last_deactivate_duration_s=5.0,
  )
  _, _, state = _STEP(context, state)
  lends, reason, _ = _activation(state, backlog_samples=30)
  assert (lends, reason) == (False, Reason.STAY_TOO_COSTLY)


def test_switch_cost_is_the_mean_of_the_last_three_positive_cycles():
  fleet = _fleet()
  state = default(0.3).init(fleet)
  for cost in (100.0, 0.0, 3.0, 0.0, 6.0, 0.0, 9.0, 0.0):
    context = make_context(
      phase=Phase.CYCLE_END, fleet=fleet, last_activate_duration_s=cost
    )
    _, _, state = _STEP(context, state)
  np.testing.assert_array_equal(state.switch_costs_s, [3.0, 6.0, 9.0])
  # One second per sample: lends for a gap above the mean of 6, not below.
  state = state._replace(
    ratio=jnp.float32(0.5), seconds_per_sample=jnp.float32(1.0)
  )
  assert not _activation(state, backlog_samples=58)[0]  # gap 6
  assert _activation(state, backlog_samples=57)[0]  # gap 7


def test_s10_first_step_activates():
  lends, reason, _ = _activation(default(0.3).init(_fleet()))
  assert lends
  assert reason is Reason.LEND_BEHIND


@pytest.mark.parametrize(
  "required, k, ratio, expected",
  [
    (16, 4, 0.3, 19),  # 64 * 0.3 = 19.2
    (32, 4, 0.3, 38),
    (10, 1, 0.3, 3),  # 10 * float32(0.3) is 3.0000001
    (100, 1, 0.29, 29),  # 100 * 0.29 is 28.999999999999996
    (128, 1, 1.0, 128),
    (1, 1, 0.3, 0),
  ],
)
def test_s12_threshold_is_the_floor(required, k, ratio, expected):
  fleet = _fleet(required, k)
  policy = default(ratio)
  context = make_context(
    phase=Phase.STEP_START, fleet=fleet, hybrid_active=2, in_flight_samples=1
  )
  raw, _ = policy.decide(context, policy.init(fleet))
  assert int(raw.wait_samples) == expected
  # Nothing to wait for: reclaim at once.
  assert (int(raw.lend) > 0) == (expected > 0)


def test_only_hybrid_waits_for_the_whole_cycle_and_never_adapts():
  fleet = _fleet(standalone=0)
  trace = _run_cycles(0.3, [0, 0, 128, 0], fleet)
  assert trace == [(1.0, 128)] * 4
  state = default(0.3).init(fleet)
  lends, reason, _ = _activation(state, fleet=fleet, backlog_samples=128)
  assert lends
  assert reason is Reason.ONLY_HYBRID


def test_event_at_the_threshold_reclaims():
  fleet, policy = _fleet(), default(0.3)
  for backlog, lend in ((37, 2), (38, 0), (50, 0)):
    context = make_context(
      phase=Phase.EVENT,
      fleet=fleet,
      hybrid_active=2,
      backlog_samples=backlog,
      in_flight_samples=10,
    )
    raw, _ = policy.decide(context, policy.init(fleet))
    assert int(raw.lend) == lend
