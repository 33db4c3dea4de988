"""Runs that are stopped at a given time, and what they leave."""

import asyncio
import json
import pathlib
from typing import Any

from hybridrl.runtime.config import RunConfig
from hybridrl.testing.scripted_run import ScriptedRun, make_run
from hybridrl.testing.virtual_loop import run_virtual


def run_until(
  config: RunConfig, root: pathlib.Path, stop_s: float, **options: Any
) -> tuple[ScriptedRun, float]:
  """Runs; cancels at stop_s seconds. Returns (run, seconds that it took)."""

  async def main():
    run = make_run(config, root, **options)
    task = asyncio.create_task(run.run())
    loop = asyncio.get_running_loop()
    await asyncio.wait((task,), timeout=stop_s - loop.time())
    cancelled = not task.done()
    task.cancel()
    began_s = loop.time()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    if cancelled:
      assert isinstance(outcome, asyncio.CancelledError), outcome
    elif isinstance(outcome, BaseException):
      raise outcome
    # Nothing of the run goes on.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others
    return run, loop.time() - began_s

  return run_virtual(main())


def all_stopped(run: ScriptedRun) -> bool:
  """Whether no part of the run is left."""
  return (
    run.learner.stopped
    and run.grader.closed
    and all(r.state == "stopped" for r in (*run.standalone, *run.hybrid))
  )


def last_checkpoint(root: pathlib.Path) -> str:
  """Path of the newest checkpoint; '' if there is none."""
  folder = pathlib.Path(root) / "checkpoints"
  steps = [int(p.name) for p in folder.iterdir()] if folder.exists() else []
  return str(folder / str(max(steps))) if steps else ""


def read_steps(path: str) -> int:
  """Micro-steps of a checkpoint; learner and driver have to agree."""
  state = json.loads((pathlib.Path(path) / "state.json").read_text())
  assert state["steps"] == state["driver"]["step"]
  return state["steps"]


def trained_by(run: ScriptedRun, steps: int) -> list[int]:
  """Sample ids of the first `steps` micro-steps of this process."""
  return [i for batch in run.learner.batches[:steps] for i in batch]
