"""Where the samples are: counts and the events that change them.

The arithmetic is plain + and -, so the live ledger folds Python ints and the
simulator folds int32 arrays through the same rules (one law for both).

  offer -> PENDING -start-> IN FLIGHT -generated-> GRADING -queue-> QUEUED
    -take-> TRAINING -trained-> TRAINED
  requeue: IN FLIGHT -> PENDING; drop_*: any live state -> DROPPED

Nothing that follows from other counts is kept a second time: what is admitted
in a cycle, finished or surplus is computed here, so it cannot drift (cases S6,
O4).
"""

import enum
from typing import Any, NamedTuple


class Counts(NamedTuple):
  """Numbers of samples (prompt groups). Python ints or int32 arrays."""

  offered: Any = 0  # ever offered
  pending: Any = 0  # offered, generation not begun
  in_flight: Any = 0  # being generated
  grading: Any = 0  # generated, being graded
  queued: Any = 0  # finished, waiting for the trainer: the backlog
  training: Any = 0  # taken by the trainer
  trained: Any = 0  # ever trained
  dropped_unfinished: Any = 0  # ever dropped before they were queued
  dropped_finished: Any = 0  # ever dropped after they were queued
  consumed_in_cycle: Any = 0  # taken since the last weight sync

  @property
  def dropped(self) -> Any:
    return self.dropped_unfinished + self.dropped_finished

  @property
  def finished(self) -> Any:
    """Ever queued: the seed's total_generated_samples."""
    return self.queued + self.training + self.trained + self.dropped_finished

  @property
  def surplus(self) -> Any:
    """finished - (trained + dropped after finishing)."""
    return self.finished - (self.trained + self.dropped_finished)

  @property
  def admitted_in_cycle(self) -> Any:
    """Samples that use the cycle's admission budget: the seed's staleness
    samples. What a sync carries over counts; a drop or a requeue gives its
    credit back.
    """
    return self.in_flight + self.grading + self.queued + self.consumed_in_cycle


class Event(enum.IntEnum):
  """What happens to a sample, or (BEGIN_CYCLE) to the cycle."""

  OFFER = 0
  START = 1
  GENERATED = 2
  QUEUE = 3
  TAKE = 4
  TRAINED = 5
  REQUEUE = 6
  DROP_PENDING = 7
  DROP_IN_FLIGHT = 8
  DROP_GRADING = 9
  DROP_QUEUED = 10
  DROP_TRAINING = 11
  BEGIN_CYCLE = 12  # after a weight sync


# Event -> change of each count per sample.
DELTAS: dict[Event, dict[str, int]] = {
  Event.OFFER: {"offered": 1, "pending": 1},
  Event.START: {"pending": -1, "in_flight": 1},
  Event.GENERATED: {"in_flight": -1, "grading": 1},
  Event.QUEUE: {"grading": -1, "queued": 1},
  Event.TAKE: {"queued": -1, "training": 1, "consumed_in_cycle": 1},
  Event.TRAINED: {"training": -1, "trained": 1},
  Event.REQUEUE: {"in_flight": -1, "pending": 1},
  Event.DROP_PENDING: {"pending": -1, "dropped_unfinished": 1},
  Event.DROP_IN_FLIGHT: {"in_flight": -1, "dropped_unfinished": 1},
  Event.DROP_GRADING: {"grading": -1, "dropped_unfinished": 1},
  Event.DROP_QUEUED: {"queued": -1, "dropped_finished": 1},
  Event.DROP_TRAINING: {
    "training": -1,
    "dropped_finished": 1,
    "consumed_in_cycle": -1,
  },
}


def apply(counts: Counts, event: Event, num_samples: Any = 1) -> Counts:
  """The counts after num_samples samples had this event.

  Args:
    counts: before.
    event: static.
    num_samples: Python int or int32; ignored by BEGIN_CYCLE. In masked code
      0 is no event.
  """
  if event == Event.BEGIN_CYCLE:
    # What the trainer holds across a sync is consumed by the new cycle.
    return counts._replace(consumed_in_cycle=counts.training)
  return counts._replace(
    **{
      name: getattr(counts, name) + delta * num_samples
      for name, delta in DELTAS[event].items()
    }
  )


class ConservationError(AssertionError):
  """Invariant I1 is broken; the message holds all counts."""


def imbalance(counts: Counts) -> Any:
  """offered - (sum over all places): 0 by invariant I1."""
  return counts.offered - (
    counts.pending
    + counts.in_flight
    + counts.grading
    + counts.queued
    + counts.training
    + counts.trained
    + counts.dropped
  )


def check_conservation(counts: Counts) -> None:
  """Checks I1 and that nothing is negative, on concrete counts.

  Raises:
    ConservationError: with all counts.
  """
  if int(imbalance(counts)) != 0 or any(int(c) < 0 for c in counts):
    raise ConservationError(
      "offered = pending + in flight + grading + queued + training + trained "
      f"+ dropped does not hold, or a count is negative: {counts}"
    )
