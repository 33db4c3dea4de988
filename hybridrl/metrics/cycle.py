"""From the micro-steps of one version to the metrics of its cycle.

Laws (the test asserts them):
  * the aggregate of version v is made of exactly the k micro-steps of v;
  * reductions come from the declarations;
  * the ratios are taken once, of summed numerators and denominators.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hybridrl.metrics import bounds, utilization
from hybridrl.metrics.catalogue import METRICS
from hybridrl.metrics.declaration import (
  Metric,
  MetricError,
  Reduction,
  reduce_values,
)


class MicroStep(NamedTuple):
  """What one micro-step reported.

  Attributes:
    step: number of the micro-step, from 1.
    version: version of the weights that replicas held while it ran, that is
      the last one published before it; fixed when the micro-step begins.
    values: scalars under their declared names.
  """

  step: int
  version: int
  values: Mapping[str, float]


def by_version(steps: Iterable[MicroStep]) -> dict[int, list[MicroStep]]:
  """Micro-steps by their version, in order of their step."""
  groups: dict[int, list[MicroStep]] = {}
  for step in sorted(steps, key=lambda s: s.step):
    groups.setdefault(step.version, []).append(step)
  return groups


def _declared(name: str, table: Mapping[str, Metric]) -> Metric:
  if name not in table:
    raise MetricError(
      f"metric {name!r} is not declared: add Metric({name!r}, unit, reduction, "
      "help) to the table, so that its reduction is not guessed"
    )
  return table[name]


def aggregate(
  values: Sequence[Mapping[str, float]],
  table: Mapping[str, Metric] = METRICS,
) -> dict[str, float]:
  """Reduces the values of the micro-steps, each by its declaration.

  Args:
    values: [k] scalars by name, in order. A name may be missing in some.
    table: declarations by name.

  Returns:
    One value for each name that occurs, names in order of first occurrence.

  Raises:
    MetricError: a name is not declared, is derived, or its weight is missing.
  """
  names = dict.fromkeys(name for step in values for name in step)
  out = {}
  for name in names:
    metric = _declared(name, table)
    present = [step for step in values if name in step]
    weights = None
    if metric.weight:
      lacking = [i for i, s in enumerate(present) if metric.weight not in s]
      if lacking:
        raise MetricError(
          f"metric {name!r} is weighted by {metric.weight!r}, which "
          f"micro-steps {lacking} of the cycle do not report"
        )
      weights = [float(step[metric.weight]) for step in present]
    series = [float(step[name]) for step in present]
    out[name] = reduce_values(metric, series, weights)
  return out


def cycle_metrics(
  steps: Sequence[MicroStep],
  *,
  version: int,
  num_micro_steps: int,
  hybrid_devices: int,
  standalone_devices: int,
  rollout_utilization: float,
  cycle_values: Mapping[str, float] | None = None,
  table: Mapping[str, Metric] = METRICS,
) -> dict[str, float]:
  """All metrics of one cycle.

  Args:
    steps: the micro-steps of the cycle.
    version: their version (see MicroStep).
    num_micro_steps: how many there must be: k, or fewer at the end of data.
    hybrid_devices: a.
    standalone_devices: b.
    rollout_utilization: U_rollout of the window between the two resets of
      staleness.
    cycle_values: metrics measured once a cycle, under declared names that no
      micro-step reports.
    table: declarations by name.

  Returns:
    Values by name. Derived ones are there when their parts are: the three
    utilisations always; perf/throughput with perf/total_num_tokens.

  Raises:
    MetricError: a micro-step of another version, a wrong number of them, a
      step twice, or a name that is undeclared or reported twice.
  """
  _check_steps(steps, version, num_micro_steps)
  out = aggregate([step.values for step in steps], table)
  for name, value in (cycle_values or {}).items():
    _declared(name, table)
    if name in out:
      raise MetricError(f"metric {name!r} comes from micro-steps and cycle")
    out[name] = float(value)

  train_utilization = utilization.train_resource_utilization(
    [out.get("dynamic_resource/train_compute_time_s", 0.0)],
    [out.get("dynamic_resource/train_allocated_time_s", 0.0)],
  )
  step_s = out.get("timing_s/step", 0.0)
  derived = {
    "dynamic_resource/train_resource_utilization": train_utilization,
    "dynamic_resource/rollout_resource_utilization": rollout_utilization,
    "dynamic_resource/resource_utilization": utilization.resource_utilization(
      train_utilization=train_utilization,
      rollout_utilization=rollout_utilization,
      wait_s=out.get("timing_s/wait_for_enough_samples", 0.0),
      step_s=step_s,
      hybrid_devices=hybrid_devices,
      standalone_devices=standalone_devices,
    ),
  }
  if "perf/total_num_tokens" in out:
    derived["perf/throughput"] = bounds.throughput_per_device(
      out["perf/total_num_tokens"], step_s, hybrid_devices, standalone_devices
    )
  for name, value in derived.items():
    if name in out:
      raise MetricError(f"metric {name!r} is computed here; do not report it")
    if _declared(name, table).reduction is not Reduction.DERIVED:
      raise MetricError(f"metric {name!r} must be declared as derived")
    out[name] = float(value)
  return out


def _check_steps(
  steps: Sequence[MicroStep], version: int, num_micro_steps: int
) -> None:
  """Refuses anything but exactly the micro-steps of the version."""
  strangers = [(s.step, s.version) for s in steps if s.version != version]
  if strangers:
    raise MetricError(
      f"the aggregate of version {version} was given micro-steps of others, "
      f"(step, version): {strangers}"
    )
  numbers = [step.step for step in steps]
  if len(numbers) != num_micro_steps or len(set(numbers)) != len(numbers):
    raise MetricError(
      f"version {version} has {num_micro_steps} micro-steps, but the aggregate "
      f"was given steps {numbers}"
    )
