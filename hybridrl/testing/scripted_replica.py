"""A deterministic replica for tests: no model, its own law keeper.

What it samples is in scripted_text.py, how fast in scripted_engine.py, which
faults it can suffer in faults.py. It times everything on the running loop's
clock, so on a VirtualLoop a run of hours takes milliseconds and its order of
events is exact. A caller that breaks the life cycle of replica.py gets
LawBroken, which is no ReplicaUnavailable: clients do not retry it away.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from hybridrl.models import bundle as bundle_lib
from hybridrl.rollout.replica import (
  GenerationRequest,
  GenerationResult,
  ReplicaFailed,
  ReplicaState,
  ReplicaStats,
  ReplicaUnavailable,
  WeightUpdateMode,
)
from hybridrl.testing import faults as faults_lib
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_engine import ScriptedEngine

# Where a fault can strike. 'x' is the entry of a call, 'x.y' a point inside it:
# generate.return   the result is there but not delivered yet
# abort.return      the attempts have ended
# load_weights.paused, load_weights.loaded   before and after the bytes change
# sleep.aborted     nothing is in flight, memory is still held
POINTS = (
  "start",
  "generate",
  "generate.return",
  "abort",
  "abort.return",
  "load_weights",
  "load_weights.paused",
  "load_weights.loaded",
  "sleep",
  "sleep.aborted",
  "wake_weights",
  "wake_kv_cache",
  "stats",
  "stop",
)

# Points that work on a failed replica, and those on a stopped one.
_NEVER_FAIL = ("start", "stats", "stop")
_STOPPED_TOO = (*_NEVER_FAIL, "abort", "abort.return", "generate.return")

# What it claims to hold, in bytes: a process, its weights, its KV cache.
PROCESS_BYTES = 100 << 20
WEIGHT_BYTES = 400 << 20
KV_CACHE_BYTES = 500 << 20


class LawBroken(Exception):
  """A caller broke the life cycle of a replica: a bug in the caller."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedTimes:
  """How long things take, in seconds unless said otherwise.

  Attributes:
    step_s: one decode step with n attempts running.
    prefill_steps_per_token: prefill of one token, in decode steps.
    start_s, load_s, sleep_s, wake_weights_s, wake_kv_cache_s, abort_s, stop_s:
      duration of the call. Attempts go on while an abort takes its time.
  """

  step_s: Callable[[int], float] = lambda n: 0.010 + 0.0001 * n
  prefill_steps_per_token: float = 0.0
  start_s: float = 5.0
  load_s: float = 0.05
  sleep_s: float = 0.1
  wake_weights_s: float = 0.2
  wake_kv_cache_s: float = 0.1
  abort_s: float = 0.005
  stop_s: float = 0.1


