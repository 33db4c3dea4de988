"""What the runtime tells the outside: one Protocol, many writers.

A writer that fails never stops a run: the composite reporter reports its
failure once and goes on without it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
  """A snapshot for the live view.

  Attributes:
    elapsed_s: seconds since the run began.
    step: micro-steps trained.
    total_steps: micro-steps to train.
    version: version of the weights.
    reward: mean raw reward of the last micro-step's samples, before any
      filter; None before the first.
    backlog_samples: finished samples that wait.
    in_flight_samples: samples being generated.
    capacity_samples: in-flight samples that the fleet takes.
    lent: names of the hybrid replicas that serve now.
    learner_state: 'training', 'waiting', 'lent', 'publishing', ...
    last_activate_s: duration of the last activation, or None.
    last_reclaim_s: duration of the last reclaim, or None.
    waiting_for: owner and reason of the longest current wait, or ''.
  """

  elapsed_s: float
  step: int
  total_steps: int
  version: int
  reward: float | None
  backlog_samples: int
  in_flight_samples: int
  capacity_samples: int
  lent: tuple[str, ...]
  learner_state: str
  last_activate_s: float | None
  last_reclaim_s: float | None
  waiting_for: str


class Reporter(Protocol):
  """All times are seconds since the run began."""

  def event(self, kind: str, message: str, **fields: Any) -> None:
    """One line for a person, with machine-readable fields beside it."""
    ...

  def metrics(
    self, step: int, version: int, values: Mapping[str, float]
  ) -> None:
    """Scalar metrics of one cycle (or validation) under their final names."""
    ...

  def decision(self, record: Mapping[str, Any]) -> None:
    """One policy call: phase, context, state digest, raw and final decision."""
    ...

  def span(
    self, lane: str, name: str, start_s: float, end_s: float, **args: Any
  ) -> None:
    """What a lane ('learner', a replica's name, 'driver') did when."""
    ...

  def progress(self, snapshot: Progress) -> None: ...

  def close(self) -> None: ...
