"""The arithmetic that the policies with a deactivate ratio share.

Source: the seed's section 3 and, where that is silent, its published
implementation.
"""

from typing import Any

import jax
import jax.numpy as jnp

from hybridrl.scheduling.context import Context
from hybridrl.scheduling.types import (
  Decision,
  Fleet,
  Reason,
  make_decision,
)

# ratio * S in float32 can miss a whole number by a rounding error, which must
# neither cost a sample nor depend on whether the compiler fuses the product
# with what follows. Larger than that error for S up to about 10,000,
# smaller than any step of a ratio that a person would type.
THRESHOLD_GUARD = 1e-3


def initial_ratio(deactivate_ratio: Any, fleet: Fleet) -> jax.Array:
  """[] float32, the given ratio; 1 in a fleet without standalone replicas."""
  return jnp.where(
    jnp.asarray(fleet.num_standalone) == 0,
    jnp.float32(1.0),
    jnp.asarray(deactivate_ratio, jnp.float32),
  )


def wait_threshold(ratio: jax.Array, context: Context) -> jax.Array:
  """[] int32, T = floor(ratio * S), robust against float representation."""
  exact = ratio * context.step_required_samples
  return jnp.floor(exact + THRESHOLD_GUARD).astype(jnp.int32)


def sample_gap(ratio: jax.Array, context: Context) -> jax.Array:
  """[] float32, samples by which generation is behind: ratio * S - surplus.

  The surplus is the measured backlog (case S6), never inferred.
  """
  return ratio * context.step_required_samples - context.backlog_samples


def is_behind(gap: jax.Array) -> jax.Array:
  """[] bool, gap > 0, robust against float representation."""
  return gap > THRESHOLD_GUARD


def reclaim_at(context: Context, threshold: jax.Array) -> Decision:
  """Keeps what is lent until the backlog reaches threshold, then reclaims."""
  serving = context.hybrid_active > 0
  keep = serving & (context.backlog_samples < threshold)
  idle = jnp.where(serving, Reason.RECLAIM, Reason.NOTHING_LENT)
  return make_decision(
    lend=jnp.where(keep, context.hybrid_active, 0),
    wait_samples=jnp.where(keep, threshold, 0),
    reason=jnp.where(keep, Reason.WAIT_FOR_SAMPLES, idle),
  )
