"""What happened since the last reset of staleness, and its metrics.

A cycle belongs to the version that the replicas hold while it runs. Its
micro-steps are exactly those that begin after that version was published, and
the last of them stays open through the next sync (as the seed's alloc_i does).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hybridrl import metrics as metrics_lib


class Collection:
  """Where the time of one collection goes.

  Args:
    required_samples: R.
    now_s: its beginning.

  Attributes:
    seconds: by kind: 'lent' (hybrid replicas serve), 'switch', 'idle' (the
      trainer's devices do nothing).
    missing_samples: max(0, R - backlog) when the idle wait began.
  """

  def __init__(self, required_samples: int, now_s: float):
    self.seconds = {"lent": 0.0, "switch": 0.0, "idle": 0.0}
    self.missing_samples = 0
    self._required = required_samples
    self._kind = "switch"
    self._since_s = now_s

  def enter(self, kind: str, now_s: float, backlog: int) -> None:
    """From now on the time goes into `kind`."""
    self.seconds[self._kind] += now_s - self._since_s
    self._since_s = now_s
    if kind == "idle":
      # A further idle wait of the same collection is for what is left of it.
      self.missing_samples = max(self.missing_samples, self._required - backlog)
    self._kind = kind


class Cycle:
  """Records of one cycle. All times are seconds of the run's clock.

  Args:
    version: of the weights that replicas hold.
    now_s: beginning of the cycle.
    active: samples in flight now.
    capacity: samples that the fleet takes now.

  Attributes:
    version: see above.
    wait_times_s: seconds that each collection waited after the last hybrid
      replica was reclaimed: what standalone replicas alone could not hide.
    wait_samples: samples that were missing then.
    train_times_s: seconds of each micro-step's training.
    activate_s: seconds of all activations in the cycle.
    reclaim_s: seconds of all reclaims in the cycle.
    trainer_idle_s: seconds for which the trainer's devices neither trained nor
      served.
    rollouter_idle_s: seconds for which no sample was in flight.
  """

  def __init__(self, version: int, now_s: float, active: int, capacity: int):
    self.version = version
    self.started_s = now_s
    self.wait_times_s: list[float] = []
    self.wait_samples: list[int] = []
    self.train_times_s: list[float] = []
    self.activate_s = 0.0
    self.reclaim_s = 0.0
    self.trainer_idle_s = 0.0
    self.rollouter_idle_s = 0.0
    self._usage = metrics_lib.start_usage(now_s, active, capacity)
    self._steps: list[_Step] = []
    # What is added before the first micro-step counts to the first.
    self._early: dict[str, float] = {}

  @property
  def num_micro_steps(self) -> int:
    """Micro-steps that began."""
    return len(self._steps)

  def observe(self, now_s: float, active: int, capacity: int) -> None:
    """The number of samples in flight, or the capacity, changed."""
    if self._usage.active == 0:
      self.rollouter_idle_s += now_s - self._usage.time_s
    self._usage = metrics_lib.observe(self._usage, now_s, active, capacity)

  def begin_step(self, step: int, now_s: float) -> None:
    """Opens micro-step `step`; the one before it ends here."""
    if self._steps:
      self._steps[-1].ended_s = now_s
    self._steps.append(_Step(step, now_s, now_s, self._early))
    self._early = {}

  def abandon_step(self) -> None:
    """The micro-step found no samples, for the data ended: there was none.

    What it added counts to the one before it.
    """
    values = self._steps.pop().values
    for name, value in values.items():
      self.add(name, value)

  def add(self, name: str, value: float) -> None:
    """Adds to a summed metric of the open micro-step."""
    values = self._steps[-1].values if self._steps else self._early
    values[name] = values.get(name, 0.0) + value

  def collected(self, collection: Collection) -> None:
    """The open micro-step has its samples."""
    lent_s, idle_s = collection.seconds["lent"], collection.seconds["idle"]
    self.wait_times_s.append(idle_s)
    self.wait_samples.append(collection.missing_samples)
    self.trainer_idle_s += idle_s
    self.add("timing_s/gen", sum(collection.seconds.values()))
    if lent_s > 0:
      self.add("timing_s/wait_for_enough_samples", lent_s)

  def put(self, values: Mapping[str, float]) -> None:
    """Sets metrics of the open micro-step."""
    self._steps[-1].values.update(values)

  def close(
    self,
    now_s: float,
    *,
    hybrid_devices: int,
    standalone_devices: int,
    cycle_values: Mapping[str, float],
  ) -> dict[str, float]:
    """Ends the last micro-step; returns the metrics of the cycle."""
    self.observe(now_s, int(self._usage.active), int(self._usage.capacity))
    elapsed_s = now_s - self.started_s
    if self._steps:
      self._steps[-1].ended_s = now_s
    return metrics_lib.cycle_metrics(
      [step.as_micro_step(self.version) for step in self._steps],
      version=self.version,
      num_micro_steps=len(self._steps),
      hybrid_devices=hybrid_devices,
      standalone_devices=standalone_devices,
      rollout_utilization=metrics_lib.usage_utilization(self._usage),
      cycle_values={
        "fully_async/rollouter/idle_ratio": _share(
          self.rollouter_idle_s, elapsed_s
        ),
        "fully_async/trainer/idle_ratio": _share(
          self.trainer_idle_s, elapsed_s
        ),
        **cycle_values,
      },
    )

  def facts(self, now_s: float) -> dict[str, Any]:
    """The cycle's part of the policy's context."""
    return {
      "step_wait_times": self.wait_times_s,
      "step_wait_samples": self.wait_samples,
      "step_train_times": self.train_times_s,
      "num_micro_steps": len(self.wait_times_s),
      "last_activate_duration_s": self.activate_s,
      "last_deactivate_duration_s": self.reclaim_s,
      "elapsed_s": now_s - self.started_s,
    }


@dataclasses.dataclass
class _Step:
  """One micro-step; ended_s is its begin while it is open."""

  step: int
  started_s: float
  ended_s: float
  values: dict[str, float]

  def as_micro_step(self, version: int) -> metrics_lib.MicroStep:
    wall_s = self.ended_s - self.started_s
    values = self.values | {
      "timing_s/step": wall_s,
      "dynamic_resource/train_allocated_time_s": wall_s,
    }
    return metrics_lib.MicroStep(self.step, version, values)


def _share(part_s: float, whole_s: float) -> float:
  return min(1.0, part_s / whole_s) if whole_s > 0 else 0.0
