"""Continuous batching on the loop's clock, without a model.

All running attempts advance together: one token each per decode step, and a
step takes `step_s(n)` seconds with n attempts running. Progress is integrated
between events instead of stepped, so an attempt costs O(log n), not O(tokens):
thousands of attempts of hundreds of tokens take milliseconds to simulate.

A token is sampled by the version that is loaded when its step ends. An attempt
that joins while the engine is paused begins, and is prefilled, on resume.
"""

import asyncio
import dataclasses
import heapq
from collections.abc import Callable, Iterable

import numpy as np

from hybridrl.rollout.replica import GenerationRequest, GenerationResult
from hybridrl.testing import scripted_text

# Progress is a float in steps; far below one token, far above its rounding.
_EPS_STEPS = 1e-6


@dataclasses.dataclass(eq=False)
class Attempt:
  """One attempt in the engine.

  Attributes:
    request: what was asked for.
    done: its result.
    seed: of the response's stream.
    first: index in the response of the attempt's first token.
    num_tokens: tokens that it samples if nothing ends it before.
    stops: whether the last of them is the stop token.
    start: progress at which its first decode step begins.
    kv_version: version that prefilled it; None before it began.
  """

  request: GenerationRequest
  done: asyncio.Future[GenerationResult]
  seed: int
  first: int
  num_tokens: int
  stops: bool
  start: float
  kv_version: int | None


