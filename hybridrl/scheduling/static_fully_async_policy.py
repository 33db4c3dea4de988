"""The seed's `static_fully_async`: no lending (section 3.2).

Hybrid replicas that serve are reclaimed at once, without waiting for samples,
and never lent again. In a fleet without standalone replicas `constrain` lends
for as long as a cycle lacks samples (case S3): classic colocated training.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from hybridrl.scheduling.context import Context
from hybridrl.scheduling.phases import by_phase
from hybridrl.scheduling.ratio import reclaim_at
from hybridrl.scheduling.types import (
  Decision,
  Fleet,
  Reason,
  SchedulingPolicy,
  make_decision,
)


class StaticFullyAsyncState(NamedTuple):
  """`static_fully_async` remembers nothing."""


def static_fully_async() -> SchedulingPolicy:
  """The baseline: the trainer's devices only train."""

  def init(fleet: Fleet) -> StaticFullyAsyncState:
    del fleet
    return StaticFullyAsyncState()

  def sync_end(context: Context, state: Any) -> tuple[Decision, Any]:
    del context
    return make_decision(lend=0, reason=Reason.NEVER), state

  def step_start(context: Context, state: Any) -> tuple[Decision, Any]:
    return reclaim_at(context, jnp.int32(0)), state

  return SchedulingPolicy(
    init, by_phase(sync_end=sync_end, step_start=step_start, event=step_start)
  )
