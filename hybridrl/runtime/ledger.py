"""The host's ledger: which sample is where. The only source of counts.

Identity lives here (ids, idempotent events); the arithmetic is accounting's.
Laws:
  * Conservation (I1) after every event.
  * An event that a sample has had already, and that left it in its present
    state, changes nothing and returns False; any other event that does not fit
    the sample's state raises LedgerError and changes nothing.
  * A sample is trained at most once, and never after it was dropped.
  * start() never exceeds the cycle's admission budget.
"""

import collections
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from hybridrl import accounting
from hybridrl.accounting import Counts, Event
from hybridrl.scheduling import UNBOUNDED_SAMPLES


class SampleState(enum.StrEnum):
  PENDING = "pending"
  IN_FLIGHT = "in flight"
  GRADING = "grading"
  QUEUED = "queued"
  TRAINING = "training"
  TRAINED = "trained"
  DROPPED = "dropped"


_TRANSITIONS = {
  Event.START: (SampleState.PENDING, SampleState.IN_FLIGHT),
  Event.GENERATED: (SampleState.IN_FLIGHT, SampleState.GRADING),
  Event.QUEUE: (SampleState.GRADING, SampleState.QUEUED),
  Event.TAKE: (SampleState.QUEUED, SampleState.TRAINING),
  Event.TRAINED: (SampleState.TRAINING, SampleState.TRAINED),
  Event.REQUEUE: (SampleState.IN_FLIGHT, SampleState.PENDING),
}
_DONE = frozenset({SampleState.TRAINED, SampleState.DROPPED})
_DROPS = {
  SampleState.PENDING: Event.DROP_PENDING,
  SampleState.IN_FLIGHT: Event.DROP_IN_FLIGHT,
  SampleState.GRADING: Event.DROP_GRADING,
  SampleState.QUEUED: Event.DROP_QUEUED,
  SampleState.TRAINING: Event.DROP_TRAINING,
}


class LedgerError(Exception):
  """An event does not fit; names sample id, state and event."""


