"""What a person sees while a run goes on: a live table, or plain lines."""

import collections
import math
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hybridrl.reporting.reporter import Progress
from hybridrl.reporting.writer import NullReporter

# The eye wants no more than this; each refresh costs about a millisecond.
_REFRESH_S = 0.25
# Without a terminal: a line at least this often, beside one a version.
_LINE_EVERY_S = 10.0
# Steps whose mean duration the forecast uses: enough for a few cycles, few
# enough to follow a change.
_ETA_STEPS = 20


class EtaEstimate:
  """Remaining seconds, from the time that the last steps took.

  Start-up counts for nothing: time runs from the end of the first step that
  this process saw, also after a resume.
  """

  def __init__(self, window_steps: int = _ETA_STEPS):
    self._start_step: int | None = None
    # (step, time at which it was first seen to be done)
    self._seen: collections.deque[tuple[int, float]] = collections.deque(
      maxlen=window_steps + 1
    )

  def update(self, snapshot: Progress) -> float | None:
    """Seconds to the last step; None before a step's time is known."""
    if self._start_step is None:
      self._start_step = snapshot.step
    done = self._seen[-1][0] if self._seen else self._start_step
    if snapshot.step > done:
      self._seen.append((snapshot.step, snapshot.elapsed_s))
    if len(self._seen) < 2:
      return None
    (first, start_s), (last, end_s) = self._seen[0], self._seen[-1]
    step_s = (end_s - start_s) / (last - first)
    # A step that is under way has used some of its time already.
    since_s = min(snapshot.elapsed_s - end_s, step_s)
    return max(0.0, (snapshot.total_steps - last) * step_s - since_s)


def duration_text(seconds: float | None) -> str:
  """'47 s', '12 min 03 s', '5 h 07 min', or '-' for None."""
  if seconds is None or not math.isfinite(seconds):
    return "-"
  whole = round(seconds)
  if whole < 60:
    return f"{whole} s"
  if whole < 3600:
    return f"{whole // 60} min {whole % 60:02d} s"
  return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _switch_text(seconds: float | None) -> str:
  return "-" if seconds is None else f"{seconds:.2f} s"


def _reward_text(reward: float | None) -> str:
  return "-" if reward is None else f"{reward:.3f}"


def _lent_text(lent: tuple[str, ...], most: int = 4) -> str:
  shown = ", ".join(lent[:most])
  return f"{shown} and {len(lent) - most} more" if len(lent) > most else shown


def plain_line(snapshot: Progress, eta_s: float | None) -> str:
  """One line with everything that the table shows."""
  s = snapshot
  parts = [
    f"[{duration_text(s.elapsed_s)}]",
    f"step {s.step}/{s.total_steps}",
    f"version {s.version}",
    f"reward {_reward_text(s.reward)}",
    f"backlog {s.backlog_samples}",
    f"in flight {s.in_flight_samples}/{s.capacity_samples}",
    f"learner {s.learner_state}",
    f"lent {_lent_text(s.lent) or 'none'}",
    f"switch {_switch_text(s.last_activate_s)}"
    f"/{_switch_text(s.last_reclaim_s)}",
    f"ETA {duration_text(eta_s)}",
  ]
  if s.waiting_for:
    parts.append(f"waiting: {s.waiting_for}")
  return "  ".join(parts)


def table(snapshot: Progress, eta_s: float | None) -> Table:
  """The live view of one snapshot."""
  s = snapshot
  rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
  rows.add_column(style="bold", no_wrap=True)
  rows.add_column(overflow="fold")
  bar = _bar(s.step, s.total_steps)
  lent = _lent_text(s.lent)
  for label, value in (
    ("step", f"{s.step} of {s.total_steps}  {bar}"),
    ("time", f"{duration_text(s.elapsed_s)}, ETA {duration_text(eta_s)}"),
    ("version", str(s.version)),
    ("reward", _reward_text(s.reward)),
    ("backlog", f"{s.backlog_samples} samples wait"),
    ("in flight", f"{s.in_flight_samples} of {s.capacity_samples} samples"),
    ("learner", s.learner_state),
    ("lent", lent or "none"),
    (
      "last switch",
      f"activated in {_switch_text(s.last_activate_s)}, "
      f"reclaimed in {_switch_text(s.last_reclaim_s)}",
    ),
    ("waiting for", s.waiting_for or "-"),
  ):
    rows.add_row(label, Text(value))
  return rows


def _bar(step: int, total: int, width: int = 24) -> str:
  filled = round(width * min(1.0, step / total)) if total > 0 else 0
  return "━" * filled + "╌" * (width - filled)


class LiveView(NullReporter):
  """A table that redraws in place, events scrolling above it."""

  def __init__(self, stream: TextIO, force_terminal: bool | None = None):
    console = Console(file=stream, force_terminal=force_terminal)
    # No refresh thread: the driver's own snapshots redraw it.
    self._live = Live(console=console, auto_refresh=False, transient=False)
    self._eta = EtaEstimate()
    self._drawn_s = -math.inf
    self._live.start()

  def event(self, kind: str, message: str, **fields: Any) -> None:
    del fields
    self._live.console.print(Text.assemble((f"{kind}: ", "bold"), message))

  def progress(self, snapshot: Progress) -> None:
    eta_s = self._eta.update(snapshot)
    is_last = snapshot.step >= snapshot.total_steps
    if snapshot.elapsed_s - self._drawn_s < _REFRESH_S and not is_last:
      return
    self._drawn_s = snapshot.elapsed_s
    self._live.update(table(snapshot, eta_s), refresh=True)

  def close(self) -> None:
    self._live.stop()


class PlainLines(NullReporter):
  """A line per version, per event, and every few seconds."""

  def __init__(self, stream: TextIO, every_s: float = _LINE_EVERY_S):
    self._stream = stream
    self._every_s = every_s
    self._eta = EtaEstimate()
    self._printed_s = -math.inf
    self._version: int | None = None

  def event(self, kind: str, message: str, **fields: Any) -> None:
    del fields
    print(f"{kind}: {message}", file=self._stream, flush=True)

  def progress(self, snapshot: Progress) -> None:
    eta_s = self._eta.update(snapshot)
    due = snapshot.elapsed_s - self._printed_s >= self._every_s
    if not due and snapshot.version == self._version:
      return
    self._printed_s = snapshot.elapsed_s
    self._version = snapshot.version
    print(plain_line(snapshot, eta_s), file=self._stream, flush=True)


def make_view(stream: TextIO, live: bool | None = None):
  """The live view on a terminal, plain lines elsewhere.

  Args:
    stream: where to write.
    live: True or False decides; None asks the stream.
  """
  if live is None:
    live = stream.isatty()
  if not live:
    return PlainLines(stream)
  return LiveView(stream, force_terminal=True)
