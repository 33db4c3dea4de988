"""Whole runs of the main job as a user starts them, on real parts.

A run is a process in a session of its own, as under a terminal. Everything that
it starts inherits a mark in its environment, by which nothing of it can hide.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

import psutil

_ROOT = pathlib.Path(__file__).parents[1]
_MARK = "HYBRIDRL_TEST_RUN"

# Small enough that starting the parts is nearly all of a run.
BASE_FLAGS = (
  "--use_dynamic_resource_scheduling=true",
  "--staleness_threshold=0.5",
  "--dynamic_schedule_deactivate_ratio=0.6",
  "--trigger_parameter_sync_step=2",
  "--ppo_mini_batch_size=4",
  "--rollout_n=4",
  "--concurrent_samples_per_replica=4",
  "--max_prompt_length=64",
  "--max_response_length=32",
  "--max_tokens_per_micro_batch=1024",
  "--device_memory_gib=1",
  "--gpu_memory_utilization=0.1",
  "--lr=1e-3",
  "--lr_warmup_steps=0",
  "--filter_groups=false",
  "--test_freq=0",
)


@dataclasses.dataclass(kw_only=True)
class RealRun:
  """One attempt at a run.

  Attributes:
    run_dir: its run directory.
    process: of the driver; leader of its session and process group.
    mark: in the environment of every process of the attempt.
    output: file that gets what it prints.
  """

  run_dir: pathlib.Path
  process: subprocess.Popen
  mark: str
  output: pathlib.Path
  _seen: dict[int, psutil.Process] = dataclasses.field(default_factory=dict)

  def look(self) -> None:
    """Remembers the processes that there are now."""
    with contextlib.suppress(psutil.NoSuchProcess):
      driver = psutil.Process(self.process.pid)
      for process in (driver, *driver.children(recursive=True)):
        self._seen[process.pid] = process

  def wait(self, timeout_s: float) -> int:
    """The exit code; fails with the output if there is none in time."""
    try:
      return self.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
      raise AssertionError(
        f"still running after {timeout_s:g} s:\n{self.tail()}"
      ) from None

  def wait_for_step(self, step: int, timeout_s: float) -> None:
    """Returns once metrics.jsonl shows the micro-step."""
    until_s = time.monotonic() + timeout_s
    while max(trained_steps(self.run_dir), default=0) < step:
      assert self.process.poll() is None, self.tail()
      assert time.monotonic() < until_s, self.tail()
      time.sleep(0.02)

  def interrupt(self) -> None:
    """Ctrl-C: the terminal signals the whole foreground process group."""
    os.killpg(self.process.pid, signal.SIGINT)

  def left_over(self) -> list[psutil.Process]:
    """Processes of the attempt that are alive."""
    found = {p.pid: p for p in self._seen.values() if _alive(p)}
    for process in psutil.process_iter():
      with contextlib.suppress(psutil.Error):
        if process.environ().get(_MARK) == self.mark and _alive(process):
          found[process.pid] = process
    return list(found.values())

  def wait_until_gone(self, timeout_s: float) -> list[str]:
    """Names of the processes that outlived their killing."""
    until_s = time.monotonic() + timeout_s
    while (left := self.left_over()) and time.monotonic() < until_s:
      time.sleep(0.05)
    return [_describe(process) for process in left]

  def end(self) -> None:
    """For a failed test: nothing may stay behind."""
    self.look()
    for process in self.left_over():
      with contextlib.suppress(psutil.Error):
        process.kill()
    self.process.wait()

  def tail(self, size: int = 4000) -> str:
    return self.output.read_text()[-size:]


def _alive(process: psutil.Process) -> bool:
  """is_running() tells a process from a later one with its number."""
  try:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _describe(process: psutil.Process) -> str:
  try:
    return f"{process.pid}: {' '.join(process.cmdline())}"
  except psutil.Error:
    return f"{process.pid}: gone meanwhile"


@contextlib.contextmanager
def real_run(run_dir: pathlib.Path, model_dir: str, flags: Sequence[str]):
  """Starts an attempt; ends what is left of it."""
  mark, output = uuid.uuid4().hex, run_dir.with_name(f"{run_dir.name}.txt")
  environment = os.environ | {
    _MARK: mark,
    "JAX_PLATFORMS": "cpu",
    # One compilation for all runs of a test session.
    "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(model_dir) / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }
  with open(output, "a") as file:
    process = subprocess.Popen(
      [
        *(sys.executable, "-m", "experiments.dapo_math", *BASE_FLAGS),
        *(f"--model_path={model_dir}", f"--run_dir={run_dir}", *flags),
      ],
      cwd=_ROOT,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
  run = RealRun(run_dir=run_dir, process=process, mark=mark, output=output)
  try:
    yield run
  finally:
    run.end()


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """Objects of a JSONL file; a line that is being written is left out."""
  if not path.exists():
    return []
  text = path.read_text()
  return [json.loads(x) for x in text[: text.rfind("\n") + 1].splitlines()]


def trained_steps(run_dir: pathlib.Path) -> list[int]:
  """Micro-steps of all attempts, in the order in which they were reported."""
  return [
    line["step"]
    for line in lines(run_dir / "metrics.jsonl")
    if "reward/raw_mean" in line["values"]
  ]


def events(run_dir: pathlib.Path, kind: str) -> list[dict[str, Any]]:
  return [x for x in lines(run_dir / "events.jsonl") if x["kind"] == kind]


def spans(run_dir: pathlib.Path, lane: str, name: str = "") -> list[tuple]:
  """(start, end) in microseconds of a lane's spans in trace.json."""
  trace = json.loads((run_dir / "trace.json").read_text())
  trace = trace["traceEvents"] if isinstance(trace, dict) else trace
  return [
    (x["ts"], x["ts"] + x["dur"])
    for x in trace
    if x["ph"] == "X" and x["cat"] == lane and (not name or x["name"] == name)
  ]


def overlap(a: Sequence[tuple], b: Sequence[tuple]) -> float:
  """Time that spans of both have in common."""
  return sum(max(min(e1, e2) - max(s1, s2), 0) for s1, e1 in a for s2, e2 in b)


def result(run_dir: pathlib.Path) -> dict[str, Any]:
  return json.loads((run_dir / "result.json").read_text())
