import math

import pytest

from hybridrl.reporting import jsonl
from hybridrl.reporting.run_dir import make_run_dir
from tests.reporting.synthetic_run import Clock


def test_metrics_and_events_come_back(tmp_path):
  run, clock = make_run_dir(tmp_path), Clock()
  writer = jsonl.JsonlWriter(run, 2, clock)
  clock.now_s = 1.5
  writer.metrics(4, 3, {"actor/pg_loss": math.nan, "timing_s/step": 0.1})
  writer.event("replica_failed", "standalone-1 died", code=9)
  # Readable while the run goes on.
  (row,) = jsonl.read_lines(run.metrics)
  assert (row["attempt"], row["time_s"]) == (2, 1.5)
  assert (row["step"], row["version"]) == (4, 3)
  assert math.isnan(row["values"]["actor/pg_loss"])
  assert row["values"]["timing_s/step"] == 0.1
  assert list(jsonl.read_lines(run.events)) == [
    {
      "attempt": 2,
      "time_s": 1.5,
      "kind": "replica_failed",
      "message": "standalone-1 died",
      "fields": {"code": 9},
    }
  ]
  writer.close()


@pytest.mark.parametrize("kept", ["", '{"a":1}\n', '{"a":1}\n{"a":2}\n'])
@pytest.mark.parametrize("partial", ["", '{"a"', "x" * 200_000])
def test_a_line_cut_by_a_kill_costs_only_itself(tmp_path, kept, partial):
  path = tmp_path / "log.jsonl"
  path.write_text(kept + partial)
  before = list(jsonl.read_lines(path))
  assert before == [{"a": i + 1} for i in range(kept.count("\n"))]
  file = jsonl.LineFile(path)
  file.append({"a": 9})
  file.close()
  assert list(jsonl.read_lines(path)) == [*before, {"a": 9}]


def test_a_damaged_line_is_named(tmp_path):
  path = tmp_path / "log.jsonl"
  path.write_text('{"a":1}\n{"a":\n{"a":3}\n')
  with pytest.raises(ValueError, match=r"log\.jsonl:2"):
    list(jsonl.read_lines(path))


def test_text_with_separators_stays_one_record(tmp_path):
  path = tmp_path / "log.jsonl"
  file = jsonl.LineFile(path)
  message = "a\nb\u2028c\x85d\r\ne"
  file.append({"m": message})
  file.close()
  assert list(jsonl.read_lines(path)) == [{"m": message}]


def test_a_missing_file_has_no_records(tmp_path):
  assert list(jsonl.read_lines(tmp_path / "none.jsonl")) == []
