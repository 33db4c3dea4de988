"""DAPO on math: the main job.

  python -m experiments.dapo_math \
    --flagfile=experiments/flagfiles/quickstart.flags

Exit codes: 0 the run is complete; 2 bad input; 1 failure; 130 interrupted.
"""

import asyncio
import dataclasses
import os
import pathlib
import signal
import sys
import time
import traceback

from absl import app, flags

# The driver computes next to nothing; the learner owns the accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from experiments import inputs, run_flags, summary
from experiments.peak_memory import PeakMemory
from hybridrl.metrics.device_time import device_lanes
from hybridrl.models.config import ModelConfig
from hybridrl.reporting.composite import make_reporter
from hybridrl.runtime import affinity, config_checks, driver, plan, ray_cluster
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.parts import RunResult
from hybridrl.runtime.ray_parts import Inputs, make_parts

run_flags.define()
_DRY_RUN = flags.DEFINE_bool(
  "dry_run", False, "Check everything, print the resolved plan, start nothing."
)

EXIT_FAILURE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


async def train(config: RunConfig, fed: Inputs) -> RunResult:
  """Builds the parts, runs them, ends them."""
  # SIGTERM, as a scheduler sends it, ends a run as cleanly as Ctrl-C does.
  task = asyncio.current_task()
  assert task is not None
  asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
  origin_s = time.monotonic()

  def clock() -> float:
    return time.monotonic() - origin_s

  values = dataclasses.asdict(config)
  reporter = make_reporter(
    config.run_dir,
    config=values,
    flags=values,
    lanes=device_lanes(
      standalone=[f"standalone-{i}" for i in range(config.num_standalone)],
      hybrid=[f"hybrid-{i}" for i in range(config.num_hybrid)],
      trainer_devices=config.trainer_devices,
      devices_per_replica=config.rollout_tensor_parallel_size,
    ),
    clock=clock,
  )
  try:
    laid_out = affinity.make_affinity(config)
    parts = await make_parts(config, fed, laid_out, reporter, clock)
    return await driver.run(config, parts)
  finally:
    reporter.close()
    ray_cluster.stop_ray()


def _check(config: RunConfig) -> ModelConfig:
  try:
    return inputs.check(config)
  except config_checks.ConfigError as error:
    for line in error.problems:
      _say(f"error: {line}")
  except ValueError as error:
    _say(f"error: {error}")
  sys.exit(EXIT_BAD_INPUT)


def _read(config: RunConfig, model: ModelConfig) -> Inputs:
  try:
    return inputs.read(config, model)
  except ValueError as error:
    _say(f"error: {error}")
    sys.exit(EXIT_BAD_INPUT)


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    _say(f"error: unexpected arguments {argv[1:]}; everything is a --flag")
    sys.exit(EXIT_BAD_INPUT)
  config = run_flags.config_from_flags(flags.FLAGS)
  model = _check(config)
  print(plan.describe(config, model, affinity.make_affinity(config)))
  if _DRY_RUN.value:
    return
  run_dir = pathlib.Path(config.run_dir)
  run_dir.mkdir(parents=True, exist_ok=True)
  print(f"run directory: {run_dir}", flush=True)
  # A shell that starts a command in the background makes it ignore Ctrl-C;
  # asyncio turns the signal into a clean end only while it is Python's own.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with PeakMemory() as memory:
      result = asyncio.run(train(config, _read(config, model)))
  except (KeyboardInterrupt, asyncio.CancelledError):
    _say(f"interrupted; go on with --run_dir={run_dir} --resume=auto")
    sys.exit(EXIT_INTERRUPTED)
  except Exception as error:  # noqa: BLE001 - the one place that ends a run
    trace = run_dir / "error.txt"
    trace.write_text(traceback.format_exc())
    _say(f"error: {type(error).__name__}: {error}\n(trace: {trace})")
    sys.exit(EXIT_FAILURE)
  summary.write(run_dir, result, memory.bytes)
  print(summary.table(run_dir, result, memory.bytes))


def parse_flags(argv: list[str]) -> list[str]:
  """absl's parser, with bad flags as exit code 2 and one line."""
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    _say(f"error: {error}")
    sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
  app.run(main, flags_parser=parse_flags)
