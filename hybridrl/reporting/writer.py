"""A reporter that does nothing: the base of the writers."""

from collections.abc import Mapping
from typing import Any

from hybridrl.reporting.reporter import Progress


class NullReporter:
  """Takes everything and writes nothing; writers override what they write."""

  def event(self, kind: str, message: str, **fields: Any) -> None:
    del kind, message, fields

  def metrics(
    self, step: int, version: int, values: Mapping[str, float]
  ) -> None:
    del step, version, values

  def decision(self, record: Mapping[str, Any]) -> None:
    del record

  def span(
    self, lane: str, name: str, start_s: float, end_s: float, **args: Any
  ) -> None:
    del lane, name, start_s, end_s, args

  def progress(self, snapshot: Progress) -> None:
    del snapshot

  def close(self) -> None:
    pass
