"""A whole run of scripted parts: the real driver, rollouter, controller, ...

Only what computes is scripted (learner, replicas, grader). Use it on a
VirtualLoop: a run of hours takes a moment and its order of events is exact.
"""

import asyncio
import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridrl import scheduling
from hybridrl.data.cursor import PromptCursor
from hybridrl.data.prompt_set import LoadReport, PromptSet
from hybridrl.data.sample import Prompt
from hybridrl.runtime import driver
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.parts import Limits, Parts, RunResult
from hybridrl.testing.recording_reporter import RecordingReporter
from hybridrl.testing.scripted_grader import ScriptedGrader
from hybridrl.testing.scripted_learner import ScriptedLearner
from hybridrl.testing.scripted_replica import ScriptedReplica, ScriptedTimes
from hybridrl.testing.scripted_text import Lengths, log_normal_lengths
from hybridrl.testing.virtual_loop import run_virtual


@functools.cache
def cached_policy(name: str, deactivate_ratio: float = 0.3) -> Any:
  """Policies hold no state, so all runs of a test can share a compilation."""
  return scheduling.make_policy(name, deactivate_ratio=deactivate_ratio)


def make_prompts(num_prompts: int, first_id: int = 0) -> PromptSet:
  """Distinct prompts of scripted ids."""
  prompts = tuple(
    Prompt(
      prompt_id=i,
      text=f"prompt {first_id + i}",
      token_ids=np.array([1, 2 + (first_id + i) % 500, 3], np.int32),
      answer=str(i),
      data_source="scripted",
    )
    for i in range(num_prompts)
  )
  report = LoadReport(
    rows_read=num_prompts,
    rows_merged=0,
    answers_in_conflict=0,
    prompts_over_long=0,
    prompts_kept=num_prompts,
  )
  return PromptSet(prompts=prompts, report=report)


def small_config(**changes: Any) -> RunConfig:
  """R = 4, k = 2, so S = 8; two responses a prompt."""
  values: dict[str, Any] = {
    "use_dynamic_resource_scheduling": True,
    "ppo_mini_batch_size": 4,
    "trigger_parameter_sync_step": 2,
    "staleness_threshold": "0.5",
    "rollout_n": 2,
    "concurrent_samples_per_replica": 4,
    "max_response_length": 400,
    "filter_groups": False,
    "total_training_steps": 8,
    **changes,
  }
  return RunConfig(**values)


@dataclasses.dataclass
class ScriptedRun:
  """The parts of one run and what they recorded; see Parts."""

  config: RunConfig
  learner: ScriptedLearner
  standalone: list[ScriptedReplica]
  hybrid: list[ScriptedReplica]
  grader: ScriptedGrader
  cursor: PromptCursor
  reporter: RecordingReporter
  parts: Parts
  result: RunResult | None = None

  @property
  def trained_ids(self) -> list[int]:
    """Sample ids in the order in which they were trained."""
    return [i for batch in self.learner.batches for i in batch]

  async def run(self) -> RunResult:
    self.result = await driver.run(self.config, self.parts)
    return self.result


def make_run(
  config: RunConfig,
  root: pathlib.Path | str,
  *,
  num_prompts: int = 16,
  epochs: int | None = None,
  num_val_prompts: int = 0,
  lengths: Lengths | None = None,
  times: ScriptedTimes | None = None,
  train_s: Any = 1.0,
  save_s: float = 0.1,
  learner_fails: Callable[[str, int], None] | None = None,
  grader: ScriptedGrader | None = None,
  policy: Any = None,
  resume_from: str = "",
  limits: Limits | None = None,
) -> ScriptedRun:
  """Makes the parts; has to be called in a running loop.

  Args:
    config: of the run; its policy's name and ratio are used.
    root: folder of checkpoints and exports.
    num_prompts: of the training set.
    epochs: passes over it; None: no end.
    num_val_prompts: held-out prompts.
    lengths: of responses; heavy-tailed by default.
    times: of the replicas.
    train_s, save_s: see ScriptedLearner.
    learner_fails: likewise.
    grader: of the run.
    policy: in place of the configured one.
    resume_from: see Parts.
    limits: see Parts.
  """
  lengths = lengths or log_normal_lengths(60, 0.7, config.max_response_length)

  def replicas(kind: str, count: int) -> list[ScriptedReplica]:
    return [
      ScriptedReplica(f"{kind}-{i}", lengths=lengths, times=times)
      for i in range(count)
    ]

  learner = ScriptedLearner(
    root, train_s=train_s, save_s=save_s, fail=learner_fails
  )
  standalone = replicas("standalone", config.num_standalone)
  hybrid = replicas("hybrid", config.num_hybrid)
  grader = grader or ScriptedGrader()
  cursor = PromptCursor(make_prompts(num_prompts), config.seed, epochs)
  reporter = RecordingReporter()
  parts = Parts(
    learner=learner,
    standalone=standalone,
    hybrid=hybrid,
    grader=grader,
    cursor=cursor,
    val_prompts=make_prompts(num_val_prompts, first_id=10_000).prompts,
    decode=lambda ids: " ".join(map(str, ids)),
    policy=policy
    or cached_policy(
      config.dynamic_schedule_policy, config.dynamic_schedule_deactivate_ratio
    ),
    reporter=reporter,
    clock=asyncio.get_running_loop().time,
    export_dir=str(pathlib.Path(root) / "export"),
    resume_from=resume_from,
    limits=limits or Limits(),
  )
  return ScriptedRun(
    config, learner, standalone, hybrid, grader, cursor, reporter, parts
  )


def run_scripted(
  config: RunConfig, root: pathlib.Path | str, **options: Any
) -> ScriptedRun:
  """Makes and runs a run on virtual time, from start to end."""

  async def main() -> ScriptedRun:
    run = make_run(config, root, **options)
    await run.run()
    return run

  return run_virtual(main())
