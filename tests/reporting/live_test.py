import io
import re

import pytest
from rich.console import Console

from hybridrl.reporting import live
from tests.reporting.synthetic_run import snapshot

# What the issue asks for: step, version, reward, backlog, who is lent, switch
# times, ETA; and the wait, so that a stalled run says why.
_FACTS = (
  r"3(/| of )10",
  r"version +2",
  r"reward +0\.438",
  r"backlog +7",
  r"12(/| of )32",
  r"lent +hybrid-0",
  r"1\.25 s.*0\.50 s",
  r"ETA 7 s",
  r"trainer: 16 samples",
)


def _rendered(view):
  stream = io.StringIO()
  Console(file=stream, width=100).print(view)
  return stream.getvalue()


@pytest.mark.parametrize("fact", _FACTS)
def test_the_table_and_the_line_show_every_fact(fact):
  assert re.search(fact, live.plain_line(snapshot(), 7.0))
  assert re.search(fact, _rendered(live.table(snapshot(), 7.0)))


def test_unknown_facts_are_dashes():
  early = snapshot(
    reward=None, last_activate_s=None, last_reclaim_s=None, lent=(), step=0
  )
  line = live.plain_line(early, None)
  assert "reward -" in line
  assert "switch -/-" in line
  assert "lent none" in line
  assert line.endswith("ETA -  waiting: trainer: 16 samples")
  nothing = snapshot(total_steps=0, step=0, waiting_for="")
  assert "waiting" not in live.plain_line(nothing, None)
  assert "0 of 0" in _rendered(live.table(nothing, None))


def test_markup_in_a_reason_is_shown_as_it_is():
  odd = snapshot(waiting_for="[bold]x[/] [/nothing]")
  assert "[bold]x[/] [/nothing]" in _rendered(live.table(odd, 1.0))


def test_many_lent_replicas_fit_a_line():
  lent = tuple(f"hybrid-{i}" for i in range(16))
  line = live.plain_line(snapshot(lent=lent), 1.0)
  assert "hybrid-3 and 12 more" in line
  assert "hybrid-4" not in line


@pytest.mark.parametrize(
  ("seconds", "text"),
  [
    (None, "-"),
    (float("inf"), "-"),
    (0.4, "0 s"),
    (59.4, "59 s"),
    (59.6, "1 min 00 s"),
    (723.0, "12 min 03 s"),
    (3599.9, "1 h 00 min"),
    (18420.0, "5 h 07 min"),
  ],
)
def test_durations(seconds, text):
  assert live.duration_text(seconds) == text


def _eta(points, total=10):
  estimate = live.EtaEstimate()
  return [
    estimate.update(snapshot(elapsed_s=t, step=step, total_steps=total))
    for t, step in points
  ]


def test_eta_counts_from_the_first_step():
  # 100 s of start-up, then 2 s a step.
  points = [(0.0, 0), (100.0, 1), (102.0, 2), (104.0, 3)]
  assert _eta(points) == [None, None, 16.0, 14.0]


def test_eta_falls_within_a_step_but_not_below_its_end():
  points = [(0.0, 0), (1.0, 1), (5.0, 2), (6.0, 2), (8.0, 2), (90.0, 2)]
  assert _eta(points) == [None, None, 32.0, 31.0, 29.0, 28.0]


def test_eta_of_a_resumed_run_counts_its_own_steps():
  # Resumed after step 5; 30 s of start-up and of step 6 tell nothing.
  points = [(0.0, 5), (30.0, 6), (33.0, 7)]
  assert _eta(points) == [None, None, 9.0]


def test_eta_follows_a_change_of_speed():
  slow = [(10.0 * i, i) for i in range(1, 30)]
  fast = [(290.0 + i, 29 + i) for i in range(1, 41)]
  assert _eta(slow + fast, total=100)[-1] == 31.0


def test_eta_ends_at_zero():
  assert _eta([(0.0, 7), (1.0, 8), (2.0, 9), (3.0, 10), (9.0, 10)])[-1] == 0.0


def test_plain_lines_come_with_versions_and_with_time():
  stream = io.StringIO()
  view = live.make_view(stream, None)
  assert isinstance(view, live.PlainLines)
  for elapsed_s, version in ((0, 0), (1, 0), (2, 1), (3, 1), (11, 1), (12, 1)):
    view.progress(snapshot(elapsed_s=elapsed_s, version=version))
  view.event("switch", "hybrid-0 was lent")
  view.close()
  lines = stream.getvalue().splitlines()
  assert [line.split("  ")[0] for line in lines[:3]] == [
    "[0 s]",
    "[2 s]",
    "[12 s]",
  ]
  assert lines[3:] == ["switch: hybrid-0 was lent"]
  assert "\x1b" not in stream.getvalue()


class _Terminal(io.StringIO):
  def isatty(self):
    return True


def test_on_a_terminal_the_view_redraws_in_place():
  stream = _Terminal()
  view = live.make_view(stream, None)
  assert isinstance(view, live.LiveView)
  view.progress(snapshot(elapsed_s=0.0, version=41))
  view.progress(snapshot(elapsed_s=0.1, version=42))  # too soon to draw
  view.event("switch", "[hybrid-0] was lent")
  view.progress(snapshot(elapsed_s=1.0, version=43))
  view.progress(snapshot(elapsed_s=1.1, version=44, step=10))  # the last one
  view.close()
  text = stream.getvalue()
  assert "[hybrid-0] was lent" in text
  for version, drawn in ((41, True), (42, False), (43, True), (44, True)):
    assert (f"{version}" in text) == drawn
  assert "\x1b[" in text
  assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back
