import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.scheduling import (
  Fleet,
  Phase,
  Reason,
  SchedulingPolicy,
  by_phase,
  constrained_step,
  make_context,
  make_decision,
)

_FLEET = Fleet(
  num_standalone=1,
  num_hybrid=4,
  required_samples=4,
  trigger_parameter_sync_step=2,
  staleness_threshold=0.0,
  max_required_samples=8,
)


def _lend(n):
  def handler(context, state):
    return make_decision(lend=n, reason=1000 + n), state + n

  return handler


def test_each_phase_has_its_handler():
  decide = by_phase(
    sync_end=_lend(1), step_start=_lend(2), event=_lend(3), cycle_end=_lend(4)
  )
  for n, phase in enumerate(Phase, start=1):
    expected = {"SYNC_END": 1, "STEP_START": 2, "EVENT": 3, "CYCLE_END": 4}
    context = make_context(phase=phase, fleet=_FLEET)
    decision, state = decide(context, jnp.int32(10))
    assert int(decision.lend) == expected[phase.name]
    assert int(state) == 10 + n


@pytest.mark.parametrize("phase", list(Phase))
def test_an_absent_handler_keeps_fleet_and_state(phase):
  context = make_context(phase=phase, fleet=_FLEET, hybrid_active=3)
  decision, state = by_phase()(context, jnp.int32(10))
  assert int(decision.lend) == 3
  assert int(decision.reason) == Reason.HOLD
  assert np.isinf(decision.recheck_s)
  assert int(state) == 10


def test_handlers_compute_in_float32_with_and_without_jit():
  def handler(context, state):
    del state
    rate = context.elapsed_s / context.backlog_samples
    return make_decision(lend=0), rate

  decide = by_phase(event=handler)
  context = make_context(
    phase=Phase.EVENT, fleet=_FLEET, elapsed_s=1.0, backlog_samples=3
  )
  _, eager = decide(context, jnp.float32(0))
  _, jitted = jax.jit(decide)(context, jnp.float32(0))
  assert eager.dtype == jitted.dtype == jnp.float32
  assert float(eager) == float(jitted)


def test_constrained_step_gives_both_decisions():
  policy = SchedulingPolicy(
    lambda fleet: jnp.int32(0), by_phase(event=_lend(9))
  )
  context = make_context(phase=Phase.EVENT, fleet=_FLEET, healthy_hybrid=2)
  raw, decision, state = constrained_step(policy)(context, jnp.int32(0))
  assert (int(raw.lend), int(decision.lend), int(state)) == (9, 2, 9)
  assert int(raw.reason) == 1009
  assert int(decision.reason) == Reason.LIMIT_NO_HYBRID