class ScriptedEngine:
  """See the module docstring.

  Args:
    lengths: distribution of response lengths.
    step_s: seconds of one decode step with n >= 1 attempts running.
    prefill_steps_per_token: prefill of one token, in decode steps; it delays
      the attempt itself only.
  """

  def __init__(
    self,
    *,
    lengths: scripted_text.Lengths,
    step_s: Callable[[int], float],
    prefill_steps_per_token: float,
  ):
    self._lengths = lengths
    self._step_s = step_s
    self._prefill_steps_per_token = prefill_steps_per_token
    self._attempts: dict[str, Attempt] = {}
    self._finishing: list[tuple[float, int, Attempt]] = []
    self._order = 0
    self._timer: asyncio.TimerHandle | None = None
    self._progress = 0.0
    self._anchor_s = 0.0
    self._paused = False
    # Progress and version of every load: the version of a token is that of
    # the last load before its step ended.
    self._load_progress = [-np.inf]
    self._load_version = [-1]
    self.generated_tokens = 0
    self.prefilled_tokens = 0

  def __len__(self) -> int:
    return len(self._attempts)

  def __contains__(self, request_id: str) -> bool:
    return request_id in self._attempts

  @property
  def version(self) -> int:
    return self._load_version[-1]

  @property
  def paused(self) -> bool:
    return self._paused

  def add(self, request: GenerationRequest) -> Attempt:
    """Starts an attempt, or has it wait for `resume`."""
    self._settle()
    prompt, so_far = scripted_text.split(request.token_ids)
    seed = scripted_text.stream_seed(
      scripted_text.key_of(request.request_id), prompt
    )
    left = scripted_text.response_length(seed, self._lengths) - len(so_far)
    if left < 1:
      raise ValueError(
        f"{request.request_id!r} goes on after the end of its response"
      )
    num_tokens = min(left, request.max_new_tokens)
    attempt = Attempt(
      request=request,
      done=asyncio.get_running_loop().create_future(),
      seed=seed,
      first=len(so_far),
      num_tokens=num_tokens,
      stops=num_tokens == left,
      start=self._progress
      + self._prefill_steps_per_token * len(request.token_ids),
      kv_version=None if self._paused else self.version,
    )
    self.prefilled_tokens += len(request.token_ids)
    self._attempts[request.request_id] = attempt
    self._order += 1
    heapq.heappush(
      self._finishing, (attempt.start + num_tokens, self._order, attempt)
    )
    self._arm()
    return attempt

  def abort(self, request_ids: Iterable[str] | None = None) -> None:
    """Ends these attempts (None: all) with their partial tokens."""
    self._settle()
    ids = list(self._attempts) if request_ids is None else request_ids
    for request_id in ids:
      if request_id in self._attempts:
        self._finish(self._attempts[request_id], aborted=True)
    self._arm()

  def fail(self, error: Exception) -> None:
    """Ends all attempts with an error; their tokens are lost."""
    self._settle()
    for attempt in list(self._attempts.values()):
      self._forget(attempt)
      if not attempt.done.done():
        attempt.done.set_exception(error)
        attempt.done.exception()  # its waiter may be cancelled by now
    self._arm()

  def discard(self, attempt: Attempt) -> None:
    """Ends an attempt that nobody waits for any more."""
    if self._attempts.get(attempt.request.request_id) is attempt:
      self._settle()
      self._forget(attempt)
      self._arm()

  def pause(self) -> None:
    """Progress stops; attempts stay."""
    self._settle()
    self._paused = True
    self._arm()

  def resume(self) -> None:
    self._settle()
    self._paused = False
    for attempt in self._attempts.values():
      if attempt.kv_version is None:
        attempt.kv_version = self.version
    self._arm()

  def load(self, version: int) -> None:
    """Later tokens are sampled by this version (-1: no weights)."""
    self._settle()
    self._load_progress.append(self._progress)
    self._load_version.append(version)

  def _settle(self) -> None:
    """Brings progress up to now."""
    now_s = asyncio.get_running_loop().time()
    if self._attempts and not self._paused:
      passed_s = now_s - self._anchor_s
      self._progress += passed_s / self._step_s(len(self._attempts))
    self._anchor_s = now_s

  def _arm(self) -> None:
    """Sets the timer to the first attempt that finishes."""
    while self._finishing and not self._is_live(self._finishing[0][2]):
      heapq.heappop(self._finishing)
    if not self._finishing or self._paused:
      if self._timer:
        self._timer.cancel()
        self._timer = None
      return
    steps = max(self._finishing[0][0] - self._progress, 0.0)
    due_s = self._anchor_s + steps * self._step_s(len(self._attempts))
    # A timer that is early finds nothing to do and arms again: cheaper than
    # a new timer for each of a thousand arrivals.
    if self._timer:
      if self._timer.when() <= due_s:
        return
      self._timer.cancel()
    loop = asyncio.get_running_loop()
    self._timer = loop.call_at(due_s, self._on_timer)

  def _on_timer(self) -> None:
    self._timer = None
    self._settle()
    limit = self._progress + _EPS_STEPS
    while self._finishing and self._finishing[0][0] <= limit:
      attempt = heapq.heappop(self._finishing)[2]
      if self._is_live(attempt):
        self._finish(attempt, aborted=False)
    self._arm()

  def _is_live(self, attempt: Attempt) -> bool:
    return self._attempts.get(attempt.request.request_id) is attempt

  def _forget(self, attempt: Attempt) -> None:
    del self._attempts[attempt.request.request_id]

  def _finish(self, attempt: Attempt, *, aborted: bool) -> None:
    self._forget(attempt)
    passed = int(self._progress - attempt.start + _EPS_STEPS)
    count = min(max(passed, 0), attempt.num_tokens)
    # An abort that comes when the last token is there comes too late.
    aborted = aborted and count < attempt.num_tokens
    self.generated_tokens += count
    if not attempt.done.done():
      attempt.done.set_result(self._result(attempt, count, aborted))

  def _result(
    self, attempt: Attempt, count: int, aborted: bool
  ) -> GenerationResult:
    ends = attempt.start + np.arange(1, count + 1)
    loads = np.searchsorted(
      np.asarray(self._load_progress) + _EPS_STEPS, ends, side="left"
    )
    versions = np.asarray(self._load_version, np.int32)[loads - 1]
    token_ids, log_probs = scripted_text.sampled(
      attempt.seed, attempt.first, versions
    )
    stop_ids = attempt.request.sampling.stop_token_ids
    stopped = attempt.stops and not aborted
    if stopped and stop_ids:
      token_ids[-1] = stop_ids[0]
    kv_version = (
      self.version if attempt.kv_version is None else (attempt.kv_version)
    )
    return GenerationResult(
      token_ids=token_ids,
      log_probs=log_probs,
      versions=versions,
      kv_versions=np.full(count, kv_version, np.int32),
      finish_reason=("abort" if aborted else "stop" if stopped else "length"),
    )
