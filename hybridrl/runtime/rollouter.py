"""Turns prompts into graded samples, as far ahead as the ledger admits.

Laws:
  * A sample starts only if the fleet has capacity for it and admission budget
    is left; nothing is generated that could not be queued.
  * A prompt that fails, a group without spread (if those are filtered) and a
    group that is too old are dropped with a reason; the ledger gives their
    credit back and another prompt takes their place.
  * Rewards are recorded before any filter.
  * The end of data is a state (`exhausted`), not an element of the queue.
"""

import asyncio
import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridrl.algorithms import has_spread
from hybridrl.data.sample import Prompt, Response, Sample
from hybridrl.rollout.replica import SamplingConfig
from hybridrl.rollout.workflow import Generate, Workflow, response_key
from hybridrl.runtime.ledger import Ledger, LedgerError
from hybridrl.runtime.message_queue import (
  REASON_VERSION_LAG,
  MessageQueue,
  QueueOverflow,
)
from hybridrl.runtime.parts import Cursor, Grader
from hybridrl.runtime.waiting import Waits, all_of, cancel_and_wait

REASON_NO_SPREAD = "no_spread"
REASON_FAILED = "failed"

# Broken invariants: they are bugs of this system, not of one prompt.
_FATAL = (LedgerError, QueueOverflow)


