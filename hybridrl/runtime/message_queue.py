"""Finished samples that wait to be trained.

The queue never evicts: admission bounds it, so a put beyond its capacity is a
broken invariant and ends the run. The end of data is not an element of it; who
wants to know asks the rollouter whether it is exhausted. All counts are the
ledger's.
"""

from collections.abc import Callable

from hybridrl.data.sample import Sample
from hybridrl.runtime.ledger import Ledger

REASON_VERSION_LAG = "version_lag"


class QueueOverflow(RuntimeError):
  """More samples finished than admission allows."""


class MessageQueue:
  """First in, first out, by the time at which a sample was graded.

  Args:
    ledger: where each sample is; it is told of every move.
    capacity: max_required_samples.
    notify: called after every change.
  """

  def __init__(self, ledger: Ledger, capacity: int, notify: Callable[[], None]):
    self._ledger = ledger
    self._capacity = capacity
    self._notify = notify
    self._samples: dict[int, Sample] = {}  # by id, in order of arrival

  def __len__(self) -> int:
    return len(self._samples)

  def put(self, sample: Sample) -> None:
    """Adds a graded sample; a second put of the same one changes nothing.

    Raises:
      QueueOverflow: capacity samples wait already. None of them is touched.
    """
    if sample.sample_id in self._samples:
      return
    if len(self._samples) >= self._capacity:
      raise QueueOverflow(
        f"sample {sample.sample_id} finished while {len(self._samples)} of at"
        f" most {self._capacity} samples wait"
      )
    self._ledger.queue(sample.sample_id)
    self._samples[sample.sample_id] = sample
    self._notify()

  def take(self, max_samples: int) -> list[Sample]:
    """The oldest samples, at most `max_samples`, in the order of their ids.

    The order within a batch must not depend on which replica was faster, or
    no run could be compared with another.
    """
    ids = list(self._samples)[:max_samples]
    self._ledger.take(ids)
    taken = [self._samples.pop(i) for i in ids]
    self._notify()
    return sorted(taken, key=lambda sample: sample.sample_id)

  def drop_older_than(self, version: int) -> list[Sample]:
    """Drops samples with a token that weights before `version` sampled."""
    stale = [s for s in self._samples.values() if s.oldest_version < version]
    for sample in stale:
      self._ledger.drop(sample.sample_id, REASON_VERSION_LAG)
      del self._samples[sample.sample_id]
    if stale:
      self._notify()
    return stale
