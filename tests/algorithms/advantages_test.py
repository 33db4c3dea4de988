import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hybridrl.algorithms import (
  group_advantages,
  has_spread,
  soft_overlong_penalty,
)

finite = st.floats(-100, 100, width=32)
groups = hnp.arrays(
  np.float32,
  hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=9),
  elements=finite,
)


def numpy_advantages(rewards):
  rewards = rewards.astype(np.float64)
  mean = rewards.mean(-1, keepdims=True)
  return (rewards - mean) / (rewards.std(-1, ddof=1, keepdims=True) + 1e-6)


def test_a15_grpo_uses_the_unbiased_deviation():
  found = group_advantages(np.array([1, 0, 0, 0], np.float32))
  expected = (np.array([1, 0, 0, 0]) - 0.25) / (0.5 + 1e-6)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a15_dr_grpo_does_not_divide():
  found = group_advantages(
    np.array([1, 0, 0, 0], np.float32), divide_by_std=False
  )
  np.testing.assert_allclose(found, [0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("shape", [(), (1,), (5, 1)])
def test_a9_a_group_of_one_is_refused(shape):
  with pytest.raises(ValueError, match="at least 2"):
    group_advantages(np.zeros(shape, np.float32))


def test_a10_a_reward_of_zero_is_a_reward():
  found = group_advantages(np.array([0, 1], np.float32))
  assert found[0] < 0 < found[1]
  assert has_spread(np.array([0.0, -1.0]))


@pytest.mark.parametrize(
  ("rewards", "keep"),
  [
    ([1, 0, 0, 0], True),
    ([1, 1, 1, 0], True),
    ([0.0] + [0.95] * 7, True),
    ([0, 0, 0], False),
    ([0.95] * 8, False),
  ],
)
def test_a3_a_group_is_kept_or_dropped_whole(rewards, keep):
  found = has_spread(np.asarray(rewards, np.float32))
  assert found.shape == ()
  assert bool(found) == keep


def test_a2_the_filter_sees_raw_rewards():
  raw = np.array([[0, 0, 0], [1, 0, 1]], np.float32)
  lengths = np.array([[10, 22, 30], [10, 20, 10]])
  shaped = raw + 0.5 * soft_overlong_penalty(lengths, 25, 5)
  assert has_spread(raw).tolist() == [False, True]
  assert has_spread(shaped).tolist() == [True, True]


@given(groups, st.booleans())
@settings(deadline=None, max_examples=60)
def test_advantages_equal_numpys_in_float64(rewards, use_jit):
  function = jax.jit(group_advantages) if use_jit else group_advantages
  found = np.asarray(function(rewards))
  assert found.dtype == np.float32
  spread = np.asarray(has_spread(rewards))
  assert np.all(found[~spread] == 0)
  # Groups whose deviation is lost in float32's rounding are left out.
  clear = rewards.std(-1) > 1e-3
  np.testing.assert_allclose(
    found[clear], numpy_advantages(rewards)[clear], atol=5e-2, rtol=1e-2
  )


@given(groups)
@settings(deadline=None, max_examples=30)
def test_the_order_of_responses_does_not_matter(rewards):
  order = np.random.default_rng(0).permutation(rewards.shape[1])
  np.testing.assert_allclose(
    group_advantages(rewards[:, order]),
    np.asarray(group_advantages(rewards))[:, order],
    atol=5e-2,
  )


def test_equal_rewards_that_do_not_add_up_exactly_give_zero():
  found = group_advantages(np.full(7, 0.1, np.float32))
  np.testing.assert_array_equal(found, np.zeros(7))
