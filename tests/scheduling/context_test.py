import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from hybridrl.scheduling import (
  K_MAX,
  UNBOUNDED_SAMPLES,
  Fleet,
  Phase,
  make_context,
)
from hybridrl.testing import strategies


def _fleet(**changes):
  values = {
    "num_standalone": 2,
    "num_hybrid": 3,
    "required_samples": 16,
    "trigger_parameter_sync_step": 4,
    "staleness_threshold": 0.5,
    "max_required_samples": 96,
  }
  return Fleet(**(values | changes))


def _signature(context):
  leaves, structure = jax.tree.flatten(context)
  return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def test_every_field_is_cast():
  context = make_context(phase=Phase.EVENT, fleet=_fleet())
  for name, leaf in vars(context).items():
    if name == "phase":
      continue
    times = name.endswith(("_s", "_times")) or name == "staleness_threshold"
    expected = "bool" if name == "only_hybrid" else "int32"
    assert leaf.dtype == ("float32" if times else expected), name
    per_step = name in (
      "step_wait_times",
      "step_wait_samples",
      "step_train_times",
    )
    assert leaf.shape == ((K_MAX,) if per_step else ()), name


def test_no_value_traces_again():
  """Python numbers, NumPy and JAX values give one signature."""
  traces = []

  @jax.jit
  def look(context):
    traces.append(context.phase)
    return context.backlog_samples

  for value in (0, 3, np.int64(3), jnp.int32(3), np.float32(3), True):
    for waits in ([], [1], (1.5, 2), np.ones(4), jnp.ones(4, jnp.float32)):
      for standalone in (0, 2):
        fleet = _fleet(num_standalone=standalone)
        look(
          make_context(
            phase=Phase.EVENT,
            fleet=fleet,
            backlog_samples=value,
            step_wait_times=waits,
          )
        )
  assert traces == [Phase.EVENT]


def test_traced_facts_and_fleets_are_accepted():
  def surplus(backlog, required):
    context = make_context(
      phase=Phase.SYNC_END,
      fleet=_fleet(required_samples=required, num_standalone=backlog),
      backlog_samples=backlog,
      total_generated_samples=backlog + 5,
      step_wait_times=jnp.ones(3) * backlog,
    )
    expected = make_context(phase=Phase.SYNC_END, fleet=_fleet())
    assert _signature(context) == _signature(expected)
    return (
      context.step_required_samples,
      context.expected_samples,
      context.arrivable_samples,
      context.only_hybrid,
      context.step_wait_times.sum(),
    )

  batched = jax.jit(jax.vmap(surplus))(jnp.arange(3), jnp.full(3, 8))
  np.testing.assert_array_equal(batched[0], [32, 32, 32])
  np.testing.assert_array_equal(batched[1], [5, 5, 5])
  np.testing.assert_array_equal(batched[2], [96, 96, 96])
  np.testing.assert_array_equal(batched[3], [True, False, False])
  np.testing.assert_array_equal(batched[4], [0, 3, 6])


def test_what_is_left_out_follows_from_the_rest():
  context = make_context(
    phase=Phase.STEP_START,
    fleet=_fleet(),
    total_generated_samples=150,
    backlog_samples=10,
    in_flight_samples=20,
    consumed_in_cycle=16,
    step_wait_times=[1.0, 2.0],
  )
  assert context.step_required_samples == 64
  assert context.expected_samples == 140
  assert context.buffer_samples == 70
  assert context.healthy_standalone == 2
  assert context.healthy_hybrid == 3
  assert context.admissible_samples == 50
  assert context.arrivable_samples == 80
  assert context.remaining_samples == UNBOUNDED_SAMPLES
  assert context.num_micro_steps == 2
  near_end = make_context(
    phase=Phase.STEP_START,
    fleet=_fleet(),
    backlog_samples=10,
    in_flight_samples=20,
    remaining_samples=35,
  )
  assert near_end.arrivable_samples == 35


@settings(max_examples=50, deadline=None)
@given(strategies.contexts())
def test_drawn_contexts_are_consistent(context):
  assert context.backlog_samples <= context.arrivable_samples
  assert context.arrivable_samples <= context.max_required_samples
  assert context.hybrid_active <= context.healthy_hybrid <= context.num_hybrid
  reference = make_context(phase=context.phase, fleet=_fleet())
  assert _signature(context) == _signature(reference)


@pytest.mark.parametrize(
  "facts, told",
  [
    ({"backlog_samples": 1.5}, "backlog_samples is 1.5.*whole number"),
    ({"backlog_samples": 2**31}, "backlog_samples is 2147483648.*int32"),
    ({"elapsed_s": float("nan")}, "elapsed_s is nan.*NaN"),
    ({"elapsed_s": -0.5}, "elapsed_s is -0.5.*negative"),
    ({"in_flight_samples": -1}, "in_flight_samples is -1.*negative"),
    ({"elapsed_s": "soon"}, "elapsed_s is 'soon'"),
    ({"step_wait_times": [0.0] * (K_MAX + 1)}, "step_wait_times has 65"),
    ({"step_wait_times": [[1.0]]}, "step_wait_times has shape"),
  ],
)
def test_a_bad_fact_is_named(facts, told):
  with pytest.raises(ValueError, match=told):
    make_context(phase=Phase.EVENT, fleet=_fleet(), **facts)


def test_an_unknown_fact_is_named():
  with pytest.raises(TypeError, match="backlog_sample'.*backlog_samples"):
    make_context(phase=Phase.EVENT, fleet=_fleet(), backlog_sample=3)


@pytest.mark.parametrize("k", [0, -1, K_MAX + 1])
def test_a_cycle_beyond_the_capacity_is_refused(k):
  with pytest.raises(ValueError, match=f"trigger_parameter_sync_step is {k}"):
    make_context(phase=Phase.EVENT, fleet=_fleet(trigger_parameter_sync_step=k))
