"""Files of one JSON record a line: metrics and events."""

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hybridrl.reporting import json_codec
from hybridrl.reporting.run_dir import RunDir
from hybridrl.reporting.writer import NullReporter


def _cut_partial_line(path: pathlib.Path) -> None:
  """Drops the line that a killed process was writing.

  Without this, the first record of a resumed run would end that line and be
  unreadable with it.
  """
  if not path.exists():
    return
  with path.open("rb+") as file:
    end = file.seek(0, os.SEEK_END)
    while end > 0:
      start = max(0, end - 65536)
      file.seek(start)
      newline = file.read(end - start).rfind(b"\n")
      if newline >= 0:
        file.truncate(start + newline + 1)
        return
      end = start
    file.truncate(0)


class LineFile:
  """Appends records to a file; each is handed to the system at once."""

  def __init__(self, path: pathlib.Path):
    _cut_partial_line(path)
    self._file = path.open("a", encoding="utf-8")

  def append(self, record: Mapping[str, Any]) -> None:
    self._file.write(json_codec.dumps(record) + "\n")
    self._file.flush()

  def close(self) -> None:
    self._file.close()


def read_lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """The records of a file, none if it is missing.

  A last line without its newline is one that is being written (or was, by a
  process that was killed) and is left out.

  Raises:
    ValueError: another line is no JSON; names file and line.
  """
  if not path.exists():
    return
  with path.open(encoding="utf-8", newline="\n") as file:
    for number, line in enumerate(file, start=1):
      if not line.endswith("\n"):
        return
      try:
        yield json_codec.loads(line)
      except ValueError as error:
        raise ValueError(f"{path}:{number}: {error}") from error


class JsonlWriter(NullReporter):
  """metrics.jsonl: {attempt, time_s, step, version, values}; events.jsonl:
  {attempt, time_s, kind, message, fields}."""

  def __init__(self, run_dir: RunDir, attempt: int, clock: Callable[[], float]):
    """The clock gives seconds since the run began."""
    self._metrics = LineFile(run_dir.metrics)
    self._events = LineFile(run_dir.events)
    self._attempt = attempt
    self._clock = clock

  def event(self, kind: str, message: str, **fields: Any) -> None:
    self._events.append(
      {
        "attempt": self._attempt,
        "time_s": self._clock(),
        "kind": kind,
        "message": message,
        "fields": fields,
      }
    )

  def metrics(
    self, step: int, version: int, values: Mapping[str, float]
  ) -> None:
    self._metrics.append(
      {
        "attempt": self._attempt,
        "time_s": self._clock(),
        "step": step,
        "version": version,
        "values": values,
      }
    )

  def close(self) -> None:
    self._metrics.close()
    self._events.close()