class ScriptedReplica:
  """Implements Replica; see the module docstring.

  Attributes:
    name: of the replica.
    faults: plan faults here; see POINTS.
    history: (time_s, call) of every control call that succeeded, such as
      (3.5, 'load_weights 4').
  """

  def __init__(
    self,
    name: str,
    *,
    lengths: scripted_text.Lengths | None = None,
    times: ScriptedTimes | None = None,
  ):
    self.name = name
    self.faults = faults_lib.FaultPlan(POINTS)
    self.history: list[tuple[float, str]] = []
    self._lengths = lengths or scripted_text.fixed_length(20)
    self._times = times or ScriptedTimes()
    self._engine = self._new_engine()
    self._state = ReplicaState.STARTING
    self._leaving = False
    self._has_weight_memory = False
    self._num_in_flight = 0
    self._reason = ""
    self._ended = asyncio.Event()
    # Life-cycle calls wait for one another; abort, stats and stop do not.
    self._lifecycle = asyncio.Lock()

  @property
  def state(self) -> ReplicaState:
    return self._state

  @property
  def version(self) -> int:
    return self._engine.version

  @property
  def num_in_flight(self) -> int:
    return self._num_in_flight

  async def start(self) -> None:
    """Also starts a stopped or failed replica again."""
    async with self._lifecycle:
      if self._state in (ReplicaState.AWAKE, ReplicaState.ASLEEP):
        raise LawBroken(f"{self.name}: start() while {self._state}")
      self._state = ReplicaState.STARTING
      self._ended = asyncio.Event()
      await self._at("start", self._times.start_s)
      if self._state != ReplicaState.STARTING:
        raise ReplicaUnavailable(f"replica {self.name} was stopped")
      self._engine = self._new_engine()
      self._leaving = False
      self._has_weight_memory = True
      self._state = ReplicaState.AWAKE
      self._note("start")

  async def generate(self, request: GenerationRequest) -> GenerationResult:
    self._num_in_flight += 1
    try:
      await self._at("generate")
      self._check_takes(request)
      attempt = self._engine.add(request)
      try:
        result = await attempt.done
      finally:
        self._engine.discard(attempt)
      await self._at("generate.return")
      return result
    finally:
      self._num_in_flight -= 1

  async def abort(self, request_ids: Sequence[str] | None = None) -> None:
    await self._at("abort", self._times.abort_s)
    self._engine.abort(request_ids)
    await self._at("abort.return")
    self._note("abort" if request_ids is None else f"abort {len(request_ids)}")

  async def load_weights(
    self, bundle: bundle_lib.WeightBundle, mode: WeightUpdateMode
  ) -> None:
    async with self._lifecycle:
      await self._at("load_weights")
      self._check_loads(bundle)
      self._engine.pause()
      try:
        if mode != WeightUpdateMode.KEEP:
          self._engine.abort()
        await self._at("load_weights.paused", self._times.load_s)
        self._apply(bundle)
        await self._at("load_weights.loaded")
      except BaseException as error:
        # Half-written weights must never serve.
        self.die(f"loading version {bundle.version} broke off: {error!r}")
        raise
      self._engine.resume()
      self._note(f"load_weights {bundle.version}")

  async def sleep(self) -> None:
    async with self._lifecycle:
      await self._at("sleep")
      if self._state != ReplicaState.ASLEEP:
        self._check_state("sleep", ReplicaState.AWAKE)
        await self._leave()
      self._engine.load(-1)
      self._has_weight_memory = False
      self._note("sleep")

  async def wake_weights(self) -> None:
    async with self._lifecycle:
      await self._at("wake_weights", self._times.wake_weights_s)
      self._check_state("wake_weights", ReplicaState.ASLEEP)
      self._has_weight_memory = True
      self._note("wake_weights")

  async def wake_kv_cache(self) -> None:
    async with self._lifecycle:
      await self._at("wake_kv_cache", self._times.wake_kv_cache_s)
      self._check_state("wake_kv_cache", ReplicaState.ASLEEP)
      if self.version < 0:
        raise LawBroken(f"{self.name}: wake_kv_cache() without weights")
      self._state = ReplicaState.AWAKE
      self._note("wake_kv_cache")

  async def stats(self) -> ReplicaStats:
    await self._at("stats")
    awake = self._state == ReplicaState.AWAKE
    running = self._state not in (ReplicaState.STOPPED, ReplicaState.FAILED)
    return ReplicaStats(
      state=self._state,
      version=self.version,
      num_in_flight=self._num_in_flight,
      resident_bytes=running * PROCESS_BYTES
      + (running and self._has_weight_memory) * WEIGHT_BYTES
      + awake * KV_CACHE_BYTES,
      generated_tokens=self._engine.generated_tokens,
      prefilled_tokens=self._engine.prefilled_tokens,
    )

  async def stop(self) -> None:
    """What is in flight ends with its partial tokens."""
    await self._at("stop", self._times.stop_s)
    self._state = ReplicaState.STOPPED
    self._engine.abort()
    self._ended.set()
    self._note("stop")

  def die(self, reason: str = "killed by a test") -> None:
    """The engine breaks now; also usable as `loop.call_later(5, r.die)`."""
    if self._state == ReplicaState.STOPPED:
      return
    self._state = ReplicaState.FAILED
    self._reason = reason
    self._engine.fail(self._failure())
    self._ended.set()

  async def _leave(self) -> None:
    self._leaving = True
    try:
      await asyncio.sleep(self._times.abort_s)
      self._engine.abort()
      await self._at("sleep.aborted", self._times.sleep_s)
      self._state = ReplicaState.ASLEEP
    finally:
      # Where the call broke off, the replica is awake and serves on.
      self._leaving = False

  async def _at(self, point: str, duration_s: float = 0.0) -> None:
    """Spends the time of a step of a call, and suffers its fault."""
    self._check_runs(point)
    fault = self.faults.visit(point)
    if isinstance(fault, faults_lib.Die):
      self.die(fault.reason)
    await faults_lib.suffer(fault, self._ended)
    if duration_s:
      await asyncio.sleep(duration_s)
    self._check_runs(point)

  def _check_runs(self, point: str) -> None:
    if self._state == ReplicaState.FAILED and point not in _NEVER_FAIL:
      raise self._failure()
    if self._state == ReplicaState.STOPPED and point not in _STOPPED_TOO:
      raise ReplicaUnavailable(f"replica {self.name} is stopped")

  def _failure(self) -> ReplicaFailed:
    return ReplicaFailed(f"replica {self.name} failed: {self._reason}")

  def _check_state(self, call: str, wanted: ReplicaState) -> None:
    if self._state != wanted:
      raise LawBroken(f"{self.name}: {call}() while {self._state}")

  def _check_takes(self, request: GenerationRequest) -> None:
    if self._state != ReplicaState.AWAKE or self._leaving:
      doing = "leaving" if self._leaving else str(self._state)
      raise ReplicaUnavailable(f"replica {self.name} is {doing}")
    if self.version < 0:
      raise LawBroken(f"{self.name}: generate() before any weights (I2)")
    if request.request_id in self._engine:
      raise LawBroken(f"{self.name}: {request.request_id!r} runs already")
    if request.max_new_tokens < 1 or not len(request.token_ids):
      raise LawBroken(
        f"{self.name}: {request.request_id!r} asks for"
        f" {request.max_new_tokens} tokens after {len(request.token_ids)}"
      )

  def _check_loads(self, bundle: bundle_lib.WeightBundle) -> None:
    if self._state not in (ReplicaState.AWAKE, ReplicaState.ASLEEP):
      raise LawBroken(f"{self.name}: load_weights() while {self._state}")
    if not self._has_weight_memory:
      raise LawBroken(f"{self.name}: load_weights() before wake_weights()")
    if bundle.version < self.version:
      raise LawBroken(
        f"{self.name}: version {bundle.version} after {self.version}"
      )

  def _apply(self, bundle: bundle_lib.WeightBundle) -> None:
    try:
      for _ in bundle_lib.unpack(bundle):
        pass
    except ValueError as error:
      raise ReplicaFailed(f"replica {self.name}: {error}") from error
    self._engine.load(bundle.version)

  def _note(self, call: str) -> None:
    self.history.append((asyncio.get_running_loop().time(), call))

  def _new_engine(self) -> ScriptedEngine:
    return ScriptedEngine(
      lengths=self._lengths,
      step_s=self._times.step_s,
      prefill_steps_per_token=self._times.prefill_steps_per_token,
    )
