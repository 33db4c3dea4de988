"""report.html: a run on one page that needs no other file and no network."""

import collections
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybridrl.metrics import DeviceState, Interval, device_seconds
from hybridrl.reporting import svg
from hybridrl.reporting.diagnosis import limiting_sentence
from hybridrl.reporting.live import duration_text
from hybridrl.reporting.report_style import CSS
from hybridrl.reporting.run_dir import RunDir, write_atomically
from hybridrl.reporting.run_record import RunRecord, read_run
from hybridrl.reporting.writer import NullReporter
from hybridrl.scheduling import Reason

_STATE_LABELS: Mapping[DeviceState, str] = {
  DeviceState.ROLLOUT: "rollout",
  DeviceState.TRAIN: "train",
  DeviceState.WEIGHT_SYNC: "weight sync",
  DeviceState.SWITCHING: "switching",
  DeviceState.IDLE: "idle",
}
_REWARD = "critic/score/mean"
_UTILISATIONS = (
  ("all devices", "c1", "dynamic_resource/resource_utilization"),
  ("train", "c2", "dynamic_resource/train_resource_utilization"),
  ("rollout", "c3", "dynamic_resource/rollout_resource_utilization"),
)
# A page of thousands of rows opens slowly and is read by nobody; the whole log
# is in decisions.jsonl.
_MAX_DECISIONS = 300
_MAX_DEVICES = 64
# Bins of all lanes together, so that the page stays below about 2 MB.
_MAX_BINS = 16_000


class ReportWriter(NullReporter):
  """Writes the report when the run closes, after the other files."""

  def __init__(self, run_dir: RunDir):
    self._run_dir = run_dir

  def close(self) -> None:
    write_report(self._run_dir)


def write_report(run_dir: RunDir) -> None:
  """Makes report.html from what the directory holds.

  Raises:
    ValueError: the directory holds no run, or a file is damaged.
  """
  page = render(
    read_run(run_dir),
    run_dir.flagfile.read_text(encoding="utf-8")
    if run_dir.flagfile.exists()
    else "",
  )
  write_atomically(run_dir.report, page)


def render(run: RunRecord, flags_text: str = "") -> str:
  """The page."""
  title = f"hybridrl: {html.escape(run.name)}"
  timelines = run.timelines()
  body = "\n".join(
    (
      f"<h1>{title}</h1>",
      f'<p class="lead">{html.escape(_diagnosis(run, timelines))}</p>',
      _tiles(run),
      "<h2>What each device did</h2>",
      _lanes(run, timelines),
      "<h2>Learning</h2>",
      f'<div class="charts">{_learning(run)}</div>',
      "<h2>Flow of samples</h2>",
      f'<div class="charts">{_flow(run)}</div>',
      "<h2>Lending decisions</h2>",
      _decisions(run),
      _events(run),
      _flags(flags_text),
    )
  )
  return (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<title>{title}</title><style>{CSS}</style></head>"
    f"<body>\n{body}\n</body></html>\n"
  )


def _device_groups(
  run: RunRecord,
) -> tuple[set[int], set[int]]:
  """Devices of the trainer, and those that only generate."""
  trainer = set(run.lanes.get("learner", ()))
  every = {d for devices in run.lanes.values() for d in devices}
  return trainer, every - trainer


def _diagnosis(
  run: RunRecord, timelines: Mapping[int, Sequence[Interval]]
) -> str:
  trainer, standalone = _device_groups(run)

  def seconds(devices: set[int]) -> dict[DeviceState, float]:
    return device_seconds({d: timelines[d] for d in devices if d in timelines})

  name = "dynamic_resource/rollout_resource_utilization"
  used = [value for _, value in run.series(name, by_step=True)]
  mean = sum(used) / len(used) if used else None
  return limiting_sentence(seconds(trainer), seconds(standalone), mean)


