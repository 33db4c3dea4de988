"""Statistics of paired runs."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import stats


@dataclasses.dataclass(frozen=True)
class Interval:
  """A mean and its two-sided confidence interval (Student's t)."""

  mean: float
  low: float
  high: float
  confidence: float

  def __str__(self) -> str:
    return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
  """Interval of the mean of independent values; unbounded below two values."""
  data = np.asarray(values, np.float64)
  mean = float(data.mean())
  if len(data) < 2:
    return Interval(mean, -np.inf, np.inf, confidence)
  half = stats.t.ppf(0.5 + confidence / 2, len(data) - 1) * stats.sem(data)
  return Interval(mean, mean - float(half), mean + float(half), confidence)


def reduction(
  baseline: Sequence[float], other: Sequence[float], confidence: float = 0.95
) -> Interval:
  """Mean of 1 - other/baseline over pairs, as a share."""
  pairs = zip(baseline, other, strict=True)
  return mean_interval([1.0 - b / a for a, b in pairs], confidence)


def equivalent(
  baseline: Sequence[float], other: Sequence[float], margin: float
) -> tuple[bool, Interval]:
  """Two one-sided tests at 5 %: is the 90 % interval within +-margin?

  Returns:
    (whether it is, the interval of other - baseline over pairs).
  """
  pairs = zip(baseline, other, strict=True)
  interval = mean_interval([b - a for a, b in pairs], 0.90)
  return -margin < interval.low and interval.high < margin, interval
