"""Each law refuses a policy that breaks it, so the suite can fail."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.scheduling import (
  Fleet,
  Phase,
  SchedulingPolicy,
  by_phase,
  make_context,
  make_decision,
)
from hybridrl.testing import policy_conformance
from hybridrl.testing.policy_conformance import LAWS

_FLEET = Fleet(
  num_standalone=1,
  num_hybrid=2,
  required_samples=4,
  trigger_parameter_sync_step=2,
  staleness_threshold=0.5,
  max_required_samples=12,
)
_CONTEXTS = tuple(
  make_context(phase=phase, fleet=_FLEET, backlog_samples=backlog)
  for backlog in (2, 7, 12)
  for phase in Phase
)


class _State(NamedTuple):
  count: jax.Array


def _policy(handler, init=lambda fleet: _State(jnp.int32(0))):
  decide = by_phase(sync_end=handler, step_start=handler, event=handler)
  return SchedulingPolicy(init, decide)


def _counting():
  """Obeys all laws but needs constrain for its last."""

  def handler(context, state):
    del context
    return make_decision(lend=state.count), _State(state.count + 1)

  return _policy(handler)


def _weakly_typed():
  """Its first state is weakly typed, so a jitted decide compiles twice."""

  def handler(context, state):
    ratio = jnp.asarray(state.count, jnp.float32) + 0.0 * context.elapsed_s
    return make_decision(lend=context.num_hybrid), _State(ratio)

  return _policy(handler, lambda fleet: _State(jnp.asarray(0.5)))


def _changes_dtype():
  def handler(context, state):
    return make_decision(lend=0), _State(state.count + context.elapsed_s)

  return _policy(handler)


def _remembers_in_python():
  calls = []

  def handler(context, state):
    del context
    calls.append(1)
    return make_decision(lend=len(calls)), state

  return _policy(handler)


def _changes_structure():
  """Each call wraps the state once more, so each call compiles."""

  def handler(context, state):
    del context
    return make_decision(lend=0), _State(state)

  return _policy(handler)


def _differs_under_jit():
  def handler(context, state):
    traced = isinstance(context.backlog_samples, jax.core.Tracer)
    return make_decision(lend=int(traced)), state

  return _policy(handler)


def _branches_in_python():
  def handler(context, state):
    return make_decision(lend=1 if context.backlog_samples > 3 else 0), state

  return _policy(handler)


def _forgets_the_ratio(deactivate_ratio=0.3):
  """Reads its parameter in Python, so it cannot be mapped over it."""

  def handler(context, state):
    del context
    return make_decision(lend=2 if deactivate_ratio > 0.5 else 0), state

  return _policy(handler)


@pytest.mark.parametrize("law", sorted(LAWS))
def test_a_good_policy_passes(law):
  LAWS[law](_counting, _FLEET, _CONTEXTS)


@pytest.mark.parametrize(
  "law, factory",
  [
    ("state_is_stable", _changes_dtype),
    ("state_is_stable", _changes_structure),
    ("state_is_stable", _weakly_typed),
    ("one_compilation_per_phase", _changes_structure),
    ("one_compilation_per_phase", _weakly_typed),
    ("jit_changes_nothing", _differs_under_jit),
    ("jit_changes_nothing", _branches_in_python),
    ("scan_equals_loop", _remembers_in_python),
    ("scan_equals_loop", _changes_dtype),
    ("vmap_equals_loop", _forgets_the_ratio),
    ("vmap_equals_loop", _branches_in_python),
    ("checkpoint_keeps_decisions", _remembers_in_python),
  ],
)
def test_a_bad_policy_is_refused(law, factory):
  with pytest.raises((AssertionError, TypeError, jax.errors.JAXTypeError)):
    LAWS[law](factory, _FLEET, _CONTEXTS)


@pytest.mark.parametrize(
  "law", ["decisions_are_possible", "only_hybrid_makes_progress"]
)
def test_without_constrain_the_laws_of_decisions_fail(law, monkeypatch):
  def unconstrained(policy):
    def step(context, state):
      raw, state = policy.decide(context, state)
      return raw, raw, state

    return step

  monkeypatch.setattr(policy_conformance, "constrained_step", unconstrained)

  def greedy():
    def handler(context, state):
      return make_decision(lend=context.num_hybrid + 1), state

    return _policy(handler)

  def idle():
    return _policy(lambda context, state: (make_decision(lend=0), state))

  factory = greedy if law == "decisions_are_possible" else idle
  with pytest.raises(AssertionError):
    LAWS[law](factory, _FLEET, _CONTEXTS)


def test_stack_adds_one_axis():
  stacked = policy_conformance.stack(
    [c for c in _CONTEXTS if c.phase == Phase.EVENT]
  )
  np.testing.assert_array_equal(stacked.backlog_samples, [2, 7, 12])
  assert stacked.phase == Phase.EVENT
  assert stacked.step_wait_times.shape[0] == 3
