import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.algorithms import ClipRange, add_sums, policy_sums, zero_sums

CLIP = ClipRange(0.2, 0.28, 3.0)


def numpy_sums(new, old, advantages, mask, clip):
  """Token by token, in float64, straight from the paper."""
  sums = dict.fromkeys(("tokens", "loss", "clipped", "dual_clipped", "kl"), 0.0)
  for n, o, a, m in zip(new, old, advantages, mask, strict=True):
    if not m:
      continue
    ratio = np.exp(np.float64(n) - o)
    clipped_ratio = min(max(ratio, 1 - clip.low), 1 + clip.high)
    surrogate = min(a * ratio, a * clipped_ratio)
    sums["clipped"] += a * clipped_ratio < a * ratio
    if a < 0 and surrogate < clip.dual * a:
      surrogate = clip.dual * a
      sums["dual_clipped"] += 1
    sums["loss"] -= surrogate
    sums["tokens"] += 1
    sums["kl"] += np.float64(o) - n
  return sums


def random_tokens(seed, size=64):
  rng = np.random.default_rng(seed)
  new = -rng.exponential(2, size).astype(np.float32)
  old = (new + rng.normal(0, 0.8, size)).astype(np.float32)
  advantages = rng.normal(size=size).astype(np.float32)
  return new, old, advantages, rng.random(size) < 0.6


@given(st.integers(0, 10**6), st.booleans())
@settings(deadline=None, max_examples=30)
def test_sums_equal_numpys_in_float64(seed, use_jit):
  inputs = random_tokens(seed)
  function = jax.jit(policy_sums) if use_jit else policy_sums
  found = function(*inputs, CLIP)
  for name, value in numpy_sums(*inputs, CLIP).items():
    np.testing.assert_allclose(
      getattr(found, name), value, atol=1e-4, rtol=1e-4, err_msg=name
    )
  distance = np.abs(inputs[0] - inputs[1])[inputs[3]]
  np.testing.assert_allclose(found.abs_log_prob_diff, distance.sum(), rtol=1e-5)
  np.testing.assert_allclose(found.max_abs_log_prob_diff, distance.max())


@pytest.mark.parametrize(
  ("ratio", "advantage", "loss", "gradient"),
  [
    (1.0, 1.0, -1.0, -1.0),
    (1.25, 1.0, -1.25, -1.25),  # clip-higher: 0.28, not 0.2
    (1.5, 1.0, -1.28, 0.0),
    (0.5, 1.0, -0.5, -0.5),
    (0.5, -1.0, 0.8, 0.0),
    (1.5, -1.0, 1.5, 1.5),
    (5.0, -1.0, 3.0, 0.0),  # dual clip
    (5.0, 0.0, 0.0, 0.0),
  ],
)
def test_loss_and_gradient_of_one_token(ratio, advantage, loss, gradient):
  def total(new):
    ones = jnp.ones(1)
    return policy_sums(
      new * ones, -2 * ones, advantage * ones, ones > 0, CLIP
    ).loss

  found, slope = jax.value_and_grad(total)(np.float32(np.log(ratio) - 2))
  np.testing.assert_allclose(found, loss, rtol=1e-5)
  np.testing.assert_allclose(slope, gradient, rtol=1e-5)


def test_what_is_masked_has_no_effect_even_if_it_is_not_a_number():
  new, old, advantages, mask = random_tokens(0)

  def total(new, old, advantages):
    return policy_sums(new, old, advantages, mask, CLIP).loss

  clean = jax.value_and_grad(total)(new, old, advantages)
  for array in (new, old, advantages):
    array[~mask] = np.nan
  dirty = jax.value_and_grad(total)(new, old, advantages)
  np.testing.assert_array_equal(clean[0], dirty[0])
  np.testing.assert_array_equal(clean[1], dirty[1])
  assert np.all(dirty[1][~mask] == 0)


def test_a7_nothing_but_masked_tokens_gives_zero():
  new, old, advantages, mask = random_tokens(0)
  found = policy_sums(new, old, advantages, np.zeros_like(mask), CLIP)
  assert all(float(x) == 0 for x in found)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_a6_sums_of_parts_add_up(parts):
  inputs = random_tokens(3)
  total = zero_sums()
  for part in zip(*(np.split(x, parts) for x in inputs), strict=True):
    total = add_sums(total, policy_sums(*part, CLIP))
  whole = policy_sums(*inputs, CLIP)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), total, whole
  )


@pytest.mark.parametrize("field", ["low", "high", "dual"])
def test_a16_every_bound_changes_the_loss(field):
  inputs = random_tokens(1)
  base = policy_sums(*inputs, CLIP).loss
  other = CLIP._replace(**{field: 0.9 * getattr(CLIP, field)})
  assert float(policy_sums(*inputs, other).loss) != float(base)


def test_an_absurd_ratio_stays_finite():
  ones = jnp.ones(1)
  found = policy_sums(200 * ones, -200 * ones, -ones, ones > 0, CLIP)
  assert np.isfinite(found.loss)
