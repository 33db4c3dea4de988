"""decisions.jsonl: every policy call, exactly enough to replay it (I7)."""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hybridrl.reporting.jsonl import LineFile, read_lines
from hybridrl.reporting.run_dir import RunDir
from hybridrl.reporting.writer import NullReporter


class LoggedDecision(NamedTuple):
  """One policy call.

  Attributes:
    attempt: number of the start or resume, from 1.
    time_s: seconds since that attempt began.
    record: what the runtime reported, as mappings, lists and numbers; floats
      have the values that they had, infinities included.
  """

  attempt: int
  time_s: float
  record: Mapping[str, Any]


class DecisionLog(NullReporter):
  """Writes {attempt, time_s, record}."""

  def __init__(self, run_dir: RunDir, attempt: int, clock: Callable[[], float]):
    """The clock gives seconds since the run began."""
    self._file = LineFile(run_dir.decisions)
    self._attempt = attempt
    self._clock = clock

  def decision(self, record: Mapping[str, Any]) -> None:
    self._file.append(
      {
        "attempt": self._attempt,
        "time_s": self._clock(),
        "record": record,
      }
    )

  def close(self) -> None:
    self._file.close()


def read_decisions(path: pathlib.Path) -> Iterator[LoggedDecision]:
  """The calls in the order in which they were made."""
  for line in read_lines(path):
    yield LoggedDecision(line["attempt"], line["time_s"], line["record"])
