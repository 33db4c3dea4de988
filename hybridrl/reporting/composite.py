"""One reporter of many writers, and the usual set of them.

A writer that fails is reported once, to the writers that are left, and is not
called again; the run goes on.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from hybridrl.reporting.decision_log import DecisionLog
from hybridrl.reporting.flagfile import write_flagfile
from hybridrl.reporting.jsonl import JsonlWriter
from hybridrl.reporting.live import make_view
from hybridrl.reporting.report import ReportWriter
from hybridrl.reporting.reporter import Progress, Reporter
from hybridrl.reporting.run_dir import RunDir, begin_attempt, make_run_dir
from hybridrl.reporting.tensorboard import TensorBoardWriter
from hybridrl.reporting.trace import TraceWriter


class CompositeReporter:
  """Hands every report to all writers that have not failed."""

  def __init__(
    self,
    writers: Mapping[str, Reporter],
    *,
    run_dir: RunDir | None = None,
    last_resort: TextIO | None = None,
  ):
    """Takes the writers by the name that a failure is reported under.

    Args:
      writers: called in this order.
      run_dir: where they write, for whoever holds the reporter.
      last_resort: where the failure of the last writer is told; None: stderr.
    """
    self._writers = dict(writers)
    self.run_dir = run_dir
    self._last_resort = last_resort

  def event(self, kind: str, message: str, **fields: Any) -> None:
    self._each(lambda writer: writer.event(kind, message, **fields))

  def metrics(
    self, step: int, version: int, values: Mapping[str, float]
  ) -> None:
    self._each(lambda writer: writer.metrics(step, version, values))

  def decision(self, record: Mapping[str, Any]) -> None:
    self._each(lambda writer: writer.decision(record))

  def span(
    self, lane: str, name: str, start_s: float, end_s: float, **args: Any
  ) -> None:
    self._each(lambda w: w.span(lane, name, start_s, end_s, **args))

  def progress(self, snapshot: Progress) -> None:
    self._each(lambda writer: writer.progress(snapshot))

  def close(self) -> None:
    """Closes the writers in order; later calls do nothing."""
    while self._writers:
      name, writer = next(iter(self._writers.items()))
      del self._writers[name]
      try:
        writer.close()
      except Exception as error:  # any writer, any error: see the module
        self.report_failure(name, error)

  def report_failure(self, name: str, error: Exception) -> None:
    """Tells the remaining writers, or the last resort, that one is gone."""
    message = f"{name} stopped: {type(error).__name__}: {error}"
    if self._writers:
      self.event("writer_failed", message, writer=name)
    else:
      print(message, file=self._last_resort or sys.stderr)

  def _each(self, call: Callable[[Reporter], None]) -> None:
    for name, writer in list(self._writers.items()):
      if name not in self._writers:
        continue  # failed meanwhile, while another's failure was reported
      try:
        call(writer)
      except Exception as error:  # any writer, any error: see the module
        del self._writers[name]
        self.report_failure(name, error)


def make_reporter(
  run_dir: RunDir | str | os.PathLike[str],
  *,
  config: Mapping[str, Any] | None = None,
  flags: Mapping[str, Any] | None = None,
  lanes: Mapping[str, Sequence[int]] | None = None,
  stream: TextIO | None = None,
  live: bool | None = None,
  clock: Callable[[], float] | None = None,
) -> CompositeReporter:
  """The reporter of a run: files, timeline, live view, and at close the report.

  Args:
    run_dir: a RunDir, or a path that `make_run_dir` takes.
    config: the run's configuration, kept in run.json.
    flags: flags to echo as a flagfile; None writes none.
    lanes: devices of each lane (`metrics.device_lanes`); without them the
      report has no picture of the devices.
    stream: where the view or the lines go; None: standard output.
    live: True draws the live view, False prints lines; None asks whether the
      stream is a terminal.
    clock: seconds since the run began, the clock of the spans; None counts
      from this call.

  Returns:
    A Reporter; its `run_dir` tells where it writes.

  Raises:
    ValueError: the directory cannot be used. Failing writers don't raise.
  """
  if not isinstance(run_dir, RunDir):
    run_dir = make_run_dir(run_dir)
  if clock is None:
    origin_s = time.monotonic()
    clock = lambda: time.monotonic() - origin_s  # noqa: E731
  if flags is not None:
    write_flagfile(run_dir, flags)
  attempt = begin_attempt(
    run_dir,
    config=config or {},
    lanes=lanes or {},
    started_unix_s=time.time(),
  )
  where, now = run_dir, clock
  # In the order of closing: the report reads the files, the view tells of
  # everything that fails.
  factories: dict[str, Callable[[], Reporter]] = {
    "decision log": lambda: DecisionLog(where, attempt, now),
    "timeline": lambda: TraceWriter(where.trace(attempt), now),
    "TensorBoard": lambda: TensorBoardWriter(where),
    "metrics and events": lambda: JsonlWriter(where, attempt, now),
    "report": lambda: ReportWriter(where),
    "live view": lambda: make_view(stream or sys.stdout, live),
  }
  writers, failures = {}, {}
  for name, factory in factories.items():
    try:
      writers[name] = factory()
    except Exception as error:  # such as a package that is not installed
      failures[name] = error
  reporter = CompositeReporter(writers, run_dir=run_dir)
  for name, error in failures.items():
    reporter.report_failure(name, error)
  return reporter