class RolloutFailed(RuntimeError):
  """Too many prompts failed in a row; the last failure is its cause."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutConfig:
  """What the rollouter needs of the run's configuration.

  Attributes:
    rollout_n: responses per prompt.
    max_response_length: tokens.
    sampling: see SamplingConfig.
    filter_groups: drop groups whose rewards are all alike.
    failures_in_a_row: see parts.Limits.
    alike_in_a_row: see parts.Limits.
  """

  rollout_n: int
  max_response_length: int
  sampling: SamplingConfig
  filter_groups: bool
  failures_in_a_row: int
  alike_in_a_row: int


@dataclasses.dataclass
class _Running:
  """A sample that is being generated or graded."""

  task: asyncio.Task[None]
  started_s: float
  started_version: int
  in_flight: bool = True
  too_old: bool = False


class Rollouter:
  """See the module docstring; `run` does the work.

  Args:
    config: see RolloutConfig.
    ledger: where each sample is.
    queue: takes finished samples.
    cursor: prompts.
    workflow: turns a prompt into a response.
    generate: samples continuations.
    grader: scores responses.
    decode: token ids ([T] int32) to text.
    active_replicas: replicas that are routable now.
    waits: board of the run.
    clock: seconds.
    on_event: (kind, message, fields) for the reporter.
    on_change: called when the number in flight changed.

  Attributes:
    version: of the weights of new requests; set by the driver.
    oldest_allowed: samples with a token of an older version are dropped.
    failures: failed prompts by type of the failure.
  """

  def __init__(
    self,
    config: RolloutConfig,
    *,
    ledger: Ledger,
    queue: MessageQueue,
    cursor: Cursor,
    workflow: Workflow,
    generate: Generate,
    grader: Grader,
    decode: Callable[[np.ndarray], str],
    active_replicas: Callable[[], int],
    waits: Waits,
    clock: Callable[[], float],
    on_event: Callable[..., None],
    on_change: Callable[[], None],
  ):
    self._config = config
    self._ledger = ledger
    self._queue = queue
    self._cursor = cursor
    self._workflow = workflow
    self._generate = generate
    self._grader = grader
    self._decode = decode
    self._active_replicas = active_replicas
    self._waits = waits
    self._clock = clock
    self._on_event = on_event
    self._on_change = on_change
    self._pending: collections.deque[tuple[int, Prompt]] = collections.deque()
    self._running: dict[int, _Running] = {}
    self._alike_in_a_row = 0
    self._failures_in_a_row = 0
    self._fatal: BaseException | None = None
    self.version = 0
    self.oldest_allowed = 0
    self._group_rewards: list[list[float]] = []
    self.failures: collections.Counter[str] = collections.Counter()

  @property
  def exhausted(self) -> bool:
    """Nothing will be queued any more (unless a queued sample is dropped)."""
    return (
      not self._running and not self._pending and not self._ledger.wants_more()
    )

  @property
  def oldest_in_flight_s(self) -> float:
    """Age of the oldest sample in flight; 0 if there is none."""
    started = [r.started_s for r in self._running.values() if r.in_flight]
    return self._clock() - min(started) if started else 0.0

  async def run(self) -> None:
    """Starts samples whenever they may start; ends only by an exception.

    Raises:
      RolloutFailed: too many prompts failed in a row.
    """
    try:
      while True:
        # Its deadline is the run's: whoever needs samples has one of its own.
        await self._waits.until(
          self._has_work,
          owner="rollouter",
          reason="capacity and admission",
          deadline_s=math.inf,
        )
        if self._fatal:
          raise self._fatal
        self._start_next()
    finally:
      await cancel_and_wait(*(r.task for r in self._running.values()))

  def cancel_older_than(self, version: int) -> int:
    """Drops samples in flight that were begun before `version`.

    Called before the sync that makes them too old to be trained, so that the
    replicas need not go on with them (case O7). Returns how many.
    """
    old = [r for r in self._running.values() if r.started_version < version]
    for running in old:
      running.too_old = True
      running.task.cancel()
    return len(old)

  def take_group_rewards(self) -> list[list[float]]:
    """Raw rewards of the groups that were dropped since the last call.

    With those of the trained samples they are the rewards before any filter.
    """
    taken, self._group_rewards = self._group_rewards, []
    return taken

  def note_dropped(self, samples: Sequence[Sample]) -> None:
    """Others dropped these graded samples; their rewards still count."""
    self._group_rewards += [s.rewards.tolist() for s in samples]

  def state_dict(self) -> dict[str, Any]:
    return {"cursor": dict(self._cursor.state_dict())}

  def load_state_dict(
    self, state: Mapping[str, Any], pending_ids: Sequence[int]
  ) -> None:
    """Goes on where a checkpoint was made; `pending_ids` start again."""
    self._cursor.load_state_dict(state["cursor"])
    self._pending.extend(
      (i, self._cursor.prompt_at(i)) for i in sorted(pending_ids)
    )

  def _has_work(self) -> bool:
    if self._fatal:
      return True
    return (
      (bool(self._pending) or self._ledger.wants_more())
      and self._ledger.admissible > 0
      and self._ledger.in_flight
      < self._ledger.capacity(self._active_replicas())
    )

  def _start_next(self) -> None:
    if not self._pending:
      item = self._cursor.next()
      if item is None:
        self._ledger.end_of_data()
        self._waits.notify()
        return
      self._ledger.offer(item[0])
      self._pending.append(item)
    sample_id, prompt = self._pending.popleft()
    self._ledger.start(sample_id)
    task = asyncio.create_task(
      self._produce(sample_id, prompt), name=f"sample {sample_id}"
    )
    self._running[sample_id] = _Running(task, self._clock(), self.version)
    self._changed()

  async def _produce(self, sample_id: int, prompt: Prompt) -> None:
    """One sample from its start to the queue, or to its drop."""
    try:
      sample = await self._sample(sample_id, prompt)
      self._failures_in_a_row = 0
      self._deliver(sample)
    except asyncio.CancelledError:
      if not self._running[sample_id].too_old:
        raise
      self._ledger.drop(sample_id, REASON_VERSION_LAG)
    except _FATAL as error:
      self._fatal = error
    except Exception as error:  # one prompt's failure, whatever it is
      self._failed(sample_id, prompt, error)
    finally:
      del self._running[sample_id]
      self._changed()

  async def _sample(self, sample_id: int, prompt: Prompt) -> Sample:
    """Generates and grades a group."""
    responses = await self._group(sample_id, prompt)
    self._ledger.generated(sample_id)
    self._running[sample_id].in_flight = False
    self._changed()
    texts = [self._decode(r.token_ids) for r in responses]
    rewards = await self._grader.grade(prompt, texts)
    if len(rewards) != len(responses):
      raise RuntimeError(
        f"the grader returned {len(rewards)} rewards for {len(responses)}"
        " responses"
      )
    return Sample(
      sample_id=sample_id,
      prompt=prompt,
      responses=tuple(
        dataclasses.replace(response, reward=float(reward))
        for response, reward in zip(responses, rewards, strict=True)
      ),
    )

  async def _group(self, sample_id: int, prompt: Prompt) -> list[Response]:
    """n responses at once; the first failure ends the others."""
    return await all_of(
      *(
        self._workflow(
          prompt,
          self._generate,
          max_response_length=self._config.max_response_length,
          sampling=self._config.sampling,
          key=response_key(sample_id, index),
        )
        for index in range(self._config.rollout_n)
      )
    )

  def _deliver(self, sample: Sample) -> None:
    if sample.oldest_version < self.oldest_allowed:
      self._drop_graded(sample, REASON_VERSION_LAG)
    elif self._config.filter_groups and not has_spread(
      jnp.asarray(sample.rewards)
    ):
      self._drop_graded(sample, REASON_NO_SPREAD)
      self._note_alike()
    else:
      self._alike_in_a_row = 0
      self._queue.put(sample)

  def _drop_graded(self, sample: Sample, reason: str) -> None:
    self._group_rewards.append(sample.rewards.tolist())
    self._ledger.drop(sample.sample_id, reason)

  def _note_alike(self) -> None:
    """Ends the data when no prompt teaches anything any more.

    Otherwise a model that always succeeds (or never) would make the run
    generate for ever and train nothing.
    """
    self._alike_in_a_row += 1
    if self._alike_in_a_row == self._config.alike_in_a_row:
      self._on_event(
        "no_spread",
        f"{self._alike_in_a_row} groups in a row had rewards that are all"
        " alike; the run ends here as at the end of data",
      )
      self._ledger.end_of_data()

  def _failed(self, sample_id: int, prompt: Prompt, error: Exception) -> None:
    """Replaces a prompt that failed, unless all of them seem to."""
    self._ledger.drop(sample_id, REASON_FAILED)
    self.failures[type(error).__name__] += 1
    self._failures_in_a_row += 1
    self._on_event(
      "prompt_failed",
      f"prompt {prompt.prompt_id} failed and is replaced:"
      f" {type(error).__name__}: {error}",
      sample_id=sample_id,
      prompt_id=prompt.prompt_id,
      error=type(error).__name__,
    )
    if self._failures_in_a_row >= self._config.failures_in_a_row:
      fatal = RolloutFailed(
        f"{self._failures_in_a_row} prompts in a row failed, the last one"
        f" (prompt {prompt.prompt_id}) with {type(error).__name__}: {error}"
      )
      fatal.__cause__ = error
      self._fatal = fatal

  def _changed(self) -> None:
    self._on_change()
    self._waits.notify()
