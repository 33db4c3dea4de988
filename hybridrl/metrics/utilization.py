"""Utilisation over one sync cycle: definitions 4.1 to 4.3 of the seed.

Symbols: a hybrid (trainer) devices, b standalone devices, U utilisations in
[0, 1]. Formulas take Python numbers or arrays of any (equal) shape.

Laws (the test asserts them):
  * the fold over observations equals the sum over the whole history;
  * utilisation lies in [0, 1] and is 0.0 where there is nothing to divide by;
  * an observation that changes nothing changes no utilisation;
  * an interval without capacity has no weight.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hybridrl.metrics.numeric import (
  Number,
  clip01,
  is_python_number,
  minimum,
  ratio_or_zero,
)

TRAIN_COMPUTE_KEYS: tuple[str, ...] = (
  "reward",
  "old_log_prob",
  "ref",
  "values",
  "adv",
  "update_critic",
  "update_actor",
)


def train_compute_time_s(compute_s: Mapping[str, float]) -> float:
  """compute_i of one micro-step: the seconds of the seed's seven keys.

  Args:
    compute_s: seconds by key. A missing key counts as 0; a key that is not
      training compute (such as 'save_checkpoint') is left out.
  """
  return sum(float(compute_s.get(key, 0.0)) for key in TRAIN_COMPUTE_KEYS)


def train_resource_utilization(
  compute_s: Sequence[Number], allocated_s: Sequence[Number]
) -> Number:
  """U_train = sum_i compute_i / sum_i alloc_i (seed, 4.1).

  The sums run over the micro-steps of a cycle first; one ratio is taken, never
  a mean of ratios.

  Args:
    compute_s: [k] seconds of training compute by micro-step.
    allocated_s: [k] wall seconds by micro-step, from the beginning of its
      collection to the end of its bookkeeping; sync and activation included.

  Returns:
    The ratio; 0.0 when nothing was allocated.
  """
  if len(compute_s) != len(allocated_s):
    raise ValueError(
      f"compute_s has {len(compute_s)} micro-steps, allocated_s "
      f"{len(allocated_s)}"
    )
  return ratio_or_zero(sum(compute_s), sum(allocated_s))


class RolloutUsage(NamedTuple):
  """Use of the rollout's concurrency since the window began, as a fold.

  Attributes:
    time_s: time of the last observation.
    active: samples in flight since then.
    capacity: samples that the fleet takes at once since then.
    used: sample-seconds, the integral of min(capacity, active).
    available: sample-seconds, the integral of capacity.
  """

  time_s: Number
  active: Number
  capacity: Number
  used: Number
  available: Number


def start_usage(
  time_s: Number, active: Number, capacity: Number
) -> RolloutUsage:
  """A window that begins now (at a reset of staleness)."""
  return RolloutUsage(time_s, active, capacity, 0.0 * time_s, 0.0 * time_s)


def observe(
  usage: RolloutUsage, time_s: Number, active: Number, capacity: Number
) -> RolloutUsage:
  """Closes the interval that ends at time_s and opens the next.

  To be called whenever a sample starts or ends, or the capacity changes.

  Args:
    usage: the window so far.
    time_s: seconds, on the clock of the window's beginning.
    active: samples in flight from now on.
    capacity: min(servers * concurrent_samples_per_replica,
      max_required_samples) from now on.

  Raises:
    ValueError: time runs backwards (checked for Python numbers only).
  """
  elapsed_s = time_s - usage.time_s
  if is_python_number(elapsed_s) and elapsed_s < 0:
    raise ValueError(
      f"an observation at {time_s} s follows one at {usage.time_s} s"
    )
  load = minimum(usage.capacity, usage.active)
  return RolloutUsage(
    time_s,
    active,
    capacity,
    usage.used + elapsed_s * load,
    usage.available + elapsed_s * usage.capacity,
  )


def usage_utilization(usage: RolloutUsage) -> Number:
  """U_rollout of the window up to its last observation."""
  return ratio_or_zero(usage.used, usage.available)


def rollout_resource_utilization(
  history: Iterable[tuple[Number, Number, Number]], end_s: Number
) -> Number:
  """U_rollout over an event history (seed, 4.2).

  U = sum_k dt_k min(cap_k, active_k) / sum_k dt_k cap_k, each interval with
  its own capacity, the last one closed at end_s.

  Args:
    history: (time_s, active, capacity) in order of time; both counts hold from
      that time to the next entry's.
    end_s: end of the window.

  Returns:
    The utilisation; 0.0 for an empty history or one without capacity-time.
  """
  usage = None
  for time_s, active, capacity in history:
    if usage is None:
      usage = start_usage(time_s, active, capacity)
    else:
      usage = observe(usage, time_s, active, capacity)
  if usage is None:
    return 0.0
  return usage_utilization(observe(usage, end_s, usage.active, usage.capacity))


def hybrid_rollout_fraction(wait_s: Number, step_s: Number) -> Number:
  """x = clip(wait / step, 0, 1): share of the cycle spent lent (seed, 4.3)."""
  return clip01(ratio_or_zero(wait_s, step_s))


def resource_utilization(
  *,
  train_utilization: Number,
  rollout_utilization: Number,
  wait_s: Number,
  step_s: Number,
  hybrid_devices: int,
  standalone_devices: int,
) -> Number:
  """U_cluster (seed, 4.3).

  U = ((1 - x) a U_train + (x a + b) U_rollout) / (a + b).

  Args:
    train_utilization: U_train.
    rollout_utilization: U_rollout.
    wait_s: summed timing_s/wait_for_enough_samples of the cycle; 0 when no
      hybrid replica was lent.
    step_s: summed timing_s/step of the cycle.
    hybrid_devices: a.
    standalone_devices: b.

  Raises:
    ValueError: there is no device, or a negative number of them.
  """
  a, b = hybrid_devices, standalone_devices
  if a < 0 or b < 0 or a + b == 0:
    raise ValueError(
      f"hybrid_devices={a}, standalone_devices={b}: both must be >= 0 and at "
      "least one positive"
    )
  x = hybrid_rollout_fraction(wait_s, step_s)
  training = (1 - x) * a * train_utilization
  generating = (x * a + b) * rollout_utilization
  return (training + generating) / (a + b)
