"""What lies where in a run directory, and how one is made.

flags.flags      the flags of the run; `--flagfile=` takes it back
run.json         one entry per attempt (a resume adds one)
metrics.jsonl    one line per cycle or validation
events.jsonl     one line per event
decisions.jsonl  one line per policy call
trace.json       timeline; opens in https://ui.perfetto.dev (attempt n > 1:
                 trace.n.json)
tensorboard/     the metrics once more
checkpoints/     what the learner and the driver save
exports/         weights for others to load
report.html      all of it, to read
"""

import dataclasses
import datetime
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from hybridrl.reporting import json_codec


@dataclasses.dataclass(frozen=True)
class RunDir:
  """Paths below one run directory."""

  root: pathlib.Path

  @property
  def flagfile(self) -> pathlib.Path:
    return self.root / "flags.flags"

  @property
  def manifest(self) -> pathlib.Path:
    return self.root / "run.json"

  @property
  def metrics(self) -> pathlib.Path:
    return self.root / "metrics.jsonl"

  @property
  def events(self) -> pathlib.Path:
    return self.root / "events.jsonl"

  @property
  def decisions(self) -> pathlib.Path:
    return self.root / "decisions.jsonl"

  @property
  def tensorboard(self) -> pathlib.Path:
    return self.root / "tensorboard"

  @property
  def checkpoints(self) -> pathlib.Path:
    return self.root / "checkpoints"

  @property
  def exports(self) -> pathlib.Path:
    return self.root / "exports"

  @property
  def report(self) -> pathlib.Path:
    return self.root / "report.html"

  def trace(self, attempt: int = 1) -> pathlib.Path:
    """Timeline of the n-th attempt, from 1."""
    name = "trace.json" if attempt == 1 else f"trace.{attempt}.json"
    return self.root / name


def make_run_dir(
  template: str | os.PathLike[str], now: datetime.datetime | None = None
) -> RunDir:
  """Makes the directory and the folders in it; an existing one is kept.

  Args:
    template: its path; '{time}' in it becomes the time to the second, with a
      number after it if that directory exists.
    now: the time to use; None takes the clock's.

  Raises:
    ValueError: the path is empty, or names a file.
  """
  text = os.fspath(template)
  if not text:
    raise ValueError("--run_dir is empty")
  root = pathlib.Path(text)
  if "{time}" in text:
    stamp = (now or datetime.datetime.now()).strftime("%Y%m%d-%H%M%S")
    root = _make_new(text, stamp)
  try:
    root.mkdir(parents=True, exist_ok=True)
  except (FileExistsError, NotADirectoryError) as error:
    raise ValueError(f"--run_dir={text}: is not a directory") from error
  run_dir = RunDir(root)
  for folder in (run_dir.tensorboard, run_dir.checkpoints, run_dir.exports):
    folder.mkdir(exist_ok=True)
  return run_dir


def _make_new(template: str, stamp: str) -> pathlib.Path:
  """A directory that did not exist before, also when two runs race for it."""
  for number in range(1, 10_000):
    suffix = "" if number == 1 else f"-{number}"
    path = pathlib.Path(template.replace("{time}", stamp + suffix))
    try:
      path.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
      continue
    return path
  raise ValueError(f"--run_dir={template}: no free name at {stamp}")


def write_atomically(path: pathlib.Path, text: str) -> None:
  """A reader sees the old file or the new one, never a part."""
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  temporary.write_text(text, encoding="utf-8")
  os.replace(temporary, path)


def begin_attempt(
  run_dir: RunDir,
  *,
  config: Mapping[str, Any],
  lanes: Mapping[str, Sequence[int]],
  started_unix_s: float,
) -> int:
  """Notes a start or resume in run.json; returns its number, from 1."""
  attempts = read_attempts(run_dir)
  attempts.append(
    {
      "started_unix_s": started_unix_s,
      "lanes": {name: list(devices) for name, devices in lanes.items()},
      "config": json_codec.to_jsonable(config),
    }
  )
  text = json.dumps({"attempts": attempts}, indent=2, allow_nan=False)
  write_atomically(run_dir.manifest, text + "\n")
  return len(attempts)


def read_attempts(run_dir: RunDir) -> list[dict[str, Any]]:
  """The entries of run.json; none where there is no such file."""
  if not run_dir.manifest.exists():
    return []
  text = run_dir.manifest.read_text(encoding="utf-8")
  try:
    return list(json.loads(text)["attempts"])
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{run_dir.manifest}: not a run's manifest") from error
