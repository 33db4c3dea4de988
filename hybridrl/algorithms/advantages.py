"""Group-relative advantages and the filter on groups without spread."""

import chex
import jax
import jax.numpy as jnp

_EPSILON = 1e-6  # in the rewards' unit; keeps a group of equal rewards finite


def group_advantages(
  rewards: jax.Array, *, divide_by_std: bool = True
) -> jax.Array:
  """Advantage of each response within its group.

  (r - mean) / (std + 1e-6) with the unbiased standard deviation, as in GRPO
  (Shao et al. 2024, https://arxiv.org/abs/2402.03300, section 4.1.2); without
  the division as in Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).

  Args:
    rewards: [..., n] rewards of the n responses to one prompt. 0.0 is a reward
      like any other.
    divide_by_std: divide by the group's standard deviation.

  Returns:
    [..., n], same dtype; 0 in a group of equal rewards.

  Raises:
    ValueError: n is 1, which leaves no baseline.
  """
  rewards = jnp.asarray(rewards)
  if rewards.ndim < 1 or rewards.shape[-1] < 2:
    raise ValueError(
      f"rewards of shape {rewards.shape}: a group baseline needs at least 2"
      " responses a prompt"
    )
  chex.assert_type(rewards, float)
  centred = rewards - jnp.mean(rewards, axis=-1, keepdims=True)
  # The mean of equal rewards can be off by rounding; their difference is 0.
  spread = has_spread(rewards)[..., None]
  centred = jnp.where(spread, centred, 0)
  if not divide_by_std:
    return centred
  variance = jnp.sum(jnp.square(centred), axis=-1, keepdims=True)
  std = jnp.sqrt(variance / (rewards.shape[-1] - 1))
  return centred / (std + _EPSILON)


def has_spread(rewards: jax.Array) -> jax.Array:
  """Whether the raw rewards of a group differ at all: exact max != min.

  DAPO's dynamic sampling (Yu et al. 2025, arXiv:2503.14476, section 3.2) drops
  groups where this is false, before any shaping.

  Args:
    rewards: [..., n].

  Returns:
    [...] bool.
  """
  rewards = jnp.asarray(rewards)
  return jnp.max(rewards, axis=-1) != jnp.min(rewards, axis=-1)
