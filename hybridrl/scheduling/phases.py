"""Builds decide() from one handler a phase, and the step that callers run."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hybridrl.scheduling.constraints import constrain
from hybridrl.scheduling.context import Context
from hybridrl.scheduling.types import (
  DecideFn,
  Decision,
  Phase,
  Reason,
  make_decision,
)

Handler = Callable[[Context, Any], tuple[Decision, Any]]


def hold(context: Context, state: Any) -> tuple[Decision, Any]:
  """Leaves fleet and state as they are."""
  return make_decision(lend=context.hybrid_active, reason=Reason.HOLD), state


def by_phase(
  *,
  sync_end: Handler = hold,
  step_start: Handler = hold,
  event: Handler = hold,
  cycle_end: Handler = hold,
) -> DecideFn:
  """A decide function from handlers; an absent one keeps fleet and state.

  The phase is static, so a jitted decide compiles once per phase and traces
  only the handler of that phase.
  """
  handlers = {
    Phase.SYNC_END: sync_end,
    Phase.STEP_START: step_start,
    Phase.EVENT: event,
    Phase.CYCLE_END: cycle_end,
  }

  def decide(context: Context, state: Any) -> tuple[Decision, Any]:
    # NumPy leaves would compute in float64 where a jitted call computes in
    # float32; as JAX arrays both take the same path.
    context = jax.tree.map(jnp.asarray, context)
    return handlers[context.phase](context, state)

  return decide


def constrained_step(
  policy: Any,
) -> Callable[[Context, Any], tuple[Decision, Decision, Any]]:
  """(context, state) -> (raw decision, constrained decision, next state).

  Jitted unless the policy is a class in the seed's style. It compiles once per
  phase; runtime and tests call nothing else.
  """

  def step(context: Context, state: Any) -> tuple[Decision, Decision, Any]:
    raw, state = policy.decide(context, state)
    return raw, constrain(context, raw), state

  return jax.jit(step) if policy.jittable else step
