"""Paired statistics against hand-computed values."""

import math

import pytest

from experiments import paired_stats


def test_mean_interval_matches_the_table_of_t():
  # n = 5, sd = 1.5811, t(0.975, 4) = 2.7764: half = 2.7764 * 1.5811 / sqrt(5).
  found = paired_stats.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0], 0.95)
  assert found.mean == 3.0
  assert found.high - 3.0 == pytest.approx(1.9632, abs=1e-4)
  assert 3.0 - found.low == pytest.approx(1.9632, abs=1e-4)


def test_one_value_bounds_nothing():
  found = paired_stats.mean_interval([2.0], 0.95)
  assert math.isinf(found.low) and math.isinf(found.high)


def test_reduction_is_per_pair():
  found = paired_stats.reduction([100.0, 200.0], [80.0, 180.0])
  assert found.mean == pytest.approx(0.15)


@pytest.mark.parametrize(
  ("other", "expected"),
  [([0.5, 0.51, 0.49, 0.5], True), ([0.6, 0.61, 0.59, 0.6], False)],
)
def test_equivalence(other, expected):
  same, _ = paired_stats.equivalent([0.5, 0.5, 0.5, 0.5], other, 0.05)
  assert same is expected


def test_a_noisy_difference_is_not_equivalence():
  same, interval = paired_stats.equivalent([0.5] * 3, [0.3, 0.5, 0.7], 0.05)
  assert abs(interval.mean) < 1e-9 and not same


def test_unpaired_input_is_refused():
  with pytest.raises(ValueError):
    paired_stats.reduction([1.0], [1.0, 2.0])
