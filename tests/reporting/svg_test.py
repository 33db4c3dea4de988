import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.metrics import DeviceState, Interval
from hybridrl.reporting import svg


@pytest.mark.parametrize(
  ("low", "high", "right"),
  [
    (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    (0.0, 10.0, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
    (3.0, 3.0, [3.0]),
    (-1.0, 1.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    (950.0, 1510.0, [1000.0, 1200.0, 1400.0]),
  ],
)
def test_ticks(low, high, right):
  assert svg.ticks(low, high) == right


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9))
def test_ticks_are_few_and_lie_within(low, span):
  marks = svg.ticks(low, low + span)
  assert 1 <= len(marks) <= 8
  slack = 1e-6 * span
  assert all(low - slack <= m <= low + span + slack for m in marks)


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (0.25, "0.25"),
    (1234.0, "1234"),
    (12_000.0, "12k"),
    (3.5e6, "3.5M"),
    (2e9, "2G"),
    (-20_000.0, "-20k"),
  ],
)
def test_numbers_are_short(value, text):
  assert svg.number_text(value) == text


def test_thinning_takes_means_of_neighbours():
  points = [(float(i), float(i % 2)) for i in range(8)]
  assert svg.thin(points, 4) == [(i * 2 + 0.5, 0.5) for i in range(4)]
  assert svg.thin(points, 8) == points
  odd = [(0.0, math.nan), (1.0, 2.0), (2.0, math.inf)]
  assert svg.thin(odd) == [(1.0, 2.0)]
  assert svg.thin([]) == []


def _chart(points, **options):
  text = svg.line_chart(
    "A <title> & more", [svg.Series("a<b", "c1", points)], "x & y", **options
  )
  return text, ET.fromstring(text)


def test_a_chart_is_well_formed_and_escaped():
  text, root = _chart([(0.0, 1.0), (10.0, 3.0)])
  assert root.tag == "figure"
  caption = root.find("figcaption")
  assert caption is not None
  assert caption.text == "A <title> & more"
  assert "x &amp; y" in text


def test_points_are_placed_to_scale():
  _, root = _chart([(0.0, 0.0), (5.0, 1.0), (10.0, 2.0)], y_range=(0.0, 2.0))
  (line,) = [p for p in root.iter("path") if "line" in p.get("class", "")]
  numbers = [float(n) for n in re.findall(r"[\d.]+", line.get("d", ""))]
  xs, ys = numbers[::2], numbers[1::2]
  assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])
  assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2])
  assert xs[0] < xs[2]
  assert ys[0] > ys[2]  # up on the page is a smaller y


@pytest.mark.parametrize(
  "points", [[(3.0, 4.0)], [(3.0, 0.0)], [(1.0, 2.0), (1.0, 3.0)]]
)
def test_single_points_and_flat_lines_are_drawn(points):
  text, _ = _chart(points)
  assert "nan" not in text
  assert "class=" in text


def test_nothing_recorded_says_so():
  text = svg.line_chart("t", [svg.Series("a", "c1", [])], "x")
  assert "Nothing recorded." in text
  assert "<svg" not in text


def test_a_legend_only_for_several_lines():
  one, two = svg.Series("a", "c1", [(0, 1)]), svg.Series("b", "c2", [(0, 2)])
  assert "legend" not in svg.line_chart("t", [one], "x")
  assert svg.line_chart("t", [one, two], "x").count("<i class=") == 2


def _timeline(lengths):
  states = [DeviceState.TRAIN, DeviceState.ROLLOUT, DeviceState.IDLE]
  out, at = [], 0.0
  for i, length in enumerate(lengths):
    out.append(Interval(states[i % 3], at, at + length))
    at += length
  return out


def test_a_short_timeline_is_drawn_exactly():
  text = svg.lane(_timeline([2.0, 1.0, 1.0]), "device <0>", 100)
  root = ET.fromstring(text)
  shapes = {p.get("class"): p.get("d") for p in root.iter("path")}
  assert shapes == {
    "train": "M0.00 0h500.00v20h-500.00z",
    "rollout": "M500.00 0h250.00v20h-250.00z",
    "idle": "M750.00 0h250.00v20h-250.00z",
  }
  title = root.find("title")
  assert title is not None
  assert title.text == "device <0>"


@settings(deadline=None)
@given(
  st.lists(st.floats(0.01, 10.0), min_size=1, max_size=60), st.integers(1, 20)
)
def test_a_coarse_timeline_covers_the_same_window(lengths, bins):
  timeline = _timeline(lengths)
  out = svg.coarse(timeline, bins)
  assert len(out) <= max(bins, 1) or out == timeline
  assert out[0].start_s == timeline[0].start_s
  assert out[-1].end_s == pytest.approx(timeline[-1].end_s)
  for a, b in zip(out, out[1:], strict=False):
    assert a.end_s == b.start_s
  if bins < len(timeline):
    # Each bin shows a state that fills at least a third of it.
    width_s = timeline[-1].end_s / bins
    for i in range(bins):
      low, high = i * width_s, (i + 1) * width_s
      middle = (low + high) / 2
      shown = next(p.state for p in out if p.end_s >= middle)
      filled = sum(
        max(0.0, min(high, p.end_s) - max(low, p.start_s))
        for p in timeline
        if p.state is shown
      )
      assert filled >= width_s / 3 - 1e-9
