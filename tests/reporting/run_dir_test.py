import concurrent.futures
import datetime

import pytest

from hybridrl.reporting import run_dir as run_dir_lib

_NOW = datetime.datetime(2024, 5, 6, 7, 8, 9)


def test_the_time_becomes_part_of_the_name(tmp_path):
  template = f"{tmp_path}/runs/{{time}}"
  first = run_dir_lib.make_run_dir(template, _NOW)
  second = run_dir_lib.make_run_dir(template, _NOW)
  assert first.root == tmp_path / "runs" / "20240506-070809"
  assert second.root == tmp_path / "runs" / "20240506-070809-2"
  assert first.checkpoints.is_dir()
  assert first.exports.is_dir()


def test_runs_that_start_at_once_get_directories_of_their_own(tmp_path):
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    template = f"{tmp_path}/{{time}}"
    made = pool.map(
      lambda _: run_dir_lib.make_run_dir(template, _NOW), range(32)
    )
    assert len({run.root for run in made}) == 32


def test_an_existing_directory_is_kept(tmp_path):
  (tmp_path / "metrics.jsonl").write_text("{}\n")
  run = run_dir_lib.make_run_dir(tmp_path)
  assert run.metrics.read_text() == "{}\n"


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "below"):
    with pytest.raises(ValueError, match=f"--run_dir={path}"):
      run_dir_lib.make_run_dir(path)
  with pytest.raises(ValueError, match="empty"):
    run_dir_lib.make_run_dir("")


def test_attempts_are_numbered_and_read_back(tmp_path):
  run = run_dir_lib.make_run_dir(tmp_path)
  assert run_dir_lib.read_attempts(run) == []
  for number, started_s in ((1, 10.0), (2, 20.0)):
    assert number == run_dir_lib.begin_attempt(
      run,
      config={"lr": 1e-6, "files": ("a",)},
      lanes={"learner": (0, 1)},
      started_unix_s=started_s,
    )
  first, second = run_dir_lib.read_attempts(run)
  assert first["config"] == {"lr": 1e-6, "files": ["a"]}
  assert second["lanes"] == {"learner": [0, 1]}
  assert (first["started_unix_s"], second["started_unix_s"]) == (10.0, 20.0)
  assert not list(tmp_path.glob(".*"))


def test_a_damaged_manifest_is_named(tmp_path):
  run = run_dir_lib.make_run_dir(tmp_path)
  run.manifest.write_text("[]")
  with pytest.raises(ValueError, match=r"run\.json: not a run's manifest"):
    run_dir_lib.read_attempts(run)


def test_traces_of_attempts(tmp_path):
  run = run_dir_lib.RunDir(tmp_path)
  assert run.trace(1).name == "trace.json"
  assert run.trace(3).name == "trace.3.json"
