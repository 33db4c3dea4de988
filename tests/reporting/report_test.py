import html.parser
import io
import re
import xml.etree.ElementTree as ET

import pytest

from hybridrl.reporting import report
from hybridrl.reporting.composite import make_reporter
from hybridrl.reporting.run_dir import make_run_dir
from hybridrl.reporting.trace import TraceWriter
from tests.reporting.synthetic_run import (
  LANES,
  Clock,
  decision,
  report_cycles,
)

_VOID = {"meta", "br"}


class _Page(html.parser.HTMLParser):
  """Checks that tags nest; collects text and attributes."""

  def __init__(self, text):
    super().__init__()
    self.stack, self.text, self.attributes = [], [], []
    self.feed(text)
    self.close()
    assert self.stack == []

  def handle_starttag(self, tag, attrs):
    self.attributes += [(tag, name, value) for name, value in attrs]
    if tag not in _VOID:
      self.stack.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.attributes += [(tag, name, value) for name, value in attrs]

  def handle_endtag(self, tag):
    assert self.stack.pop() == tag

  def handle_data(self, data):
    self.text.append(data)


def _make(path, cycles=12, tell=None, lanes=LANES):
  clock = Clock()
  reporter = make_reporter(
    path,
    flags={"lr": 1e-6, "note": "<b>"},
    lanes=lanes,
    stream=io.StringIO(),
    clock=clock,
  )
  report_cycles(reporter, clock, cycles)
  if tell:
    tell(reporter)
  reporter.close()
  assert reporter.run_dir is not None
  return reporter.run_dir.report.read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  return _make(tmp_path_factory.mktemp("run"))


def test_the_page_is_well_formed(page):
  parsed = _Page(page)
  assert "Lending decisions" in parsed.text
  for figure in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
    ET.fromstring(figure)


def test_the_page_needs_no_other_file_and_no_script(page):
  assert not re.search(r"https?:|url\(|@import|<script|<link|<img", page)
  names = {name for _, name, _ in _Page(page).attributes}
  assert not names & {"src", "href", "onclick", "onload"}


def test_the_page_says_what_limited_the_run(page):
  # Trainer devices: 37.5 % training, lent 2 s of 16 device-seconds a cycle.
  (lead,) = re.findall(r'<p class="lead">(.*?)</p>', page)
  assert lead.startswith("Generation limited the run")
  assert "trained for 38%" in lead


def test_every_device_has_a_lane_with_its_seconds(page):
  titles = re.findall(r"<title>(device .*?)</title>", page)
  assert titles == [
    "device 0 (trainer): train 36.0 s, weight sync 12.0 s, switching 24.0 s, "
    "rollout 24.0 s",
    "device 1 (trainer): train 36.0 s, weight sync 12.0 s, idle 48.0 s",
    "device 2 (rollout): weight sync 12.0 s, rollout 84.0 s",
  ]
  for label in ("rollout", "train", "weight sync", "switching", "idle"):
    assert re.search(rf"</i>{label} [\d.]+%", page)


@pytest.mark.parametrize(
  "title",
  [
    "Mean reward over micro-step",
    "Mean reward over wall time",
    "Backlog: finished samples that wait",
    "Utilisation per cycle",
  ],
)
def test_the_charts_are_there(page, title):
  (chart,) = re.findall(rf'<svg[^>]*aria-label="{title}".*?</svg>', page)
  assert 'class="line c1"' in chart


def test_decisions_are_shown_with_their_reasons(page):
  assert "lend behind" in page
  assert "reclaim" in page
  # 12 cycles, two calls each that changed what is lent; cycle ends left out.
  assert "24 calls, 24 changed what is lent:" in page
  assert page.count("<td>event</td>") == 13  # 12 rows, and the summary's


def test_a_limited_decision_tells_what_was_asked_for(tmp_path):
  def tell(reporter):
    raw = decision("EVENT", 3, 1)["raw"]
    limited = decision("EVENT", 2, 20)["raw"]
    reporter.decision(decision("EVENT", 2, 20, raw=raw, decision=limited))
    reporter.decision(decision("EVENT", 1, 1234))

  text = _make(tmp_path, tell=tell)
  assert "limit no hybrid (policy asked for 3)" in text
  assert "reason 1234" in text


def test_text_of_the_run_is_escaped(tmp_path):
  text = _make(
    tmp_path, tell=lambda r: r.event("x", "<script>alert(1)</script>")
  )
  assert "<script" not in text
  assert "--note=&lt;b&gt;" in text
  _Page(text)


def test_the_page_works_on_a_phone_in_the_dark_and_on_paper(page):
  assert 'name="viewport" content="width=device-width' in page
  assert "@media (prefers-color-scheme:dark)" in page
  assert "@media print" in page
  # Nothing has a fixed width above a phone's; what is wide scrolls by itself.
  widths = re.findall(r"(?<!max-)(?<!stroke-)width:(\d+)px", page)
  assert all(int(width) <= 360 for width in widths)
  assert all(
    page[: match.start()].endswith('<div class="scroll">')
    for match in re.finditer("<table>", page)
  )


def test_colours_exist_for_every_class_that_is_drawn(page):
  for name in ("rollout", "train", "weight_sync", "switching", "idle"):
    assert page.count(f"--{name}:#") == 3  # light, dark, paper
    assert f"path.{name}{{fill:var(--{name})}}" in page


def test_a_run_that_did_nothing_has_a_page(tmp_path):
  text = _make(tmp_path, cycles=0, lanes={})
  parsed = _Page(text)
  assert "The run recorded too little to say what limited it." in parsed.text
  assert "No timeline was recorded." in parsed.text
  assert "No policy was asked." in parsed.text


def test_a_long_run_has_a_page_of_bounded_size(tmp_path):
  text = _make(tmp_path, cycles=1500)
  assert len(text) < 400_000
  assert "3000 changed what is lent; the last 300 of those:" in text


def test_many_devices_are_cut_and_said(tmp_path):
  lanes = {"learner": tuple(range(100)), **{"standalone-0": (100,)}}
  text = _make(tmp_path, cycles=2, lanes=lanes)
  assert text.count("<title>device ") == 64
  assert "37 further devices not shown." in text


def test_a_replica_that_reported_no_generation_is_named(page, tmp_path):
  silent = "No generation was reported by standalone-1:"
  assert "No generation was reported" not in page
  lanes = {**LANES, "standalone-1": (3,)}
  assert silent in _make(tmp_path, cycles=2, lanes=lanes)


def test_a_gap_of_the_bounded_timeline_is_told(tmp_path):
  run, clock = make_run_dir(tmp_path), Clock()
  reporter = make_reporter(run, lanes=LANES, stream=io.StringIO(), clock=clock)
  reporter.close()
  writer = TraceWriter(run.trace(), clock, max_records=8)
  report_cycles(writer, clock, 9)
  writer.close()
  report.write_report(run)
  assert "the bounded timeline was full" in run.report.read_text()


def test_a_resume_is_counted(tmp_path):
  _make(tmp_path)
  text = _make(tmp_path)
  assert "starts and resumes</small><b>2</b>" in text
