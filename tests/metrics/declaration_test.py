import math

import pytest

from hybridrl.metrics import declaration
from hybridrl.metrics.declaration import Metric, MetricError, Reduction


def _metric(name, reduction, weight=""):
  return Metric(name, "1", reduction, "for a test", weight)


@pytest.mark.parametrize(
  ("reduction", "right"),
  [
    (Reduction.SUM, 6.0),
    (Reduction.MEAN, 2.0),
    (Reduction.MIN, 1.0),
    (Reduction.MAX, 3.0),
    (Reduction.LAST, 2.0),
  ],
)
def test_reductions(reduction, right):
  metric = _metric("a/b", reduction)
  assert declaration.reduce_values(metric, [1.0, 3.0, 2.0], None) == right


def test_a_derived_metric_is_not_reduced():
  with pytest.raises(MetricError, match="'a/b' is derived"):
    declaration.reduce_values(_metric("a/b", Reduction.DERIVED), [1.0], None)


def test_weighted_mean():
  metric = _metric("a/b", Reduction.MEAN, "a/n")
  assert declaration.reduce_values(metric, [1.0, 4.0], [2.0, 1.0]) == 2.0
  # A step without weight has nothing to say, NaN included.
  assert declaration.reduce_values(metric, [1.0, math.nan], [2.0, 0.0]) == 1.0
  assert math.isnan(declaration.reduce_values(metric, [1.0], [0.0]))


def test_values_that_are_not_finite_pass_through():
  metric = _metric("a/b", Reduction.SUM)
  assert declaration.reduce_values(metric, [1.0, math.inf], None) == math.inf
  both = [math.inf, -math.inf]
  assert math.isnan(declaration.reduce_values(metric, both, None))


def test_sums_are_exactly_rounded():
  metric = _metric("a/b", Reduction.SUM)
  assert declaration.reduce_values(metric, [0.1] * 10, None) == 1.0


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/", "a/a/b"])
def test_malformed_names_are_refused(name):
  with pytest.raises(MetricError, match="segment"):
    _metric(name, Reduction.SUM)


def test_a_weight_belongs_to_a_mean():
  with pytest.raises(MetricError, match="reduced by sum"):
    _metric("a/b", Reduction.SUM, "a/n")


def test_a_table_refuses_a_second_declaration_and_a_lost_weight():
  base = declaration.declare([_metric("a/b", Reduction.SUM)])
  more = declaration.declare([_metric("c/d", Reduction.MIN)], base)
  assert list(more) == ["a/b", "c/d"]
  assert list(base) == ["a/b"]
  with pytest.raises(MetricError, match="declared twice"):
    declaration.declare([_metric("a/b", Reduction.MAX)], base)
  with pytest.raises(MetricError, match="undeclared 'a/n'"):
    declaration.declare([_metric("x/y", Reduction.MEAN, "a/n")], base)
