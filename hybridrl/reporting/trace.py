"""The timeline of a run in Chrome's trace format, which Perfetto opens.

One track per lane (the learner, a replica, the driver); where spans of a lane
overlap without nesting, which the format cannot draw on one track, the later
one goes to a second track of that lane. Backlog and requests in flight are
counters, events are marks.

The file is bounded: the first records go straight to it, those after them
into a buffer of the newest, which is written at close; what fell out between
is one span 'left out'. A killed run keeps what was in the file, and the
format allows the missing end.
"""

import collections
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hybridrl.reporting import json_codec
from hybridrl.reporting.reporter import Progress
from hybridrl.reporting.writer import NullReporter

# About 150 bytes a record: 15 MB at most, which Perfetto loads in a second.
MAX_RECORDS = 100_000
# Spans of a track that a new one is compared with. Spans arrive in the order
# of their ends, so only long outer spans would need more.
_RECENT_SPANS = 64
LEFT_OUT = "left out"


class TraceSpan(NamedTuple):
  """A span as it was reported; seconds since the run began."""

  lane: str
  name: str
  start_s: float
  end_s: float
  args: dict[str, Any]


def _crosses(a: tuple[float, float], b: tuple[float, float]) -> bool:
  """True if the two overlap and neither contains the other."""
  (first, second) = sorted((a, b), key=lambda s: (s[0], -s[1]))
  return first[0] < second[0] < first[1] < second[1]


class _Tracks:
  """Assigns spans to tracks on which they nest."""

  def __init__(self):
    self._of_lane: dict[str, list[tuple[int, collections.deque]]] = {}
    self._count = 0

  def place(self, lane: str, start_s: float, end_s: float) -> tuple[int, bool]:
    """(track id, whether it is new) for a span."""
    tracks = self._of_lane.setdefault(lane, [])
    span = (start_s, end_s)
    for track, recent in tracks:
      if not any(_crosses(span, other) for other in recent):
        recent.append(span)
        return track, False
    self._count += 1
    recent = collections.deque([span], maxlen=_RECENT_SPANS)
    tracks.append((self._count, recent))
    return self._count, True

  def name_of(self, lane: str, track: int) -> str:
    numbers = [number for number, _ in self._of_lane[lane]]
    place = numbers.index(track)
    return lane if place == 0 else f"{lane} ({place + 1})"


class TraceWriter(NullReporter):
  """Writes one trace file."""

  def __init__(
    self,
    path: pathlib.Path,
    clock: Callable[[], float],
    max_records: int = MAX_RECORDS,
  ):
    """Opens the file, replacing one of that name.

    Args:
      path: the file.
      clock: seconds since the run began, for events.
      max_records: spans, counters and marks to keep, half of them from the
        beginning and half from the end.
    """
    self._file = path.open("w", encoding="utf-8")
    self._clock = clock
    self._head_left = max_records - max_records // 2
    self._tail: collections.deque[tuple[float, dict]] = collections.deque(
      maxlen=max(1, max_records // 2)
    )
    self._tracks = _Tracks()
    self._dropped = 0
    self._dropped_from_s = 0.0
    self._last_counters: tuple[int, int] | None = None
    self._file.write("[\n")
    name = {"ph": "M", "pid": 1, "name": "process_name"}
    self._write({**name, "args": {"name": "hybridrl"}}, first=True)

  def span(
    self, lane: str, name: str, start_s: float, end_s: float, **args: Any
  ) -> None:
    track, is_new = self._tracks.place(lane, start_s, end_s)
    if is_new:
      self._name_track(lane, track)
    record = {
      "ph": "X",
      "pid": 1,
      "tid": track,
      "cat": lane,
      "name": name,
      "ts": _microseconds(start_s),
      "dur": max(0.0, _microseconds(end_s) - _microseconds(start_s)),
    }
    if args:
      record["args"] = json_codec.to_jsonable(args)
    self._keep(end_s, record)

  def event(self, kind: str, message: str, **fields: Any) -> None:
    now_s = self._clock()
    record = {"ph": "i", "pid": 1, "tid": 0, "s": "g", "name": kind}
    record["ts"] = _microseconds(now_s)
    record["args"] = json_codec.to_jsonable({"message": message, **fields})
    self._keep(now_s, record)

  def progress(self, snapshot: Progress) -> None:
    counters = (snapshot.backlog_samples, snapshot.in_flight_samples)
    if counters == self._last_counters:
      return
    self._last_counters = counters
    args = {"backlog": counters[0], "in flight": counters[1]}
    record = {"ph": "C", "pid": 1, "name": "samples", "args": args}
    record["ts"] = _microseconds(snapshot.elapsed_s)
    self._keep(snapshot.elapsed_s, record)

  def close(self) -> None:
    if self._dropped:
      first_s = self._tail[0][0]
      self._write(
        {
          "ph": "X",
          "pid": 1,
          "tid": 0,
          "cat": "trace",
          "name": LEFT_OUT,
          "ts": _microseconds(self._dropped_from_s),
          "dur": _microseconds(max(0.0, first_s - self._dropped_from_s)),
          "args": {"records": self._dropped},
        }
      )
    for _, record in self._tail:
      self._write(record)
    self._file.write("\n]\n")
    self._file.close()

  def _name_track(self, lane: str, track: int) -> None:
    label = {"name": self._tracks.name_of(lane, track)}
    base = {"ph": "M", "pid": 1, "tid": track}
    self._write({**base, "name": "thread_name", "args": label})
    order = {"sort_index": track}
    self._write({**base, "name": "thread_sort_index", "args": order})

  def _keep(self, time_s: float, record: dict[str, Any]) -> None:
    """Writes a record, or buffers it once the file has its first half."""
    if self._head_left > 0:
      self._head_left -= 1
      self._dropped_from_s = time_s
      self._write(record)
      self._file.flush()
      return
    if len(self._tail) == self._tail.maxlen:
      self._dropped += 1
    self._tail.append((time_s, record))

  def _write(self, record: dict[str, Any], first: bool = False) -> None:
    text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    self._file.write(text if first else ",\n" + text)


def _microseconds(seconds: float) -> float:
  return round(seconds * 1e6, 3)


def read_records(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """The records of a trace file, also of one without its end.

  Raises:
    ValueError: a line that is not the last holds no record.
  """
  if not path.exists():
    return
  lines = path.read_text(encoding="utf-8").split("\n")
  for number, line in enumerate(lines, start=1):
    text = line.strip().rstrip(",")
    if text in ("", "[", "]"):
      continue
    try:
      yield json.loads(text)
    except ValueError as error:
      if number == len(lines):
        return  # what a killed process was writing
      raise ValueError(f"{path}:{number}: {error}") from error


def read_spans(path: pathlib.Path) -> Iterator[TraceSpan]:
  """The spans of a trace file, in the order in which they ended.

  Records that were left out show as one span of the lane 'trace'.
  """
  for record in read_records(path):
    if record["ph"] == "X":
      start_s = record["ts"] / 1e6
      yield TraceSpan(
        record["cat"],
        record["name"],
        start_s,
        start_s + record["dur"] / 1e6,
        record.get("args", {}),
      )
