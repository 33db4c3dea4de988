"""What a policy is told, and the one function that casts it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from hybridrl.scheduling.checks import is_traced
from hybridrl.scheduling.types import (
  K_MAX,
  UNBOUNDED_SAMPLES,
  Fleet,
  Phase,
)


@struct.dataclass(kw_only=True)
class Context:
  """What is known when a policy is asked.

  All leaves are scalars or [K_MAX] arrays: counts int32, times float32 seconds
  since the cycle began, durations float32 seconds. Array entries from
  num_micro_steps on are 0. At SYNC_END the admission facts (admissible,
  arrivable) are those of the cycle that is about to begin, because that is
  what the decision is about.

  Attributes of the seed's table (section 6, step 4):
    required_samples: R.
    trigger_parameter_sync_step: k.
    step_required_samples: S = R * k.
    total_generated_samples: samples finished since training began.
    expected_samples: samples needed so far; measured as finished minus
      backlog, so that generated - expected is the backlog (case S6).
    buffer_samples: floor(expected_samples * staleness_threshold), as the
      seed's document says; its implementation uses S * staleness_threshold.
    step_wait_times: [K_MAX] seconds that each collection of this cycle waited.
    step_wait_samples: [K_MAX] samples that each collection had to wait for,
      max(0, R - backlog at its start).
    only_hybrid: [] bool, the fleet has no standalone replica.
    last_activate_duration_s: seconds spent on activation in this cycle; 0 if
      there was none.
    last_deactivate_duration_s: likewise for reclaiming.

  Further attributes:
    phase: static Phase.
    global_steps: micro-steps trained so far.
    param_version: version of the last published weights.
    num_standalone, num_hybrid: replicas of the fleet.
    healthy_standalone, healthy_hybrid: replicas that can serve.
    hybrid_active: hybrid replicas that serve now.
    max_required_samples: bound of admitted samples a cycle.
    staleness_threshold: float32.
    backlog_samples: finished samples that wait, measured.
    in_flight_samples: samples being generated or graded.
    admissible_samples: admission budget left.
    arrivable_samples: backlog + in flight + what may still be admitted: what
      can still be in the queue this cycle.
    consumed_in_cycle: samples taken by the trainer since the last sync.
    remaining_samples: samples that the trainer has still to take until the end
      of data; UNBOUNDED_SAMPLES if there is no end.
    num_micro_steps: micro-steps of this cycle that have collected.
    step_train_times: [K_MAX] seconds of each micro-step's training.
    elapsed_s: seconds since the cycle began.
    oldest_in_flight_s: age of the oldest sample in flight; 0 if none.
    standalone_finished, hybrid_finished: samples that each kind of replica
      finished in this cycle.
    standalone_busy_s, hybrid_busy_s: replica-seconds with work in this cycle.
    last_switch_reprefilled_tokens: tokens prefilled again by the last switch.
  """

  phase: Phase = struct.field(pytree_node=False)
  global_steps: jax.Array
  param_version: jax.Array
  required_samples: jax.Array
  trigger_parameter_sync_step: jax.Array
  step_required_samples: jax.Array
  max_required_samples: jax.Array
  staleness_threshold: jax.Array
  total_generated_samples: jax.Array
  expected_samples: jax.Array
  buffer_samples: jax.Array
  only_hybrid: jax.Array
  num_standalone: jax.Array
  num_hybrid: jax.Array
  healthy_standalone: jax.Array
  healthy_hybrid: jax.Array
  hybrid_active: jax.Array
  backlog_samples: jax.Array
  in_flight_samples: jax.Array
  admissible_samples: jax.Array
  arrivable_samples: jax.Array
  consumed_in_cycle: jax.Array
  remaining_samples: jax.Array
  num_micro_steps: jax.Array
  step_wait_times: jax.Array
  step_wait_samples: jax.Array
  step_train_times: jax.Array
  last_activate_duration_s: jax.Array
  last_deactivate_duration_s: jax.Array
  last_switch_reprefilled_tokens: jax.Array
  elapsed_s: jax.Array
  oldest_in_flight_s: jax.Array
  standalone_finished: jax.Array
  hybrid_finished: jax.Array
  standalone_busy_s: jax.Array
  hybrid_busy_s: jax.Array


# Facts that a caller may leave out, with what is then assumed. Facts whose
# default depends on others are filled in by _fill_in.
_DEFAULTS: dict[str, Any] = {
  "global_steps": 0,
  "param_version": 0,
  "hybrid_active": 0,
  "backlog_samples": 0,
  "in_flight_samples": 0,
  "consumed_in_cycle": 0,
  "remaining_samples": UNBOUNDED_SAMPLES,
  "step_wait_times": (),
  "step_wait_samples": (),
  "step_train_times": (),
  "last_activate_duration_s": 0.0,
  "last_deactivate_duration_s": 0.0,
  "last_switch_reprefilled_tokens": 0,
  "elapsed_s": 0.0,
  "oldest_in_flight_s": 0.0,
  "standalone_finished": 0,
  "hybrid_finished": 0,
  "standalone_busy_s": 0.0,
  "hybrid_busy_s": 0.0,
}
_DERIVED = (
  "total_generated_samples",
  "expected_samples",
  "buffer_samples",
  "healthy_standalone",
  "healthy_hybrid",
  "admissible_samples",
  "arrivable_samples",
  "num_micro_steps",
)
_PER_MICRO_STEP = ("step_wait_times", "step_wait_samples", "step_train_times")
_FLOATS = frozenset(
  {
    "staleness_threshold",
    "step_wait_times",
    "step_train_times",
    "last_activate_duration_s",
    "last_deactivate_duration_s",
    "elapsed_s",
    "oldest_in_flight_s",
    "standalone_busy_s",
    "hybrid_busy_s",
  }
)


def make_context(*, phase: Phase | int, fleet: Fleet, **facts: Any) -> Context:
  """Builds a Context and casts every field once.

  Python numbers, lists, NumPy and JAX values (also traced ones) are accepted;
  concrete values become NumPy arrays, which a jitted function takes without a
  transfer of its own.

  Args:
    phase: see Phase.
    fleet: see Fleet.
    **facts: fields of Context by name. Left out, counts and times are 0,
      healthy counts are the fleet's, remaining_samples is unbounded,
      total_generated_samples is backlog_samples,
      expected_samples is total_generated_samples - backlog_samples,
      admissible_samples is max_required_samples minus backlog, in flight and
      consumed, arrivable_samples is backlog + in flight + admissible (within
      remaining_samples), num_micro_steps is the length of step_wait_times.

  Raises:
    TypeError: a fact has no such field.
    ValueError: a value does not fit its field; names field and value.
  """
  known = _DEFAULTS.keys() | set(_DERIVED)
  unknown = sorted(facts.keys() - known)
  if unknown:
    raise TypeError(
      f"make_context() got unknown facts {unknown}; known: {sorted(known)}"
    )
  k = fleet.trigger_parameter_sync_step
  if not is_traced(k) and not 1 <= int(k) <= K_MAX:
    raise ValueError(
      f"trigger_parameter_sync_step is {k}; it must be in [1, {K_MAX}]"
    )
  # Given facts are cast first, so that an error names what the caller gave.
  given = {name: _cast(name, value) for name, value in facts.items()}
  values = _fill_in(fleet, _DEFAULTS | given)
  cast = {
    name: _cast_per_micro_step(name, value)
    if name in _PER_MICRO_STEP
    else _cast(name, value)
    for name, value in values.items()
    if name != "only_hybrid"
  }
  only_hybrid: Any = fleet.num_standalone == 0
  if not isinstance(only_hybrid, jax.Array):
    only_hybrid = np.asarray(only_hybrid, np.bool_)
  return Context(
    phase=Phase(phase),
    only_hybrid=only_hybrid,
    **cast,
  )


def _fill_in(fleet: Fleet, facts: dict[str, Any]) -> dict[str, Any]:
  """Adds the fleet's numbers and the facts that follow from others."""
  backlog, in_flight = facts["backlog_samples"], facts["in_flight_samples"]
  given = facts
  generated = facts.get("total_generated_samples", backlog)
  facts = {
    "total_generated_samples": generated,
    "healthy_standalone": fleet.num_standalone,
    "healthy_hybrid": fleet.num_hybrid,
    "expected_samples": _at_least_0(generated - backlog),
    "admissible_samples": _at_least_0(
      fleet.max_required_samples
      - backlog
      - in_flight
      - facts["consumed_in_cycle"]
    ),
    "num_micro_steps": _length(facts["step_wait_times"]),
    **given,
    "num_standalone": fleet.num_standalone,
    "num_hybrid": fleet.num_hybrid,
    "required_samples": fleet.required_samples,
    "trigger_parameter_sync_step": fleet.trigger_parameter_sync_step,
    "step_required_samples": fleet.step_required_samples,
    "max_required_samples": fleet.max_required_samples,
    "staleness_threshold": fleet.staleness_threshold,
  }
  if "arrivable_samples" not in facts:
    to_come = _at_least_0(facts["remaining_samples"] - backlog - in_flight)
    facts["arrivable_samples"] = (
      backlog + in_flight + _minimum(facts["admissible_samples"], to_come)
    )
  if "buffer_samples" not in facts:
    buffer = facts["expected_samples"] * facts["staleness_threshold"]
    facts["buffer_samples"] = (
      jnp.floor(buffer).astype(jnp.int32)
      if isinstance(buffer, jax.Array)
      else int(buffer)
    )
  return facts


