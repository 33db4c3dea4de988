"""A reporter that keeps everything in lists, for tests to look at."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridrl.reporting.reporter import Progress


class SpanRecord(NamedTuple):
  lane: str
  name: str
  start_s: float
  end_s: float


class RecordingReporter:
  """Implements Reporter.

  Attributes:
    events: (kind, message, fields).
    rows: (step, version, values) of every metrics report.
    decisions: decision records.
    spans: see SpanRecord.
    snapshots: progress reports.
  """

  def __init__(self):
    self.events: list[tuple[str, str, dict[str, Any]]] = []
    self.rows: list[tuple[int, int, dict[str, float]]] = []
    self.decisions: list[dict[str, Any]] = []
    self.spans: list[SpanRecord] = []
    self.snapshots: list[Progress] = []

  def event(self, kind: str, message: str, **fields: Any) -> None:
    self.events.append((kind, message, fields))

  def metrics(
    self, step: int, version: int, values: Mapping[str, float]
  ) -> None:
    self.rows.append((step, version, dict(values)))

  def decision(self, record: Mapping[str, Any]) -> None:
    self.decisions.append(dict(record))

  def span(
    self, lane: str, name: str, start_s: float, end_s: float, **args: Any
  ) -> None:
    del args
    self.spans.append(SpanRecord(lane, name, start_s, end_s))

  def progress(self, snapshot: Progress) -> None:
    self.snapshots.append(snapshot)

  def close(self) -> None:
    pass

  def kinds(self) -> list[str]:
    """Kinds of the events, in order."""
    return [kind for kind, _, _ in self.events]

  def cycles(self) -> list[tuple[int, int, dict[str, float]]]:
    """The metrics reports that are those of a cycle."""
    return [row for row in self.rows if "timing_s/step" in row[2]]
