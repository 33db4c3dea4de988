import io
import sys

import pytest

from hybridrl.reporting import jsonl
from hybridrl.reporting.composite import CompositeReporter, make_reporter
from hybridrl.reporting.decision_log import read_decisions
from hybridrl.reporting.run_dir import read_attempts
from hybridrl.reporting.trace import read_spans
from hybridrl.reporting.writer import NullReporter
from tests.reporting.synthetic_run import (
  LANES,
  Clock,
  report_cycles,
  snapshot,
)

_CALLS = {
  "event": lambda r: r.event("kind", "message", a=1),
  "metrics": lambda r: r.metrics(1, 0, {"actor/lr": 1.0}),
  "decision": lambda r: r.decision({"phase": "EVENT"}),
  "span": lambda r: r.span("learner", "train", 0.0, 1.0, step=1),
  "progress": lambda r: r.progress(snapshot()),
}


class _Recorder(NullReporter):
  """Remembers its calls; fails in the method that it is told to."""

  def __init__(self, fails_in=None):
    self.calls = []
    self._fails_in = fails_in

  def _note(self, method, *args, **kwargs):
    self.calls.append((method, args, kwargs))
    if method == self._fails_in:
      raise OSError("disk is full")

  def event(self, kind, message, **fields):
    self._note("event", kind, message, **fields)

  def metrics(self, step, version, values):
    self._note("metrics", step, version, values)

  def decision(self, record):
    self._note("decision", record)

  def span(self, lane, name, start_s, end_s, **args):
    self._note("span", lane, name, start_s, end_s, **args)

  def progress(self, snapshot):
    self._note("progress", snapshot)

  def close(self):
    self._note("close")

  def methods(self):
    return [method for method, _, _ in self.calls]


def test_every_writer_gets_every_call():
  writers = {"a": _Recorder(), "b": _Recorder()}
  reporter = CompositeReporter(writers)
  for call in _CALLS.values():
    call(reporter)
  reporter.close()
  reporter.close()
  assert writers["a"].calls == writers["b"].calls
  assert writers["a"].methods() == [*_CALLS, "close"]
  assert writers["a"].calls[0] == ("event", ("kind", "message"), {"a": 1})
  span = ("span", ("learner", "train", 0.0, 1.0), {"step": 1})
  assert span in writers["a"].calls


@pytest.mark.parametrize("fails_in", [*_CALLS, "close"])
@pytest.mark.parametrize("position", ["first", "last"])
def test_a_failing_writer_is_reported_once_and_stops_nothing(
  fails_in, position
):
  bad, good = _Recorder(fails_in), _Recorder()
  pair = [("bad", bad), ("good", good)]
  writers = dict(pair if position == "first" else reversed(pair))
  reporter = CompositeReporter(writers)
  for _ in range(3):
    for call in _CALLS.values():
      call(reporter)
  reporter.close()
  assert bad.methods().count(fails_in) == 1
  told = [
    args for m, args, _ in good.calls if m == "event" and "bad" in args[1]
  ]
  if fails_in == "close" and position == "last":
    assert told == []  # nobody is left; see the next test
  else:
    assert told == [("writer_failed", "bad stopped: OSError: disk is full")]
  for method in _CALLS:
    extra = len(told) if method == "event" else 0
    assert good.methods().count(method) == 3 + extra


@pytest.mark.parametrize("fails_in", ["metrics", "close"])
def test_the_failure_of_the_last_writer_is_told_on_the_last_resort(fails_in):
  stream = io.StringIO()
  writers = {"only": _Recorder(fails_in)}
  reporter = CompositeReporter(writers, last_resort=stream)
  _CALLS["metrics"](reporter)
  _CALLS["metrics"](reporter)
  reporter.close()
  assert stream.getvalue() == "only stopped: OSError: disk is full\n"


def test_a_writer_that_fails_on_the_news_of_another_failure():
  stream = io.StringIO()
  reporter = CompositeReporter(
    {"a": _Recorder("metrics"), "b": _Recorder("event"), "c": _Recorder()},
    last_resort=stream,
  )
  third = reporter._writers["c"]
  _CALLS["metrics"](reporter)
  _CALLS["metrics"](reporter)
  assert list(reporter._writers) == ["c"]
  messages = [args[1] for m, args, _ in third.calls if m == "event"]
  assert sorted(m.split()[0] for m in messages) == ["a", "b"]
  assert third.methods().count("metrics") == 2
  assert stream.getvalue() == ""


def test_an_interrupt_is_not_a_writers_failure():
  class _Interrupted(NullReporter):
    def progress(self, snapshot):
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    _CALLS["progress"](CompositeReporter({"a": _Interrupted()}))


def _run(path, cycles=3, first=0, **options):
  clock, stream = Clock(), io.StringIO()
  reporter = make_reporter(
    path,
    config={"lr": 1e-6},
    flags={"lr": 1e-6, "partial_rollout": False},
    lanes=LANES,
    stream=stream,
    clock=clock,
    **options,
  )
  report_cycles(reporter, clock, cycles, first)
  reporter.close()
  return reporter.run_dir, stream.getvalue()


def test_a_run_leaves_every_file(tmp_path):
  run, text = _run(f"{tmp_path}/{{time}}")
  assert run.flagfile.read_text() == "--lr=1e-06\n--nopartial_rollout\n"
  assert read_attempts(run)[0]["config"] == {"lr": 1e-6}
  rows = list(jsonl.read_lines(run.metrics))
  assert [row["step"] for row in rows] == [1, 2, 3]
  assert [row["time_s"] for row in rows] == [8.0, 16.0, 24.0]
  assert len(list(read_decisions(run.decisions))) == 9
  assert len(list(read_spans(run.trace()))) == 24
  assert len(list(run.tensorboard.iterdir())) == 1
  assert run.report.read_text().startswith("<!DOCTYPE html>")
  assert "step 3/10" in text
  assert "writer_failed" not in text


def test_a_resume_adds_to_the_files(tmp_path):
  run, _ = _run(tmp_path)
  run, _ = _run(tmp_path, first=2)
  rows = list(jsonl.read_lines(run.metrics))
  assert [row["attempt"] for row in rows] == [1, 1, 1, 2, 2, 2]
  assert len(read_attempts(run)) == 2
  assert run.trace(1).exists()
  assert run.trace(2).exists()


def test_a_package_that_is_missing_costs_its_writer_only(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorboardX", None)
  run, text = _run(tmp_path)
  assert text.count("writer_failed: TensorBoard stopped: ") == 1
  (event,) = jsonl.read_lines(run.events)
  assert event["fields"] == {"writer": "TensorBoard"}
  assert run.report.exists()


def test_an_unusable_directory_is_an_error_at_once(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="--run_dir"):
    make_reporter(tmp_path / "file")


def test_the_default_clock_counts_from_the_start(tmp_path):
  reporter = make_reporter(tmp_path, stream=io.StringIO())
  reporter.metrics(1, 0, {"actor/lr": 1.0})
  reporter.metrics(2, 0, {"actor/lr": 1.0})
  reporter.close()
  first, second = jsonl.read_lines(reporter.run_dir.metrics)
  assert 0.0 <= first["time_s"] <= second["time_s"] < 60.0
