"""How many samples may be generated, and how many can still arrive.

All rules take Python ints or int32 arrays alike.
"""

import decimal
import fractions
import math
from typing import Any

import jax
import jax.numpy as jnp

from hybridrl.accounting.counts import Counts


def max_required_samples(
  step_required_samples: int, staleness_threshold: str
) -> int:
  """floor(S * (1 + staleness_threshold)), exact for the decimal text.

  100 samples at "0.15" are 115, where binary floating point gives 114
  (case S12). It bounds both the admitted samples of a cycle and the queue.

  Args:
    step_required_samples: S >= 1.
    staleness_threshold: decimal text, at least 0.

  Raises:
    ValueError: names flag, value and range.
  """
  try:
    threshold = decimal.Decimal(str(staleness_threshold))
  except decimal.InvalidOperation:
    threshold = decimal.Decimal("nan")
  if not threshold.is_finite() or threshold < 0:
    raise ValueError(
      f"--staleness_threshold={staleness_threshold}: must be a decimal number "
      "of at least 0"
    )
  if step_required_samples < 1:
    raise ValueError(
      f"samples of a cycle are {step_required_samples}; must be at least 1"
    )
  return math.floor(step_required_samples * (1 + fractions.Fraction(threshold)))


def capacity(
  active_replicas: Any, concurrent_samples_per_replica: Any, max_required: Any
) -> Any:
  """Samples that may be in flight now: the seed's cap_k (section 4.2)."""
  return _minimum(
    active_replicas * concurrent_samples_per_replica, max_required
  )


def admissible(counts: Counts, max_required: Any) -> Any:
  """Admission budget left in this cycle, at least 0."""
  return _maximum(max_required - counts.admitted_in_cycle, 0)


def arrivable(counts: Counts, max_required: Any, not_offered: Any = 0) -> Any:
  """Samples that are in the queue or can still get there this cycle.

  backlog + in flight (grading included) + min(pending, budget left).

  Args:
    counts: see Counts.
    max_required: see max_required_samples.
    not_offered: samples that the source has still to offer.
  """
  to_come = counts.pending + not_offered
  return (
    counts.queued
    + counts.grading
    + counts.in_flight
    + _minimum(to_come, admissible(counts, max_required))
  )


def _minimum(a: Any, b: Any) -> Any:
  if isinstance(a, jax.Array) or isinstance(b, jax.Array):
    return jnp.minimum(a, b)
  return min(a, b)


def _maximum(a: Any, b: Any) -> Any:
  if isinstance(a, jax.Array) or isinstance(b, jax.Array):
    return jnp.maximum(a, b)
  return max(a, b)
