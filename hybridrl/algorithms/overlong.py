"""Reward shaping for responses near the length limit."""

import jax
import jax.numpy as jnp


def soft_overlong_penalty(
  lengths: jax.Array, max_length: int, buffer_length: int
) -> jax.Array:
  """Soft overlong punishment of DAPO (arXiv:2503.14476, equation 13).

  0 up to max_length - buffer_length, then falling linearly to -1 at max_length
  and bounded there.

  Args:
    lengths: [...] response lengths, tokens.
    max_length: the limit, tokens.
    buffer_length: width of the slope, tokens; 0 turns the penalty off.

  Returns:
    [...] float32 in [-1, 0], to be added to rewards.

  Raises:
    ValueError: buffer_length is not in [0, max_length].
  """
  if not 0 <= buffer_length <= max_length:
    raise ValueError(
      f"the overlong buffer is {buffer_length} tokens; it must lie between 0"
      f" and the response limit of {max_length}"
    )
  lengths = jnp.asarray(lengths)
  if buffer_length == 0:
    return jnp.zeros(lengths.shape, jnp.float32)
  excess = lengths - (max_length - buffer_length)
  return -jnp.clip(excess.astype(jnp.float32) / buffer_length, 0.0, 1.0)
