"""What the runtime knows of an inference replica.

Three implementations exist: `vllm_replica.VllmReplica` (one engine in this
process), `runtime.ray_replica.RayReplica` (a handle on one in a Ray actor) and
`testing.scripted_replica.ScriptedReplica` (deterministic, for tests).

Life of a replica:

  STARTING -> ASLEEP | AWAKE; AWAKE -> ASLEEP by sleep();
  ASLEEP -> wake_weights() -> load_weights() -> wake_kv_cache() -> AWAKE;
  any -> FAILED; any -> STOPPED by stop().

Laws (the conformance test of a replica checks them):
  * generate() on a replica that is not AWAKE raises ReplicaUnavailable at once;
    it never parks a request.
  * generate() returns exactly once per call: 'stop', 'length' or, with the
    partial tokens, 'abort'.
  * abort() and sleep() return when the device no longer works on the requests
    concerned; their generate() calls have their results by then or right after.
  * Control calls act in bounded time, however many generate() calls are
    outstanding.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hybridrl.models.bundle import WeightBundle


class ReplicaState(enum.StrEnum):
  STARTING = "starting"
  AWAKE = "awake"
  ASLEEP = "asleep"
  FAILED = "failed"
  STOPPED = "stopped"


class WeightUpdateMode(enum.StrEnum):
  """What happens to requests in flight when weights are loaded.

  KEEP: they pause, and go on over their older KV cache.
  REPREFILL: they end with 'abort' and their partial tokens; the client
    continues them, which prefills them again under the new weights.
  ABORT: they end with 'abort'; the client throws the partial tokens away.
  """

  KEEP = "keep"
  REPREFILL = "reprefill"
  ABORT = "abort"


class ReplicaUnavailable(Exception):
  """The replica does not take requests (asleep, leaving, stopped)."""


class ReplicaFailed(Exception):
  """The replica's process or engine is broken; the message says how."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
  """How tokens are sampled. top-p and top-k are refused for training."""

  temperature: float = 1.0
  stop_token_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
  """One response to generate, or to go on with.

  Attributes:
    request_id: unique per attempt.
    token_ids: [P] int32, prompt followed by the tokens generated so far.
    max_new_tokens: budget of this attempt.
    sampling: see SamplingConfig.
  """

  request_id: str
  token_ids: np.ndarray
  max_new_tokens: int
  sampling: SamplingConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GenerationResult:
  """What one attempt sampled. All arrays have length T >= 0.

  Attributes:
    token_ids: [T] int32.
    log_probs: [T] float32, under the sampled distribution.
    versions: [T] int32, version of the weights that sampled each token.
    kv_versions: [T] int32, oldest version in each token's KV cache.
    finish_reason: 'stop', 'length' or 'abort'.
  """

  token_ids: np.ndarray
  log_probs: np.ndarray
  versions: np.ndarray
  kv_versions: np.ndarray
  finish_reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStats:
  """A snapshot.

  Attributes:
    state: see ReplicaState.
    version: version of the loaded weights; -1 where none are.
    num_in_flight: generate() calls that have not returned.
    resident_bytes: resident memory of all processes of the replica.
    generated_tokens: tokens sampled since start.
    prefilled_tokens: prompt tokens computed since start.
  """

  state: ReplicaState
  version: int
  num_in_flight: int
  resident_bytes: int
  generated_tokens: int
  prefilled_tokens: int


class Replica(Protocol):
  """One inference engine. All methods are coroutines of the driver's loop."""

  name: str

  async def start(self) -> None:
    """Brings the engine up, AWAKE, without valid weights (version -1)."""
    ...

  async def generate(self, request: GenerationRequest) -> GenerationResult:
    """Runs one attempt.

    Raises:
      ReplicaUnavailable: the replica takes no requests.
      ReplicaFailed: the engine died; tokens of this attempt are lost.
    """
    ...

  async def abort(self, request_ids: Sequence[str] | None = None) -> None:
    """Ends these requests (None: all) with their partial tokens."""
    ...

  async def load_weights(
    self, bundle: WeightBundle, mode: WeightUpdateMode
  ) -> None:
    """Pauses, loads, checks bytes and canary, resumes.

    On a replica between wake_weights() and wake_kv_cache() nothing is in
    flight and the canary is checked by wake_kv_cache().

    Raises:
      ReplicaFailed: bytes or canary are wrong. The replica is then FAILED.
    """
    ...

  async def sleep(self) -> None:
    """Aborts what is in flight; gives back KV cache and weights."""
    ...

  async def wake_weights(self) -> None:
    """Takes memory for weights. Idempotent."""
    ...

  async def wake_kv_cache(self) -> None:
    """Takes memory for the KV cache, checks the canary; AWAKE afterwards."""
    ...

  async def stats(self) -> ReplicaStats: ...

  async def stop(self) -> None:
    """Ends all processes of the replica. Idempotent."""
    ...
