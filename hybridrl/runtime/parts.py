"""What a run is made of, and what it returns."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridrl.data.sample import Prompt
from hybridrl.reporting.reporter import Reporter
from hybridrl.rollout.replica import Replica
from hybridrl.training.learner_api import LearnerHandle


class Grader(Protocol):
  """Scores responses; see rewards.grader."""

  async def start(self) -> None: ...

  async def grade(
    self, prompt: Prompt, texts: Sequence[str]
  ) -> Sequence[float]:
    """Exactly one reward per text."""
    ...

  async def close(self) -> None: ...


class Cursor(Protocol):
  """The order in which prompts are offered; see data.cursor."""

  def next(self) -> tuple[int, Prompt] | None:
    """(sample id, prompt), or None at the end of the data."""
    ...

  def prompt_at(self, sample_id: int) -> Prompt:
    """The prompt of a sample that was handed out before."""
    ...

  def state_dict(self) -> Mapping[str, Any]: ...

  def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """Deadlines of the run's waits, in seconds, and how much it puts up with.

  They are far above what healthy parts need: reaching one is an error.

  Attributes:
    start_s: bringing up one part (a large model is read from a slow disk).
    stall_s: a collection during which no sample changes its place.
    train_s: one micro-step, its compilation included.
    publish_s: one copy of the weights out of the learner.
    switch_s: one control call to a replica.
    stop_s: ending one part.
    save_s: one checkpoint or export.
    retry_s: pause before a failed activation is tried again.
    shutdown_s: all of an interrupted run's clean-up, checkpoint included.
    failures_in_a_row: failing prompts without a success in between that end
      the run.
    switch_failures_in_a_row: failing activations of one replica without a
      success in between that end its use.
    alike_in_a_row: groups without spread in a row that end the run as the end
      of data does, if such groups are filtered.
  """

  start_s: float = 1200.0
  stall_s: float = 1800.0
  train_s: float = 3600.0
  publish_s: float = 600.0
  switch_s: float = 120.0
  stop_s: float = 20.0
  save_s: float = 600.0
  retry_s: float = 1.0
  shutdown_s: float = 9.0
  failures_in_a_row: int = 16
  switch_failures_in_a_row: int = 3
  alike_in_a_row: int = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
  """The heavy and the replaceable parts of a run.

  The run starts and stops learner, replicas and grader; the reporter is closed
  by whoever made it.

  Attributes:
    learner: see LearnerHandle.
    standalone: replicas on devices of their own; always serving.
    hybrid: replicas on the learner's devices; asleep unless lent.
    grader: see Grader.
    cursor: training prompts.
    val_prompts: held-out prompts; empty for none.
    decode: token ids ([T] int32) to text.
    stop_token_ids: what ends a response.
    policy: a SchedulingPolicy (or an adapted class, see scheduling).
    reporter: see Reporter.
    clock: seconds since the run began, monotone; the reporter's clock.
    export_dir: folder of the final weight export; empty: none.
    resume_from: checkpoint to go on from; empty: a fresh run.
    limits: see Limits.
  """

  learner: LearnerHandle
  standalone: Sequence[Replica]
  hybrid: Sequence[Replica]
  grader: Grader
  cursor: Cursor
  val_prompts: Sequence[Prompt] = ()
  decode: Callable[[np.ndarray], str]
  stop_token_ids: tuple[int, ...] = ()
  policy: Any
  reporter: Reporter
  clock: Callable[[], float]
  export_dir: str = ""
  resume_from: str = ""
  limits: Limits = Limits()  # noqa: RUF009 - frozen


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """Totals of a run.

  Attributes:
    steps: micro-steps trained, those before a resume included.
    version: version of the last published weights.
    wall_s: seconds from the first publication to the last update, validation
      and checkpoints excluded: what policies are compared by.
    total_s: seconds from the first publication to the end.
    trained_samples: samples trained, those before a resume included.
    dropped: samples dropped, by reason.
    trained_tokens: response tokens that carried loss, of this process.
    generated_tokens: tokens sampled by all replicas, of this process.
    step_rewards: mean raw reward of each micro-step's samples, before any
      filter, in order, of this process.
    val_rewards: (micro-steps trained, mean reward) of each validation.
    activations: hybrid replicas woken.
    activate_s: seconds of all activations.
    reclaim_s: seconds of all reclaims.
    moved_requests: requests that went on at another replica.
    aborted_requests: attempts that ended before their response did.
    reprefilled_tokens: tokens prefilled again because of either.
    checkpoint: path of the last checkpoint; '' if none.
    export: path of the final weight export; '' if none.
  """

  steps: int
  version: int
  wall_s: float
  total_s: float
  trained_samples: int
  dropped: Mapping[str, int]
  trained_tokens: int
  generated_tokens: int
  step_rewards: tuple[float, ...]
  val_rewards: tuple[tuple[int, float], ...]
  activations: int
  activate_s: float
  reclaim_s: float
  moved_requests: int
  aborted_requests: int
  reprefilled_tokens: int
  checkpoint: str
  export: str
