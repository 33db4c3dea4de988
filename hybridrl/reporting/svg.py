"""Small inline SVG charts: strings, no script, colours by CSS class. Pure."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from hybridrl.metrics import DeviceState, Interval

# A chart is as wide as a phone's text column, so its labels are readable
# there; on a wider page the charts stand side by side.
_WIDTH, _HEIGHT = 360, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 34
# More points than pixels add bytes, not information.
_MAX_POINTS = 320
LANE_BINS = 1000


class Series(NamedTuple):
  """A line: its label, its CSS class, and its points in order of x."""

  label: str
  css: str
  points: Sequence[tuple[float, float]]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
  """Round numbers within [low, high], about so many, steps of 1, 2 or 5."""
  if not high > low:
    return [low]
  raw = (high - low) / max(1, about)
  power = 10.0 ** math.floor(math.log10(raw))
  step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
  first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
  return [round(i * step, 12) for i in range(first, last + 1)]


def thin(
  points: Sequence[tuple[float, float]], most: int = _MAX_POINTS
) -> list[tuple[float, float]]:
  """At most `most` points: means of neighbours; those not finite left out."""
  kept = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
  size = math.ceil(len(kept) / most) if kept else 1
  groups = [kept[i : i + size] for i in range(0, len(kept), size)]
  return [
    (sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g))
    for g in groups
  ]


def number_text(value: float) -> str:
  """A short label: 0.25, 12, 1.2k, 3M."""
  for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
    if abs(value) >= limit:
      scale = 1e3 if unit == "k" else limit
      return f"{value / scale:.3g}{unit}"
  return f"{value:.4g}"


def line_chart(
  title: str,
  series: Sequence[Series],
  x_label: str,
  *,
  y_range: tuple[float, float] | None = None,
) -> str:
  """A figure with its title, a legend for more than one line, and the chart.

  Args:
    title: what is shown, with its unit.
    series: lines; those without points are left out.
    x_label: what runs to the right, with its unit.
    y_range: fixed range; None takes that of the points, 0 included.
  """
  lines = [s._replace(points=thin(s.points)) for s in series]
  lines = [s for s in lines if s.points]
  caption = f"<figcaption>{html.escape(title)}{_legend(lines)}</figcaption>"
  if not lines:
    return f"<figure>{caption}<p class=none>Nothing recorded.</p></figure>"
  xs = [x for s in lines for x, _ in s.points]
  ys = [y for s in lines for _, y in s.points]
  x0, x1 = min(xs), max(xs)
  y0, y1 = y_range or (min(0.0, *ys), max(0.0, *ys))
  if x1 <= x0:
    x0, x1 = x0 - 1, x1 + 1
  if y1 <= y0:
    y1 = y0 + 1

  def place(x: float, y: float) -> tuple[float, float]:
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    across = (x - x0) / (x1 - x0)
    up = min(1.0, max(0.0, (y - y0) / (y1 - y0)))
    return _LEFT + wide * across, _TOP + high * (1 - up)

  parts = [
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
    f'aria-label="{html.escape(title)}">'
  ]
  for value in ticks(y0, y1):
    _, y = place(x0, value)
    parts.append(
      f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
      f'<text class="end" x="{_LEFT - 5}" y="{y + 4:.1f}">'
      f"{number_text(value)}</text>"
    )
  base = _HEIGHT - _BOTTOM
  for value in ticks(x0, x1, 6):
    x, _ = place(value, y0)
    parts.append(
      f'<text class="mid" x="{x:.1f}" y="{base + 14}">'
      f"{number_text(value)}</text>"
    )
  parts.append(
    f'<text class="mid" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" '
    f'y="{_HEIGHT - 4}">{html.escape(x_label)}</text>'
  )
  for s in lines:
    places = [place(x, y) for x, y in s.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    if len(places) == 1:
      x, y = places[0]
      parts.append(f'<circle class="{s.css}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    parts.append(f'<path class="line {s.css}" d="M{path}"/>')
  return f"<figure>{caption}{''.join(parts)}</svg></figure>"


def _legend(lines: Sequence[Series]) -> str:
  if len(lines) < 2:
    return ""
  items = "".join(
    f'<span><i class="{s.css}"></i>{html.escape(s.label)}</span>' for s in lines
  )
  return f'<span class="legend">{items}</span>'


def coarse(
  timeline: Sequence[Interval], bins: int = LANE_BINS
) -> list[Interval]:
  """At most `bins` intervals: the state that fills most of each bin.

  A timeline that is short enough is returned as it is.
  """
  if len(timeline) <= bins:
    return list(timeline)
  start_s, end_s = timeline[0].start_s, timeline[-1].end_s
  width_s = (end_s - start_s) / bins
  out: list[Interval] = []
  position = 0
  for i in range(bins):
    low, high = start_s + i * width_s, start_s + (i + 1) * width_s
    filled: dict[DeviceState, float] = {}
    while timeline[position].end_s <= low and position + 1 < len(timeline):
      position += 1
    at = position
    while at < len(timeline) and timeline[at].start_s < high:
      piece = timeline[at]
      part_s = min(high, piece.end_s) - max(low, piece.start_s)
      filled[piece.state] = filled.get(piece.state, 0.0) + part_s
      at += 1
    state = max(filled, key=lambda s: filled[s])
    if out and out[-1].state is state:
      out[-1] = out[-1]._replace(end_s=high)
    else:
      out.append(Interval(state, low, high))
  return out


def lane(timeline: Sequence[Interval], title: str, bins: int) -> str:
  """One device's time as a bar that stretches with the page."""
  if not timeline:
    return ""
  start_s = timeline[0].start_s
  scale = 1000 / (timeline[-1].end_s - start_s)
  shapes: dict[DeviceState, list[str]] = {}
  for piece in coarse(timeline, bins):
    x = (piece.start_s - start_s) * scale
    width = (piece.end_s - piece.start_s) * scale
    shapes.setdefault(piece.state, []).append(
      f"M{x:.2f} 0h{width:.2f}v20h-{width:.2f}z"
    )
  paths = "".join(
    f'<path class="{state}" d="{"".join(d)}"/>' for state, d in shapes.items()
  )
  return (
    '<svg viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" '
    f'aria-label="{html.escape(title)}"><title>{html.escape(title)}</title>'
    f"{paths}</svg>"
  )