def _at_least_0(value: Any) -> Any:
  return (
    jnp.maximum(value, 0) if isinstance(value, jax.Array) else max(value, 0)
  )


def _minimum(a: Any, b: Any) -> Any:
  if isinstance(a, jax.Array) or isinstance(b, jax.Array):
    return jnp.minimum(a, b)
  return min(a, b)


def _length(values: Any) -> int:
  return int(np.shape(values)[0])


def _cast(name: str, value: Any) -> Any:
  """[] or [n] value of a field, in the field's dtype."""
  dtype = np.float32 if name in _FLOATS else np.int32
  # Nearly all facts of a live run are Python numbers; this path is ten times
  # shorter than the checks below.
  kind = type(value)
  if kind is dtype and value >= 0:
    return value
  if (kind is int or (kind is float and dtype is np.float32)) and (
    0 <= value < 2**31
  ):
    return dtype(value)
  if isinstance(value, jax.Array):
    return jnp.asarray(value, dtype)
  try:
    array = np.asarray(value)
    if dtype is np.int32 and array.size and array.dtype.kind == "f":
      whole = array.astype(np.int64)
      if not (array == whole).all():
        raise ValueError("a count must be a whole number")
      array = whole
    if dtype is np.int32 and array.size and abs(array).max() > 2**31 - 1:
      raise ValueError("a count must fit int32")
    if array.size and array.min() < 0:
      raise ValueError("it must not be negative")
    if dtype is np.float32 and np.isnan(array.astype(np.float64)).any():
      raise ValueError("a time must not be NaN")
    return array.astype(dtype)
  except (TypeError, ValueError) as error:
    raise ValueError(f"fact {name} is {value!r}: {error}") from error


def _cast_per_micro_step(name: str, value: Any) -> Any:
  """[K_MAX] of a field with one entry per micro-step, padded with 0."""
  length = _length(value)
  if length > K_MAX:
    raise ValueError(
      f"fact {name} has {length} entries; at most {K_MAX} fit a cycle"
    )
  array = _cast(name, value)
  if array.shape != (length,):
    raise ValueError(f"fact {name} has shape {array.shape}; it must be [n]")
  if isinstance(array, jax.Array):
    return jnp.pad(array, (0, K_MAX - length))
  return np.pad(array, (0, K_MAX - length))