def _tiles(run: RunRecord) -> str:
  rewards = [value for _, value in run.series(_REWARD, by_step=True)]
  tenth = max(1, len(rewards) // 10)
  tiles = [
    ("wall time", duration_text(run.end_s)),
    ("micro-steps", str(max((row.step for row in run.rows), default=0))),
    ("weight version", str(max((r.version for r in run.rows), default=0))),
  ]
  if rewards:
    first = sum(rewards[:tenth]) / tenth
    last = sum(rewards[-tenth:]) / tenth
    tiles.append(("reward, first to last tenth", f"{first:.2f} → {last:.2f}"))
  for label, _, name in _UTILISATIONS[:1]:
    values = [value for _, value in run.series(name, by_step=True)]
    if values:
      mean = sum(values) / len(values)
      tiles.append((f"utilisation, {label}", f"{mean:.0%}"))
  if len(run.attempts) > 1:
    tiles.append(("starts and resumes", str(len(run.attempts))))
  cells = "".join(
    f'<div class="tile"><small>{label}</small><b>{html.escape(value)}</b></div>'
    for label, value in tiles
  )
  return f'<div class="tiles">{cells}</div>'


def _lanes(run: RunRecord, timelines: Mapping[int, Sequence[Interval]]) -> str:
  """A bar per device under a legend, over one axis of time."""
  start_s, end_s = run.window()
  if not timelines or end_s <= start_s:
    return '<p class="none">No timeline was recorded.</p>'
  trainer, _ = _device_groups(run)
  totals = device_seconds(timelines)
  everything = sum(totals.values())
  legend = "".join(
    f'<span><i class="{state}"></i>{label} {totals[state] / everything:.1%}'
    "</span>"
    for state, label in _STATE_LABELS.items()
  )
  shown = list(timelines)[:_MAX_DEVICES]
  bins = min(svg.LANE_BINS, _MAX_BINS // len(shown))
  rows = []
  for device in shown:
    kind = "trainer" if device in trainer else "rollout"
    own = device_seconds({device: timelines[device]})
    text = ", ".join(
      f"{_STATE_LABELS[state]} {seconds:.1f} s"
      for state, seconds in own.items()
      if seconds > 0
    )
    title = f"device {device} ({kind}): {text}"
    rows.append(f"<span>{device} {kind}</span>")
    rows.append(f"<div>{svg.lane(timelines[device], title, bins)}</div>")
  axis = "".join(
    f'<span style="left:{100 * (t - start_s) / (end_s - start_s):.2f}%">'
    f"{svg.number_text(t)} s</span>"
    for t in svg.ticks(start_s, end_s, 6)
  )
  notes = []
  if len(timelines) > len(shown):
    notes.append(f"{len(timelines) - len(shown)} further devices not shown.")
  generated = {s.lane for s in run.spans if s.state is DeviceState.ROLLOUT}
  silent = sorted(
    name
    for name, devices in run.lanes.items()
    if name not in generated and not trainer & set(devices)
  )
  if silent:
    notes.append(
      f"No generation was reported by {', '.join(silent)}: what looks idle "
      "there may not be."
    )
  notes += [
    f"Between {a:.0f} s and {b:.0f} s the bounded timeline was full; nothing "
    "recorded there is not idleness."
    for a, b in run.left_out
  ]
  return (
    f'<div class="legend">{legend}</div><div class="lanes">{"".join(rows)}'
    f'<span></span><div class="axis">{axis}</div></div>'
    f'<p class="soft">{" ".join(notes)}</p>'
  )


def _learning(run: RunRecord) -> str:
  names = {name for row in run.rows for name in row.values}
  validation = sorted(n for n in names if n.startswith("val"))[:3]
  series = [("training, before any filter", "c1", _REWARD)]
  series += [
    (name, f"c{i}", name) for i, name in enumerate(validation, start=2)
  ]
  charts = []
  for by_step, label in ((True, "micro-step"), (False, "wall time (s)")):
    lines = [
      svg.Series(text, css, run.series(name, by_step))
      for text, css, name in series
    ]
    what = "micro-step" if by_step else "wall time"
    charts.append(svg.line_chart(f"Mean reward over {what}", lines, label))
  return "".join(charts)


def _flow(run: RunRecord) -> str:
  backlog = run.backlog or run.series("dynamic_resource/mq_size", by_step=False)
  utilisations = [
    svg.Series(label, css, run.series(name, by_step=True))
    for label, css, name in _UTILISATIONS
  ]
  lengths = [
    svg.Series("mean", "c1", run.series("response_length/mean", by_step=True))
  ]
  return (
    svg.line_chart(
      "Backlog: finished samples that wait",
      [svg.Series("backlog", "c1", backlog)],
      "wall time (s)",
    )
    + svg.line_chart(
      "Utilisation per cycle", utilisations, "micro-step", y_range=(0.0, 1.0)
    )
    + svg.line_chart("Response length (tokens)", lengths, "micro-step")
  )


def reason_text(code: Any) -> str:
  """'lend behind' for a code of Reason; other codes are a user's."""
  try:
    return Reason(int(code)).name.lower().replace("_", " ")
  except (ValueError, TypeError):
    return f"reason {code}"


def _decision_row(time_s: float, record: Mapping[str, Any]) -> list[str]:
  context, final = record["context"], record["decision"]
  limited = final["lend"] != record["raw"]["lend"]
  asked = f" (policy asked for {record['raw']['lend']})" if limited else ""
  return [
    f"{time_s:.1f}",
    str(record["step"]),
    str(record["phase"]).lower().replace("_", " "),
    str(context.get("backlog_samples", "")),
    str(final["lend"]),
    str(final["wait_samples"]),
    reason_text(final["reason"]) + asked,
  ]


def _decisions(run: RunRecord) -> str:
  """How often each reason was given; the calls that changed what is lent."""
  calls = [c for c in run.decisions if c.record["phase"] != "CYCLE_END"]
  if not calls:
    return '<p class="none">No policy was asked.</p>'
  counts = collections.Counter(
    (c.record["phase"], c.record["decision"]["reason"]) for c in calls
  )
  summary = _table(
    ("phase", "reason", "calls"),
    (
      [phase.lower().replace("_", " "), reason_text(reason), str(count)]
      for (phase, reason), count in counts.most_common()
    ),
    numeric=(2,),
  )
  changes, lent = [], None
  for call in calls:
    if call.record["decision"]["lend"] != lent:
      changes.append(_decision_row(call.time_s, call.record))
    lent = call.record["decision"]["lend"]
  shown = changes[-_MAX_DECISIONS:]
  note = f"{len(calls)} calls, {len(changes)} changed what is lent"
  if len(shown) < len(changes):
    note += f"; the last {len(shown)} of those"
  table = _table(
    ("time (s)", "step", "phase", "backlog", "lends", "waits for", "reason"),
    shown,
    numeric=(0, 1, 3, 4, 5),
  )
  return f'<div class="scroll">{summary}</div><p>{note}:</p>' + (
    f'<div class="scroll">{table}</div>'
  )


def _events(run: RunRecord, most: int = 200) -> str:
  rows = [
    [f"{e.time_s:.1f}", str(e.record["kind"]), str(e.record["message"])]
    for e in run.events[-most:]
  ]
  if not rows:
    return ""
  table = _table(("time (s)", "kind", "what"), rows, numeric=(0,))
  return (
    f"<h2>Events</h2><details><summary>the last {len(rows)} of "
    f'{len(run.events)}</summary><div class="scroll">{table}</div></details>'
  )


def _flags(text: str) -> str:
  if not text:
    return ""
  return (
    "<h2>Flags</h2><details><summary>as a flagfile</summary>"
    f"<pre>{html.escape(text)}</pre></details>"
  )


def _table(
  head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int]
) -> str:
  def cells(tag: str, row: Sequence[str]) -> str:
    return "".join(
      f"<{tag}{' class=n' if i in numeric else ''}>{html.escape(cell)}</{tag}>"
      for i, cell in enumerate(row)
    )

  body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
  return (
    f"<table><thead><tr>{cells('th', head)}</tr></thead>"
    f"<tbody>{body}</tbody></table>"
  )
