"""The seed's `default`: adaptive ratio and a cost/benefit gate (section 3.1).

Where nothing has been measured yet, it assumes INITIAL_SECONDS_PER_SAMPLE and
INITIAL_SWITCH_COST_S; the first measurement of each replaces the assumption
(case S9). Three points differ from the published implementation on purpose:
the ratio has a lower bound, min(given ratio, R / S) (case S1); the surplus is
the measured backlog (case S6); switch costs of the first cycle are kept.
"""

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

# Pessimistic on purpose: before any rate is known, lend.
INITIAL_SECONDS_PER_SAMPLE = 1000.0
# The seed's fallback with no history.
INITIAL_SWITCH_COST_S = 10.0
# Cycles whose switch costs are averaged.
SWITCH_COST_HISTORY = 3
# Bounds of one step of the ratio, as shares of S: up after waits, by the share
# that was waited for; down by the smallest step after none.
MIN_RATIO_STEP = 0.02
MAX_RATIO_STEP = 0.10


class DefaultState(NamedTuple):
  """State of `default`."""

  ratio: jax.Array  # [] float32, deactivate ratio
  seconds_per_sample: jax.Array  # [] float32, last known
  switch_costs_s: jax.Array  # [SWITCH_COST_HISTORY] float32, latest last; 0: -
  num_cycles: jax.Array  # [] int32, CYCLE_ENDs seen


def default(deactivate_ratio: Any = 0.3) -> SchedulingPolicy:
  """Lends when samples are missing and waiting costs more than switching.

  Args:
    deactivate_ratio: share of S to wait for before the hybrid replicas return
      to training, at first; in (0, 1].

  Raises:
    ValueError: deactivate_ratio is out of range.
  """
  check_ratio(deactivate_ratio)

  def init(fleet: Fleet) -> DefaultState:
    return DefaultState(
      ratio=initial_ratio(deactivate_ratio, fleet),
      seconds_per_sample=jnp.float32(INITIAL_SECONDS_PER_SAMPLE),
      switch_costs_s=jnp.zeros(SWITCH_COST_HISTORY, jnp.float32),
      num_cycles=jnp.int32(0),
    )

  def cycle_end(
    context: Context, state: DefaultState
  ) -> tuple[Decision, DefaultState]:
    state = DefaultState(
      ratio=_next_ratio(context, state, deactivate_ratio),
      seconds_per_sample=_seconds_per_sample(context, state),
      switch_costs_s=_next_switch_costs(context, state),
      num_cycles=state.num_cycles + 1,
    )
    return make_decision(lend=context.hybrid_active), state

  return SchedulingPolicy(
    init,
    by_phase(
      sync_end=_sync_end,
      step_start=_step_start,
      event=_step_start,
      cycle_end=cycle_end,
    ),
  )


def _sync_end(
  context: Context, state: DefaultState
) -> tuple[Decision, DefaultState]:
  """Lends if samples are missing and that costs more than switching."""
  seconds_per_sample = _seconds_per_sample(context, state)
  gap = sample_gap(state.ratio, context)
  behind = is_behind(gap)
  pays = gap * seconds_per_sample > _switch_cost_s(state)
  lend = (behind & pays) | context.only_hybrid
  reason = jnp.where(
    behind,
    jnp.where(pays, Reason.LEND_BEHIND, Reason.STAY_TOO_COSTLY),
    Reason.STAY_ON_PACE,
  )
  decision = make_decision(
    lend=jnp.where(lend, context.num_hybrid, 0),
    wait_samples=jnp.where(lend, wait_threshold(state.ratio, context), 0),
    rebalance=lend,
    reason=jnp.where(context.only_hybrid, Reason.ONLY_HYBRID, reason),
  )
  return decision, state._replace(seconds_per_sample=seconds_per_sample)


def _step_start(
  context: Context, state: DefaultState
) -> tuple[Decision, DefaultState]:
  """Keeps lending until the ratio's share of S is there; also on events."""
  return reclaim_at(context, wait_threshold(state.ratio, context)), state


def _next_ratio(
  context: Context, state: DefaultState, given_ratio: Any
) -> jax.Array:
  """Up by what had to be waited for, down by the smallest step after none."""
  waited = jnp.sum(context.step_wait_samples)
  share = waited / context.step_required_samples
  step = jnp.where(
    waited > 0,
    jnp.clip(share, MIN_RATIO_STEP, MAX_RATIO_STEP),
    -MIN_RATIO_STEP,
  )
  floor = jnp.minimum(
    jnp.asarray(given_ratio, jnp.float32),
    context.required_samples / context.step_required_samples,
  )
  # The queue is empty when a run begins, so the waits of the first cycle say
  # nothing about the load.
  frozen = context.only_hybrid | (state.num_cycles == 0)
  return jnp.where(
    frozen, state.ratio, jnp.clip(state.ratio + step, floor, 1.0)
  )


def _next_switch_costs(context: Context, state: DefaultState) -> jax.Array:
  """The last costs, with this cycle's if it had any."""
  cost = context.last_activate_duration_s + context.last_deactivate_duration_s
  return jnp.where(
    cost > 0,
    jnp.append(state.switch_costs_s[1:], cost),
    state.switch_costs_s,
  )


def _seconds_per_sample(context: Context, state: DefaultState) -> jax.Array:
  """Seconds per waited sample of this cycle, else the last known."""
  seconds = jnp.sum(context.step_wait_times)
  samples = jnp.sum(context.step_wait_samples)
  measured = (seconds > 0) & (samples > 0)
  return jnp.where(
    measured, seconds / jnp.maximum(samples, 1), state.seconds_per_sample
  )


def _switch_cost_s(state: DefaultState) -> jax.Array:
  """Mean of the known per-cycle switch costs."""
  known = state.switch_costs_s > 0
  mean = jnp.sum(state.switch_costs_s) / jnp.maximum(jnp.sum(known), 1)
  return jnp.where(jnp.any(known), mean, INITIAL_SWITCH_COST_S)