class Ledger:
  """See the module. Not thread-safe: it belongs to the driver's loop."""

  def __init__(
    self,
    *,
    required_samples: int,
    trigger_parameter_sync_step: int,
    staleness_threshold: str = "0.1",
    concurrent_samples_per_replica: int,
    target_samples: int | None = None,
  ):
    """Makes an empty ledger.

    Args:
      required_samples: R.
      trigger_parameter_sync_step: k.
      staleness_threshold: decimal text.
      concurrent_samples_per_replica: samples that one replica generates.
      target_samples: samples to train in all; None: as many as there are.

    Raises:
      ValueError: a number is out of range.
    """
    for name, value in (
      ("required_samples", required_samples),
      ("trigger_parameter_sync_step", trigger_parameter_sync_step),
      ("concurrent_samples_per_replica", concurrent_samples_per_replica),
    ):
      if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    if target_samples is not None and target_samples < 0:
      raise ValueError(f"target_samples is {target_samples}; must be >= 0")
    self.required_samples = required_samples
    self.trigger_parameter_sync_step = trigger_parameter_sync_step
    self.max_required_samples = accounting.max_required_samples(
      self.step_required_samples, staleness_threshold
    )
    self._concurrent = concurrent_samples_per_replica
    self._target = target_samples
    self._source_ended = False
    # Apart, so that questions about live samples don't grow with the run.
    self._live: dict[int, SampleState] = {}
    self._done: dict[int, SampleState] = {}
    self._counts = Counts()
    self._dropped: collections.Counter[str] = collections.Counter()

  @property
  def step_required_samples(self) -> int:
    """S."""
    return self.required_samples * self.trigger_parameter_sync_step

  # Events.

  def offer(self, sample_id: int) -> bool:
    """A new sample waits for generation. Returns whether anything changed."""
    state = self.state_of(sample_id)
    if state is SampleState.PENDING:
      return False
    if state is not None:
      raise _mismatch(sample_id, state, Event.OFFER)
    if not self.wants_more():
      raise LedgerError(
        f"sample {sample_id}: OFFER beyond the end of data ({self._counts})"
      )
    self._set(sample_id, SampleState.PENDING)
    self._count(Event.OFFER)
    return True

  def start(self, sample_id: int) -> bool:
    """Generation begins; takes one of the admission budget."""
    if self.state_of(sample_id) is SampleState.PENDING and self.admissible <= 0:
      raise LedgerError(
        f"sample {sample_id}: START with no admission budget left "
        f"({self._counts.admitted_in_cycle} of {self.max_required_samples} "
        "samples are admitted in this cycle)"
      )
    return self._move(sample_id, Event.START)

  def generated(self, sample_id: int) -> bool:
    """All responses are there; grading begins."""
    return self._move(sample_id, Event.GENERATED)

  def queue(self, sample_id: int) -> bool:
    """Graded; waits in the MessageQueue."""
    return self._move(sample_id, Event.QUEUE)

  def take(self, sample_ids: Iterable[int]) -> None:
    """The trainer collects these samples: all or, on an error, none."""
    self._move_all(sample_ids, Event.TAKE)

  def trained(self, sample_ids: Iterable[int]) -> None:
    """The trainer has applied these samples: all or, on an error, none."""
    self._move_all(sample_ids, Event.TRAINED)

  def requeue(self, sample_id: int) -> bool:
    """Generation is given up and will begin anew; credit is given back."""
    return self._move(sample_id, Event.REQUEUE)

  def drop(self, sample_id: int, reason: str) -> bool:
    """Takes a live sample out for good; its admission credit is given back."""
    state = self.state_of(sample_id)
    if state is SampleState.DROPPED:
      return False
    if state is None or state not in _DROPS:
      raise LedgerError(
        f"sample {sample_id} is {state or 'unknown'}: cannot DROP ({reason})"
      )
    self._set(sample_id, SampleState.DROPPED)
    self._dropped[reason] += 1
    self._count(_DROPS[state])
    return True

  def begin_cycle(self) -> None:
    """After a weight sync: only what is carried over uses the budget."""
    self._count(Event.BEGIN_CYCLE)

  def end_of_data(self) -> None:
    """The source has no more prompts: out of band, not a sample (case O1)."""
    self._source_ended = True

  # Questions.

  @property
  def counts(self) -> Counts:
    return self._counts

  @property
  def dropped(self) -> Mapping[str, int]:
    """Samples dropped so far, by reason."""
    return dict(self._dropped)

  @property
  def backlog(self) -> int:
    return self._counts.queued

  @property
  def in_flight(self) -> int:
    """Samples being generated (grading not included)."""
    return self._counts.in_flight

  @property
  def admissible(self) -> int:
    """Admission budget left in this cycle."""
    return accounting.admissible(self._counts, self.max_required_samples)

  @property
  def arrivable(self) -> int:
    """What can still be in the queue in this cycle."""
    return self._arrivable(self._counts)

  @property
  def remaining_samples(self) -> int:
    """Samples that the trainer has still to take until the end of data."""
    target = self._effective_target()
    if target is None:
      return UNBOUNDED_SAMPLES
    return max(0, target - self._counts.trained - self._counts.training)

  def wants_more(self) -> bool:
    """Whether another sample may be offered; dropped ones are replaced."""
    target = self._effective_target()
    return (
      target is None or self._counts.offered - self._counts.dropped < target
    )

  def capacity(self, active_replicas: int) -> int:
    """Samples that may be in flight with so many serving replicas."""
    return accounting.capacity(
      active_replicas, self._concurrent, self.max_required_samples
    )

  def facts(self, *, next_cycle: bool = False) -> dict[str, int]:
    """The ledger's part of make_context's facts.

    Args:
      next_cycle: at SYNC_END, whose decision is about the cycle that begins:
        admissible and arrivable are then those after begin_cycle().
    """
    counts = self._counts
    ahead = (
      accounting.apply(counts, Event.BEGIN_CYCLE) if next_cycle else counts
    )
    return {
      "total_generated_samples": counts.finished,
      "expected_samples": counts.finished - counts.surplus,
      "backlog_samples": counts.queued,
      "in_flight_samples": counts.in_flight + counts.grading,
      "admissible_samples": accounting.admissible(
        ahead, self.max_required_samples
      ),
      "arrivable_samples": self._arrivable(ahead),
      "consumed_in_cycle": counts.consumed_in_cycle,
      "remaining_samples": self.remaining_samples,
    }

  def state_of(self, sample_id: int) -> SampleState | None:
    """State of a sample; None if it was never offered."""
    return self._live.get(sample_id) or self._done.get(sample_id)

  def ids(self, state: SampleState) -> list[int]:
    """Ids in that state, in the order in which they were offered."""
    states = self._done if state in _DONE else self._live
    return [i for i, s in states.items() if s is state]

  def check(self) -> None:
    """Compares counts and identities of all samples; raises LedgerError."""
    accounting.check_conservation(self._counts)
    found = collections.Counter(self._live.values())
    found.update(self._done.values())
    for state, count in (
      (SampleState.PENDING, self._counts.pending),
      (SampleState.IN_FLIGHT, self._counts.in_flight),
      (SampleState.GRADING, self._counts.grading),
      (SampleState.QUEUED, self._counts.queued),
      (SampleState.TRAINING, self._counts.training),
      (SampleState.TRAINED, self._counts.trained),
      (SampleState.DROPPED, self._counts.dropped),
    ):
      if found[state] != count:
        raise LedgerError(
          f"{found[state]} samples are {state}, but the count says {count}"
        )
    if self._dropped.total() != self._counts.dropped:
      raise LedgerError(f"drop reasons {self._dropped} differ: {self._counts}")

  # Checkpoint.

  def to_json(self) -> dict[str, Any]:
    """JSON-like state. Samples that are not done are restored as pending."""
    counts = self._counts
    return {
      "pending": list(self._live),
      "trained": _to_ranges(self.ids(SampleState.TRAINED)),
      "dropped": _to_ranges(self.ids(SampleState.DROPPED)),
      "dropped_reasons": dict(self._dropped),
      "dropped_finished": counts.dropped_finished,
      "consumed_in_cycle": counts.consumed_in_cycle - counts.training,
      "source_ended": self._source_ended,
    }

  def from_json(self, saved: Mapping[str, Any]) -> None:
    """Replaces the content by a saved one; the settings stay this ledger's.

    What had not been trained is pending again and uses no admission budget
    until it is started again, so that capacity is neither inflated nor lost
    (case O4).
    """
    trained, dropped = (
      list(_from_ranges(saved[name])) for name in ("trained", "dropped")
    )
    pending = list(saved["pending"])
    self._live = dict.fromkeys(pending, SampleState.PENDING)
    self._done = dict.fromkeys(trained, SampleState.TRAINED)
    self._done |= dict.fromkeys(dropped, SampleState.DROPPED)
    self._dropped = collections.Counter(saved["dropped_reasons"])
    finished = int(saved["dropped_finished"])
    self._counts = Counts(
      offered=len(pending) + len(trained) + len(dropped),
      pending=len(pending),
      trained=len(trained),
      dropped_unfinished=len(dropped) - finished,
      dropped_finished=finished,
      consumed_in_cycle=int(saved["consumed_in_cycle"]),
    )
    self._source_ended = bool(saved["source_ended"])
    self.check()

  # Internals.

  def _effective_target(self) -> int | None:
    if not self._source_ended:
      return self._target
    there_is = self._counts.offered - self._counts.dropped
    return there_is if self._target is None else min(self._target, there_is)

  def _arrivable(self, counts: Counts) -> int:
    target = self._effective_target()
    not_offered = (
      UNBOUNDED_SAMPLES
      if target is None
      else max(0, target - (counts.offered - counts.dropped))
    )
    return accounting.arrivable(counts, self.max_required_samples, not_offered)

  def _set(self, sample_id: int, state: SampleState) -> None:
    if state in _DONE:
      self._live.pop(sample_id, None)
      self._done[sample_id] = state
    else:
      self._live[sample_id] = state

  def _count(self, event: Event, num_samples: int = 1) -> None:
    self._counts = accounting.apply(self._counts, event, num_samples)
    accounting.check_conservation(self._counts)

  def _move(self, sample_id: int, event: Event) -> bool:
    before, after = _TRANSITIONS[event]
    state = self.state_of(sample_id)
    if state is after:
      return False
    if state is not before:
      raise _mismatch(sample_id, state, event)
    self._set(sample_id, after)
    self._count(event)
    return True

  def _move_all(self, sample_ids: Iterable[int], event: Event) -> None:
    before, after = _TRANSITIONS[event]
    ids = list(sample_ids)
    if len(set(ids)) != len(ids):
      raise LedgerError(f"{event.name} names a sample twice: {ids}")
    for sample_id in ids:
      state = self.state_of(sample_id)
      if state not in (before, after):
        raise _mismatch(sample_id, state, event)
    for sample_id in ids:
      self._move(sample_id, event)


def _mismatch(
  sample_id: int, state: SampleState | None, event: Event
) -> LedgerError:
  return LedgerError(
    f"sample {sample_id} is {state or 'unknown'}: cannot {event.name}"
  )


def _to_ranges(ids: Iterable[int]) -> list[list[int]]:
  """Sorted ids as [first, last] pairs: long runs stay short on disk."""
  ranges: list[list[int]] = []
  for i in sorted(ids):
    if ranges and ranges[-1][1] == i - 1:
      ranges[-1][1] = i
    else:
      ranges.append([i, i])
  return ranges


def _from_ranges(ranges: Iterable[Iterable[int]]) -> Iterable[int]:
  for first, last in ranges:
    yield from range(first, last + 1)
