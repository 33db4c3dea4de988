"""A run read back from its directory, attempts joined to one history.

A resume starts its clock and its files' attempt number anew. Here times go on
where the earlier attempt ended, and what an attempt reported at or beyond the
first step of a later one is superseded by it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridrl.metrics import (
  SPAN_STATES,
  Interval,
  Span,
  device_timelines,
)
from hybridrl.reporting import trace
from hybridrl.reporting.decision_log import read_decisions
from hybridrl.reporting.jsonl import read_lines
from hybridrl.reporting.run_dir import RunDir, read_attempts


class Row(NamedTuple):
  """One report of metrics; time_s counts from the first attempt's start."""

  time_s: float
  step: int
  version: int
  values: Mapping[str, float]


class Timed(NamedTuple):
  """An event or a decision, as it was reported, at its time."""

  time_s: float
  record: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
  """What a run left.

  Attributes:
    name: of the directory.
    attempts: entries of run.json.
    rows: reports of metrics in order, superseded ones left out.
    decisions: policy calls of all attempts.
    events: of all attempts.
    backlog: (time_s, samples) whenever the backlog changed.
    spans: on lanes with devices, under names that say a state.
    left_out: (start_s, end_s) of stretches that the timeline doesn't hold.
    lanes: devices of each lane, of the last attempt.
    end_s: the last time that anything was reported.
  """

  name: str
  attempts: Sequence[Mapping[str, Any]]
  rows: Sequence[Row]
  decisions: Sequence[Timed]
  events: Sequence[Timed]
  backlog: Sequence[tuple[float, float]]
  spans: Sequence[Span]
  left_out: Sequence[tuple[float, float]]
  lanes: Mapping[str, Sequence[int]]
  end_s: float

  def series(self, name: str, by_step: bool) -> list[tuple[float, float]]:
    """(step or time_s, value) of the reports that hold this metric."""
    return [
      (float(row.step) if by_step else row.time_s, float(row.values[name]))
      for row in self.rows
      if name in row.values
    ]

  def window(self) -> tuple[float, float]:
    """From the first to the last span: start-up is not part of the picture."""
    if not self.spans:
      return 0.0, 0.0
    return (
      min(span.start_s for span in self.spans),
      max(span.end_s for span in self.spans),
    )

  def timelines(self) -> dict[int, list[Interval]]:
    """States of each device over the window."""
    return device_timelines(self.spans, self.lanes, *self.window())


def read_run(run_dir: RunDir) -> RunRecord:
  """Reads a run that has ended, was killed, or is still going on.

  Raises:
    ValueError: the directory holds no run, or a file is damaged.
  """
  attempts = read_attempts(run_dir)
  if not attempts:
    raise ValueError(f"{run_dir.root}: no run (run.json is missing)")
  metrics = list(read_lines(run_dir.metrics))
  events = list(read_lines(run_dir.events))
  decisions = list(read_decisions(run_dir.decisions))
  numbers = range(1, len(attempts) + 1)
  traces = {n: list(trace.read_records(run_dir.trace(n))) for n in numbers}

  ends_s = dict.fromkeys(numbers, 0.0)
  for line in (*metrics, *events):
    ends_s[line["attempt"]] = max(ends_s[line["attempt"]], line["time_s"])
  for call in decisions:
    ends_s[call.attempt] = max(ends_s[call.attempt], call.time_s)
  for number, records in traces.items():
    for r in records:
      end_s = (r.get("ts", 0.0) + r.get("dur", 0.0)) / 1e6
      ends_s[number] = max(ends_s[number], end_s)
  offsets_s, total_s = {}, 0.0
  for number in numbers:
    offsets_s[number] = total_s
    total_s += ends_s[number]

  lanes = attempts[-1]["lanes"]
  spans, left_out, backlog = _from_traces(traces, offsets_s, lanes)
  return RunRecord(
    name=run_dir.root.resolve().name,
    attempts=attempts,
    rows=_rows(metrics, offsets_s),
    decisions=[
      Timed(call.time_s + offsets_s[call.attempt], call.record)
      for call in decisions
    ],
    events=[
      Timed(line["time_s"] + offsets_s[line["attempt"]], line)
      for line in events
    ],
    backlog=backlog,
    spans=spans,
    left_out=left_out,
    lanes=lanes,
    end_s=total_s,
  )


def _rows(
  lines: Sequence[Mapping[str, Any]], offsets_s: Mapping[int, float]
) -> list[Row]:
  """The reports that no later attempt superseded."""
  first_step: dict[int, int] = {}
  for line in lines:
    number = line["attempt"]
    first_step[number] = min(first_step.get(number, line["step"]), line["step"])
  return [
    Row(
      line["time_s"] + offsets_s[line["attempt"]],
      line["step"],
      line["version"],
      line["values"],
    )
    for line in lines
    if not any(
      later > line["attempt"] and line["step"] >= step
      for later, step in first_step.items()
    )
  ]


def _from_traces(
  traces: Mapping[int, Sequence[Mapping[str, Any]]],
  offsets_s: Mapping[int, float],
  lanes: Mapping[str, Sequence[int]],
) -> tuple[list[Span], list[tuple[float, float]], list[tuple[float, float]]]:
  """Spans of devices, stretches left out, and the backlog over time."""
  spans, left_out, backlog = [], [], []
  for number, records in traces.items():
    for record in records:
      if "ts" not in record:
        continue
      start_s = record["ts"] / 1e6 + offsets_s[number]
      end_s = start_s + record.get("dur", 0.0) / 1e6
      if record["ph"] == "C":
        backlog.append((start_s, float(record["args"]["backlog"])))
      elif record["ph"] != "X":
        continue
      elif record["name"] == trace.LEFT_OUT and record["cat"] == "trace":
        left_out.append((start_s, end_s))
      elif record["cat"] in lanes and record["name"] in SPAN_STATES:
        state = SPAN_STATES[record["name"]]
        spans.append(Span(record["cat"], state, start_s, end_s))
  return spans, left_out, backlog
