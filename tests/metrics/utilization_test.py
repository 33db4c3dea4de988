"""Utilisation on hand-computed timelines, to equality."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.metrics import utilization as u

# (name, history of (time_s, active, capacity), end_s, right value).
# All times and products are exact in binary.
_TIMELINES = (
  ("full", [(0.0, 8, 8)], 4.0, 1.0),
  ("half", [(0.0, 4, 8)], 4.0, 0.5),
  # 2 s x min(8, 4) + 2 s x min(8, 12) over 8 x 4: (8 + 16) / 32.
  ("more active than capacity", [(0.0, 4, 8), (2.0, 12, 8)], 4.0, 0.75),
  # Capacity doubles at 1 s: (1 x 8 + 3 x 8) / (1 x 8 + 3 x 16) = 32 / 56.
  ("capacity grows", [(0.0, 8, 8), (1.0, 8, 16)], 4.0, 32 / 56),
  # ... and falls back at 3 s, where 16 are still active:
  # (8 + 2 x 16 + 8) / (8 + 32 + 8) = 1.
  (
    "capacity grows and falls",
    [(0.0, 8, 8), (1.0, 16, 16), (3.0, 16, 8)],
    4.0,
    1.0,
  ),
  # Two pauses, at 2 to 3 s and at 5 to 7 s: 5 of 8 s in use.
  (
    "two pauses",
    [(0.0, 4, 4), (2.0, 0, 4), (3.0, 4, 4), (5.0, 0, 4), (7.0, 4, 4)],
    8.0,
    5 / 8,
  ),
  # Without capacity an interval has no weight, whatever is active.
  ("zero capacity between", [(0.0, 2, 4), (2.0, 3, 0)], 10.0, 0.5),
  ("no capacity at all", [(0.0, 3, 0)], 10.0, 0.0),
  ("no time", [(5.0, 3, 4)], 5.0, 0.0),
  ("nothing", [], 5.0, 0.0),
  # The window starts with the previous step's end, not with 0.
  ("late window", [(100.0, 1, 4), (102.0, 3, 4)], 104.0, 0.5),
)


@pytest.mark.parametrize(
  ("history", "end_s", "right"),
  [case[1:] for case in _TIMELINES],
  ids=[case[0] for case in _TIMELINES],
)
def test_rollout_utilization_of_a_timeline(history, end_s, right):
  assert u.rollout_resource_utilization(history, end_s) == right


@pytest.mark.parametrize(
  ("history", "end_s", "right"),
  [case[1:] for case in _TIMELINES if case[1]],
  ids=[case[0] for case in _TIMELINES if case[1]],
)
def test_rollout_utilization_inside_jit(history, end_s, right):
  def fold(rows, end):
    (time_s, active, capacity) = rows[0]
    usage = u.start_usage(time_s, active, capacity)
    for row in rows[1:]:
      usage = u.observe(usage, *row)
    return u.usage_utilization(
      u.observe(usage, end, usage.active, usage.capacity)
    )

  rows = jnp.asarray(history, jnp.float32)
  assert jax.jit(fold)(rows, jnp.float32(end_s)) == np.float32(right)


_COUNTS = st.integers(0, 50)
_HISTORIES = st.lists(
  st.tuples(st.integers(0, 1000), _COUNTS, _COUNTS), max_size=20
).map(sorted)


def _brute_force(history, end_s):
  """Unit by unit of time."""
  used = available = 0
  for t in range(history[0][0], end_s):
    _, active, capacity = [row for row in history if row[0] <= t][-1]
    used += min(active, capacity)
    available += capacity
  return used / available if available else 0.0


@settings(deadline=None)
@given(_HISTORIES.filter(bool), st.integers(0, 50))
def test_rollout_utilization_equals_brute_force(history, extra):
  end_s = history[-1][0] + extra
  # Of several entries at one time, the last one holds.
  unique = list({row[0]: row for row in history}.values())
  assert u.rollout_resource_utilization(history, end_s) == pytest.approx(
    _brute_force(unique, end_s), abs=1e-12
  )


@settings(deadline=None)
@given(_HISTORIES.filter(bool), st.data())
def test_an_observation_that_changes_nothing_changes_nothing(history, data):
  end_s = history[-1][0] + 7
  whole = u.rollout_resource_utilization(history, end_s)
  assert 0.0 <= whole <= 1.0
  at = data.draw(st.integers(0, len(history) - 1))
  _, active, capacity = history[at]
  until = history[at + 1][0] if at + 1 < len(history) else end_s
  middle = data.draw(st.integers(history[at][0], until))
  split = [
    *history[: at + 1],
    (middle, active, capacity),
    *history[at + 1 :],
  ]
  assert u.rollout_resource_utilization(split, end_s) == whole


def test_time_that_runs_backwards_is_refused():
  usage = u.start_usage(2.0, 1, 1)
  with pytest.raises(ValueError, match=r"1\.0 s follows one at 2\.0 s"):
    u.observe(usage, 1.0, 1, 1)


def test_train_compute_counts_the_seven_keys_only():
  compute_s = {
    "reward": 1.0,
    "old_log_prob": 2.0,
    "adv": 4.0,
    "update_actor": 8.0,
    "save_checkpoint": 100.0,
  }
  assert u.train_compute_time_s(compute_s) == 15.0
  every = {key: 1.0 for key in u.TRAIN_COMPUTE_KEYS}
  assert u.train_compute_time_s(every) == 7.0
  assert u.train_compute_time_s({}) == 0.0


def test_train_utilization_is_a_ratio_of_sums():
  # Mean of the ratios would be (1 + 1/9) / 2 = 5/9.
  assert u.train_resource_utilization([1.0, 1.0], [1.0, 9.0]) == 0.2
  assert u.train_resource_utilization([], []) == 0.0
  assert u.train_resource_utilization([0.0], [0.0]) == 0.0
  with pytest.raises(ValueError, match="1 micro-steps, allocated_s 2"):
    u.train_resource_utilization([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
  ("wait_s", "step_s", "right"),
  [(0.0, 8.0, 0.0), (2.0, 8.0, 0.25), (9.0, 8.0, 1.0), (1.0, 0.0, 0.0)],
)
def test_hybrid_rollout_fraction(wait_s, step_s, right):
  assert u.hybrid_rollout_fraction(wait_s, step_s) == right


@pytest.mark.parametrize(
  ("a", "b", "wait_s", "right"),
  [
    # x = 1/4: (3/4 x 16 x 1/2 + (4 + 16) x 1/4) / 32 = 11/32.
    (16, 16, 2.0, 11 / 32),
    # x = 0: (16 x 1/2 + 16 x 1/4) / 32 = 12/32.
    (16, 16, 0.0, 12 / 32),
    # Only hybrid, x = 1/4: (3/4 x 8 x 1/2 + 2 x 1/4) / 8 = 3.5/8.
    (8, 0, 2.0, 3.5 / 8),
    # Only standalone: U_rollout.
    (0, 8, 2.0, 1 / 4),
    # All the time lent: U_rollout.
    (16, 16, 8.0, 1 / 4),
  ],
)
def test_resource_utilization(a, b, wait_s, right):
  assert (
    u.resource_utilization(
      train_utilization=0.5,
      rollout_utilization=0.25,
      wait_s=wait_s,
      step_s=8.0,
      hybrid_devices=a,
      standalone_devices=b,
    )
    == right
  )


@pytest.mark.parametrize(("a", "b"), [(0, 0), (-1, 4), (4, -1)])
def test_resource_utilization_needs_devices(a, b):
  with pytest.raises(ValueError, match=f"hybrid_devices={a}"):
    u.resource_utilization(
      train_utilization=1.0,
      rollout_utilization=1.0,
      wait_s=0.0,
      step_s=1.0,
      hybrid_devices=a,
      standalone_devices=b,
    )


@settings(deadline=None)
@given(
  *(st.floats(0, 1) for _ in range(2)),
  # Seconds that float32 holds exactly.
  *(st.integers(0, 2**20).map(lambda n: n / 8) for _ in range(2)),
  st.integers(0, 64),
  st.integers(1, 64),
)
def test_resource_utilization_lies_between_the_two(ut, ur, wait, step, a, b):
  facts = {
    "train_utilization": ut,
    "rollout_utilization": ur,
    "wait_s": wait,
    "step_s": step,
  }
  devices = {"hybrid_devices": a, "standalone_devices": b}
  value = u.resource_utilization(**facts, **devices)
  assert min(ut, ur) - 1e-12 <= value <= max(ut, ur) + 1e-12
  in_float32 = {k: jnp.float32(v) for k, v in facts.items()}
  single = u.resource_utilization(**in_float32, **devices)
  assert float(single) == pytest.approx(value, abs=1e-5)


def test_resource_utilization_inside_jit():
  @jax.jit
  def traced(wait_s, step_s):
    return u.resource_utilization(
      train_utilization=0.5,
      rollout_utilization=0.25,
      wait_s=wait_s,
      step_s=step_s,
      hybrid_devices=16,
      standalone_devices=16,
    )

  wait_s = jnp.float32([0.0, 2.0, 8.0, 2.0])
  step_s = jnp.float32([8.0, 8.0, 8.0, 0.0])
  right = [12 / 32, 11 / 32, 8 / 32, 12 / 32]
  np.testing.assert_array_equal(traced(wait_s, step_s), right)
