"""The laws that every policy obeys, as functions that raise AssertionError.

LAWS holds those for policies that can be traced; EAGER_LAWS those that also
hold for classes in the seed's style. A law takes a factory (called without
arguments), a fleet and contexts of that fleet.

  state_is_stable: the state keeps its structure, shapes, dtypes, weak types.
  one_compilation_per_phase: for all contexts.
  jit_changes_nothing: jitted and eager decisions and states are equal.
  scan_equals_loop: for the contexts of each phase.
  vmap_equals_loop: over parameters where the factory has one, and contexts.
  decisions_are_possible: the laws of constrain, on constrain(decide).
  checkpoint_keeps_decisions: a dumped and loaded state decides alike.
  only_hybrid_makes_progress: three cycles without standalone replicas (S3).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from hybridrl.accounting import max_required_samples
from hybridrl.scheduling import (
  MAX_DRAIN_S,
  MIN_RECHECK_S,
  Context,
  Decision,
  Fleet,
  Phase,
  constrain,
  constrained_step,
  dump_state,
  load_state,
  missing_samples,
)
from hybridrl.scheduling.seed_style import accepted_names
from hybridrl.testing.policy_drive import Drive

Law = Callable[[Callable[..., Any], Fleet, Sequence[Context]], None]


def stack(contexts: Sequence[Context]) -> Context:
  """Contexts of one phase with a leading axis."""
  return jax.tree.map(lambda *leaves: np.stack(leaves), *contexts)


def state_is_stable(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  policy = factory()
  state = policy.init(fleet)
  expected = _signature(state)
  jitted = jax.jit(policy.decide)
  for context in contexts:
    for decide in (policy.decide, jitted):
      _, next_state = decide(context, state)
      assert _signature(next_state) == expected, (
        f"{context.phase.name} changes the state from {expected} to "
        f"{_signature(next_state)}"
      )
    _, state = policy.decide(context, state)


def one_compilation_per_phase(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  policy = factory()
  traced: list[Phase] = []

  def decide(context: Context, state: Any) -> tuple[Decision, Any]:
    traced.append(context.phase)
    return policy.decide(context, state)

  jitted = jax.jit(decide)
  state = policy.init(fleet)
  for context in contexts:
    _, state = jitted(context, state)
  assert sorted(traced) == sorted({c.phase for c in contexts}), traced


def jit_changes_nothing(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  policy = factory()
  jitted = jax.jit(policy.decide)
  state = jitted_state = policy.init(fleet)
  for context in contexts:
    decision, state = policy.decide(context, state)
    jitted_decision, jitted_state = jitted(context, jitted_state)
    _assert_same(decision, jitted_decision)
    # XLA may contract a product and a sum; decisions must still agree.
    _assert_same(state, jitted_state, rtol=1e-6)


def scan_equals_loop(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  policy = factory()
  for phase in Phase:
    of_phase = [c for c in contexts if c.phase == phase]
    if not of_phase:
      continue

    def body(state: Any, context: Context) -> tuple[Any, Decision]:
      decision, state = policy.decide(context, state)
      return state, decision

    scanned_state, scanned = jax.lax.scan(
      body, policy.init(fleet), stack(of_phase)
    )
    state, decisions = policy.init(fleet), []
    for context in of_phase:
      decision, state = policy.decide(context, state)
      decisions.append(decision)
    _assert_same(scanned, jax.tree.map(lambda *x: np.stack(x), *decisions))
    _assert_same(scanned_state, state, rtol=1e-6)


def vmap_equals_loop(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  ratios = np.asarray([0.05, 0.3, 1.0], np.float32)
  has_ratio = "deactivate_ratio" in accepted_names(factory)

  def first(ratio: Any, context: Context) -> Any:
    policy = factory(deactivate_ratio=ratio) if has_ratio else factory()
    return policy.decide(context, policy.init(fleet))

  for phase in Phase:
    of_phase = [c for c in contexts if c.phase == phase]
    if not of_phase:
      continue
    over_contexts = jax.vmap(first, in_axes=(None, 0))
    over_both = jax.jit(jax.vmap(over_contexts, in_axes=(0, None)))
    batched = jax.tree.map(np.asarray, over_both(ratios, stack(of_phase)))
    single = jax.jit(first)
    for i, ratio in enumerate(ratios):
      for j, context in enumerate(of_phase):
        picked = jax.tree.map(lambda x, i=i, j=j: x[i, j], batched)
        _assert_same(picked, single(ratio, context), rtol=1e-6)


def decisions_are_possible(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  policy = factory()
  step = constrained_step(policy)
  state = policy.init(fleet)
  for context in contexts:
    _, decision, state = step(context, state)
    assert_possible(context, decision)


def checkpoint_keeps_decisions(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  policy = factory()
  state = policy.init(fleet)
  for context in contexts:
    saved = json.loads(json.dumps(dump_state(state)))
    restored = load_state(factory(), fleet, saved)
    decision, state = policy.decide(context, state)
    again, restored = policy.decide(context, restored)
    _assert_same(decision, again)
    assert dump_state(state) == dump_state(restored)


def only_hybrid_makes_progress(
  factory: Callable[..., Any], fleet: Fleet, contexts: Sequence[Context]
) -> None:
  del fleet, contexts
  policy = factory()
  step = constrained_step(policy)
  for required, k, staleness in ((4, 1, "0"), (4, 3, "0"), (3, 2, "0.5")):
    only_hybrid = Fleet(
      num_standalone=0,
      num_hybrid=2,
      required_samples=required,
      trigger_parameter_sync_step=k,
      staleness_threshold=float(staleness),
      max_required_samples=max_required_samples(required * k, staleness),
    )
    drive = Drive(
      policy=policy,
      step=step,
      fleet=only_hybrid,
      staleness_text=staleness,
      num_samples=None,
      num_cycles=3,
    ).run()
    assert drive.cycles == 3, drive.cycles
    assert len(drive.trained) == 3 * required * k


EAGER_LAWS: Mapping[str, Law] = MappingProxyType(
  {
    "checkpoint_keeps_decisions": checkpoint_keeps_decisions,
    "decisions_are_possible": decisions_are_possible,
    "only_hybrid_makes_progress": only_hybrid_makes_progress,
  }
)
LAWS: Mapping[str, Law] = MappingProxyType(
  {
    **EAGER_LAWS,
    "jit_changes_nothing": jit_changes_nothing,
    "one_compilation_per_phase": one_compilation_per_phase,
    "scan_equals_loop": scan_equals_loop,
    "state_is_stable": state_is_stable,
    "vmap_equals_loop": vmap_equals_loop,
  }
)


def assert_possible(context: Context, decision: Decision) -> None:
  """The laws of constrain; see scheduling/constraints.py."""
  lend, wait = int(decision.lend), int(decision.wait_samples)
  backlog = int(context.backlog_samples)
  arrivable = int(context.arrivable_samples)
  healthy = int(context.healthy_hybrid)
  told = f"lend {lend}, wait {wait}, backlog {backlog}, arrivable {arrivable}"
  assert 0 <= lend <= healthy, told
  assert lend == 0 or arrivable > backlog, told
  assert wait == 0 or backlog < wait <= arrivable, told
  assert lend == 0 or wait > 0, told
  if int(context.healthy_standalone) == 0 and healthy and arrivable > backlog:
    assert lend > 0 or backlog >= int(missing_samples(context)), told
  assert float(decision.recheck_s) >= np.float32(MIN_RECHECK_S)
  assert 0 <= float(decision.drain_s) <= MAX_DRAIN_S
  assert not math.isnan(float(decision.recheck_s))
  _assert_same(constrain(context, decision), decision)


def _signature(state: Any) -> tuple[Any, ...]:
  leaves, structure = jax.tree.flatten(state)
  return structure, tuple(jax.typeof(leaf) for leaf in leaves)


def _assert_same(actual: Any, expected: Any, rtol: float = 0.0) -> None:
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
  for a, b in leaves:
    a, b = np.asarray(a), np.asarray(b)
    if not np.array_equal(a, b):
      np.testing.assert_allclose(a, b, rtol=rtol)
