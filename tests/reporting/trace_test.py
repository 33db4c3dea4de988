import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.reporting import trace
from tests.reporting.synthetic_run import Clock, report_cycles, snapshot


def _write(path, spans, **options):
  writer = trace.TraceWriter(path, Clock(), **options)
  for span in spans:
    writer.span(*span)
  writer.close()
  return json.loads(path.read_text())


def test_the_file_is_chromes_trace_format(tmp_path):
  path, clock = tmp_path / "trace.json", Clock()
  writer = trace.TraceWriter(path, clock)
  report_cycles(writer, clock, 2)
  writer.event("start", "hello", replicas=2)
  writer.close()
  records = json.loads(path.read_text())
  assert isinstance(records, list)
  assert {r["ph"] for r in records} == {"M", "X", "C", "i"}
  names = {
    r["tid"]: r["args"]["name"] for r in records if r["name"] == "thread_name"
  }
  lanes = ["hybrid-0", "learner", "standalone-0", "driver"]
  assert sorted(names.values()) == sorted(lanes)
  for r in records:
    assert r["pid"] == 1
    if r["ph"] == "X":
      assert names[r["tid"]] == r["cat"]
  train = next(r for r in records if r["name"] == "train")
  assert (train["ts"], train["dur"]) == (4e6, 3e6)
  assert train["args"] == {"step": 1}
  counter = next(r for r in records if r["ph"] == "C")
  assert counter["args"] == {"backlog": 0, "in flight": 12}


def test_a_counter_is_written_when_it_changes(tmp_path):
  path = tmp_path / "trace.json"
  writer = trace.TraceWriter(path, Clock())
  for backlog in (1, 1, 2, 2, 1):
    writer.progress(snapshot(backlog_samples=backlog))
  writer.close()
  counters = [r for r in json.loads(path.read_text()) if r["ph"] == "C"]
  assert [r["args"]["backlog"] for r in counters] == [1, 2, 1]


_SPANS = st.lists(
  st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=30
).map(
  # Reported in order of their ends, as live spans are.
  lambda pairs: sorted(((a, a + b) for a, b in pairs), key=lambda s: s[1])
)


@settings(deadline=None)
@given(_SPANS)
def test_spans_of_a_track_nest(tmp_path_factory, spans):
  path = tmp_path_factory.mktemp("trace") / "trace.json"
  records = _write(path, [("lane", "x", a, b) for a, b in spans])
  tracks = {}
  for r in records:
    if r["ph"] == "X":
      span = (r["ts"], r["ts"] + r["dur"])
      tracks.setdefault(r["tid"], []).append(span)
  assert sum(map(len, tracks.values())) == len(spans)
  for placed in tracks.values():
    for a in placed:
      for b in placed:
        apart = a[1] <= b[0] or b[1] <= a[0]
        nested = (a[0] <= b[0] and b[1] <= a[1]) or (
          b[0] <= a[0] and a[1] <= b[1]
        )
        assert apart or nested, (a, b)


def test_overlapping_spans_go_to_a_second_track_of_their_lane(tmp_path):
  spans = [("driver", "a", 0.0, 2.0), ("driver", "b", 1.0, 3.0)]
  records = _write(tmp_path / "trace.json", spans)
  names = [r["args"]["name"] for r in records if r["name"] == "thread_name"]
  assert names == ["driver", "driver (2)"]


@pytest.mark.parametrize("limit", [2, 7, 100])
def test_the_file_is_bounded_and_keeps_beginning_and_end(tmp_path, limit):
  path = tmp_path / "trace.json"
  spans = [("learner", f"s{i}", float(i), i + 0.5) for i in range(50)]
  _write(path, spans, max_records=limit)
  back = list(trace.read_spans(path))
  kept = [s.name for s in back if s.lane == "learner"]
  head, tail = limit - limit // 2, limit // 2
  if limit >= 50:
    assert kept == [f"s{i}" for i in range(50)]
    assert len(back) == 50
  else:
    assert kept == [f"s{i}" for i in (*range(head), *range(50 - tail, 50))]
    (gap,) = [s for s in back if s.lane == "trace"]
    assert gap.name == trace.LEFT_OUT
    assert gap.args == {"records": 50 - head - tail}
    assert gap.start_s == head - 0.5
    assert gap.end_s <= 50 - tail + 0.5


def test_a_killed_run_leaves_a_readable_file(tmp_path):
  path = tmp_path / "trace.json"
  _write(path, [("learner", "train", 1.0, 2.0), ("learner", "wait", 2.0, 3.0)])
  text = path.read_text()
  whole = [s.name for s in trace.read_spans(path)]
  assert whole == ["train", "wait"]
  for end in range(len(text)):
    path.write_text(text[:end])
    names = [s.name for s in trace.read_spans(path)]
    assert names == whole[: len(names)]


def test_spans_reach_the_file_before_it_is_closed(tmp_path):
  path = tmp_path / "trace.json"
  writer = trace.TraceWriter(path, Clock())
  writer.span("learner", "train", 1.0, 2.0)
  assert [s.name for s in trace.read_spans(path)] == ["train"]
  writer.close()


def test_a_damaged_file_is_named(tmp_path):
  path = tmp_path / "trace.json"
  path.write_text('[\n{"ph":"M"},\nnonsense\n{"ph":"M"}\n]\n')
  with pytest.raises(ValueError, match=r"trace\.json:3"):
    list(trace.read_records(path))
