"""The clipped policy loss of DAPO, as sums that add up over micro-batches."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

# exp(20) is 5e8: far outside every clip range, and finite in float32.
_MAX_LOG_RATIO = 20.0


class ClipRange(NamedTuple):
  """Where the ratio of new to old probability is clipped.

  Attributes:
    low: the ratio is clipped below at 1 - low.
    high: ... and above at 1 + high (DAPO's clip-higher).
    dual: c > 1; for negative advantages the loss is at most -c * advantage
      (Ye et al. 2020, arXiv:1912.09729, equation 5).
  """

  low: jax.Array | float = 0.2
  high: jax.Array | float = 0.28
  dual: jax.Array | float = 10.0


class PolicySums(NamedTuple):
  """Sums over the tokens that carry loss; [] float32 each.

  Divide by `tokens` of the *whole* batch, however it was split, for token
  means. Sums of several parts add up, except the maximum.

  Attributes:
    tokens: number of tokens that carry loss.
    loss: policy loss.
    clipped: tokens at which the clip of the ratio binds.
    dual_clipped: tokens at which the dual clip binds.
    kl: old minus new log-prob; its mean estimates KL(old || new).
    abs_log_prob_diff: |new - old| log-prob.
    max_abs_log_prob_diff: the largest of these.
    entropy: entropy of the policy, nats.
  """

  tokens: jax.Array
  loss: jax.Array
  clipped: jax.Array
  dual_clipped: jax.Array
  kl: jax.Array
  abs_log_prob_diff: jax.Array
  max_abs_log_prob_diff: jax.Array
  entropy: jax.Array


def zero_sums() -> PolicySums:
  """The sums of no token."""
  return PolicySums(*(jnp.zeros((), jnp.float32) for _ in PolicySums._fields))


def add_sums(a: PolicySums, b: PolicySums) -> PolicySums:
  """The sums of both parts."""
  total = PolicySums(*(x + y for x, y in zip(a, b, strict=True)))
  largest = jnp.maximum(a.max_abs_log_prob_diff, b.max_abs_log_prob_diff)
  return total._replace(max_abs_log_prob_diff=largest)


def policy_sums(
  log_probs: jax.Array,
  old_log_probs: jax.Array,
  advantages: jax.Array,
  mask: jax.Array,
  clip: ClipRange,
  entropy: jax.Array | None = None,
) -> PolicySums:
  """Sums of the DAPO loss (arXiv:2503.14476, equation 8) and its metrics.

  loss = max(-A r, -A clip(r, 1 - low, 1 + high)), and where A < 0 at most
  -A c, with r = exp(new - old) and old the log-prob of the policy that sampled.

  Args:
    log_probs: [N] under the policy that is trained; the gradient goes here.
    old_log_probs: [N] under the policy that sampled.
    advantages: [N].
    mask: [N] bool, tokens that carry loss. What stands elsewhere, NaN included,
      has no effect.
    clip: see ClipRange.
    entropy: [N] or None; only summed.
  """
  chex.assert_equal_shape([log_probs, old_log_probs, advantages, mask])
  chex.assert_type(mask, bool)
  # Masking before the arithmetic: 0 * NaN is NaN, in the gradient as well.
  log_probs, old_log_probs, advantages = (
    jnp.where(mask, x, 0) for x in (log_probs, old_log_probs, advantages)
  )
  log_ratio = log_probs - old_log_probs
  ratio = jnp.exp(jnp.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
  plain = -advantages * ratio
  clipped = -advantages * jnp.clip(ratio, 1 - clip.low, 1 + clip.high)
  single = jnp.maximum(plain, clipped)
  bound = -advantages * clip.dual
  negative = advantages < 0
  loss = jnp.where(negative, jnp.minimum(single, bound), single)

  def total(x):
    return jnp.sum(jnp.where(mask, x, 0), dtype=log_probs.dtype)

  distance = jnp.abs(jax.lax.stop_gradient(log_ratio))
  return PolicySums(
    tokens=total(mask),
    loss=total(loss),
    clipped=total(clipped > plain),
    dual_clipped=total(negative & (single > bound)),
    kl=total(-jax.lax.stop_gradient(log_ratio)),
    abs_log_prob_diff=total(distance),
    max_abs_log_prob_diff=jnp.max(jnp.where(mask, distance, 0), initial=0),
    entropy=jnp.zeros((), log_probs.dtype)
    if entropy is None
    else total(entropy),
  )
