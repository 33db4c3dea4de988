"""What a metric is, and how its values over a cycle become one.

A reduction is declared with the metric and never guessed from its name.
"""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence


class Reduction(enum.StrEnum):
  """How k values of one cycle become one.

  SUM, MEAN, MIN, MAX, LAST: of the values of the micro-steps that have one.
  DERIVED: computed from other aggregates, once a cycle; a micro-step must not
    carry it.
  """

  SUM = "sum"
  MEAN = "mean"
  MIN = "min"
  MAX = "max"
  LAST = "last"
  DERIVED = "derived"


class MetricError(ValueError):
  """A metric is undeclared, declared twice or reduced in the wrong way."""


@dataclasses.dataclass(frozen=True)
class Metric:
  """A declaration.

  Attributes:
    name: the full name under which it is emitted, such as 'actor/grad_norm'.
    unit: unit of its value; '1' for ratios and other pure numbers.
    reduction: see Reduction.
    help: one sentence for a reader of the dashboard.
    weight: for MEAN, name of the metric that weights it (its number of samples
      or tokens); '' weights all micro-steps alike.
  """

  name: str
  unit: str
  reduction: Reduction
  help: str
  weight: str = ""

  def __post_init__(self):
    segments = self.name.split("/")
    if not all(segments):
      raise MetricError(f"metric name {self.name!r} has an empty segment")
    if any(a == b for a, b in zip(segments, segments[1:], strict=False)):
      raise MetricError(f"metric name {self.name!r} repeats a segment")
    if self.weight and self.reduction is not Reduction.MEAN:
      raise MetricError(
        f"metric {self.name!r} has a weight but is reduced by {self.reduction}"
      )


def declare(
  metrics: Sequence[Metric], base: Mapping[str, Metric] | None = None
) -> dict[str, Metric]:
  """A table of declarations by name, on top of another one.

  Raises:
    MetricError: a name is declared twice, or a weight is not declared.
  """
  table = dict(base or {})
  for metric in metrics:
    if metric.name in table:
      raise MetricError(f"metric {metric.name!r} is declared twice")
    table[metric.name] = metric
  for metric in table.values():
    if metric.weight and metric.weight not in table:
      raise MetricError(
        f"metric {metric.name!r} is weighted by the undeclared "
        f"{metric.weight!r}"
      )
  return table


def reduce_values(
  metric: Metric, values: Sequence[float], weights: Sequence[float] | None
) -> float:
  """One value from the values of a cycle, in the order of its micro-steps.

  Args:
    metric: the declaration.
    values: [n] n >= 1.
    weights: [n] >= 0 for a weighted mean, else None. When all are 0, the mean
      is not defined and NaN is returned.
  """
  match metric.reduction:
    case Reduction.SUM:
      return _total(values)
    case Reduction.MIN:
      return min(values)
    case Reduction.MAX:
      return max(values)
    case Reduction.LAST:
      return values[-1]
    case Reduction.MEAN:
      return _mean(values, weights)
    case _:
      raise MetricError(f"metric {metric.name!r} is derived, not reduced")


def _total(values: Sequence[float]) -> float:
  """Exactly rounded sum; inf and NaN pass through instead of raising."""
  if all(math.isfinite(v) for v in values):
    return math.fsum(values)
  return sum(values)


def _mean(values: Sequence[float], weights: Sequence[float] | None) -> float:
  """Mean, weighted where weights are given; NaN if they are all 0."""
  if weights is None:
    return _total(values) / len(values)
  total = _total(weights)
  if total <= 0:
    return math.nan
  # A micro-step without weight may hold NaN: a mean over nothing.
  pairs = zip(values, weights, strict=True)
  return _total([v * w for v, w in pairs if w > 0]) / total
