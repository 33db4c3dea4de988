"""The seed's `fixed_ratio`: the gap test alone, no adaptation (section 3.3)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hybridrl.scheduling.checks import check_ratio
from hybridrl.scheduling.context import Context
from hybridrl.scheduling.phases import by_phase
from hybridrl.scheduling.ratio import (
  initial_ratio,
  is_behind,
  reclaim_at,
  sample_gap,
  wait_threshold,
)
from hybridrl.scheduling.types import (
  Decision,
  Fleet,
  Reason,
  SchedulingPolicy,
  make_decision,
)


class FixedRatioState(NamedTuple):
  """State of `fixed_ratio`."""

  ratio: jax.Array  # [] float32, never changes


def fixed_ratio(deactivate_ratio: Any = 0.3) -> SchedulingPolicy:
  """Lends whenever samples are missing, until a fixed share of S is there.

  Args:
    deactivate_ratio: share of S to wait for before the hybrid replicas return
      to training; in (0, 1]. In a fleet without standalone replicas it is 1.

  Raises:
    ValueError: deactivate_ratio is out of range.
  """
  check_ratio(deactivate_ratio)

  def init(fleet: Fleet) -> FixedRatioState:
    return FixedRatioState(ratio=initial_ratio(deactivate_ratio, fleet))

  def sync_end(
    context: Context, state: FixedRatioState
  ) -> tuple[Decision, FixedRatioState]:
    behind = is_behind(sample_gap(state.ratio, context))
    lend = behind | context.only_hybrid
    reason = jnp.where(behind, Reason.LEND_BEHIND, Reason.STAY_ON_PACE)
    decision = make_decision(
      lend=jnp.where(lend, context.num_hybrid, 0),
      wait_samples=jnp.where(lend, wait_threshold(state.ratio, context), 0),
      rebalance=lend,
      reason=jnp.where(context.only_hybrid, Reason.ONLY_HYBRID, reason),
    )
    return decision, state

  def step_start(
    context: Context, state: FixedRatioState
  ) -> tuple[Decision, FixedRatioState]:
    return reclaim_at(context, wait_threshold(state.ratio, context)), state

  return SchedulingPolicy(
    init, by_phase(sync_end=sync_end, step_start=step_start, event=step_start)
  )
