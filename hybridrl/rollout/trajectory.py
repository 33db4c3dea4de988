"""A response while the client generates it, attempt by attempt."""

import numpy as np

from hybridrl.rollout.replica import (
  GenerationRequest,
  GenerationResult,
  SamplingConfig,
)

# Wait before a further try where replicas that are routable refuse requests:
# the balancer is about to be told, or the fleet is switching.
MIN_BACKOFF_S = 0.01
MAX_BACKOFF_S = 0.5


class Trajectory:
  """A response while it is being generated."""

  def __init__(
    self,
    prompt_ids: np.ndarray,
    max_new_tokens: int,
    sampling: SamplingConfig,
    key: str,
  ):
    self.key = key
    self.sampling = sampling
    self.max_new_tokens = max_new_tokens
    self.token_ids = np.asarray(prompt_ids, np.int32)  # prompt and parts
    self.parts: list[GenerationResult] = []
    self.num_tokens = 0
    self.last_replica: str | None = None  # the last that took an attempt
    self.refused_by: str | None = None
    self.waited_s = 0.0  # outside attempts, since the last token
    self.fruitless = 0  # attempts in a row without a token
    self.failures = 0  # of them, failures of a replica
    self.last_error: Exception | None = None

  @property
  def budget(self) -> int:
    return self.max_new_tokens - self.num_tokens

  def backoff_s(self) -> float:
    """Wait before the next attempt: 0 at first, then doubling in bounds."""
    if self.fruitless <= 1:
      return 0.0
    doubled = MIN_BACKOFF_S * 2.0 ** min(self.fruitless - 2, 30)
    return min(doubled, MAX_BACKOFF_S)

  def append(self, part: GenerationResult) -> None:
    self.parts.append(part)
    self.num_tokens += len(part.token_ids)
    self.token_ids = np.concatenate(
      [self.token_ids, part.token_ids], dtype=np.int32, casting="same_kind"
    )

  def progressed(self) -> None:
    self.waited_s = 0.0
    self.fruitless = self.failures = 0
    self.refused_by = self.last_error = None

  def finish_reason(self) -> str | None:
    """'stop', 'length', or None while there is more to generate."""
    if not self.parts:
      return None
    last = self.parts[-1]
    if last.finish_reason != "abort":
      return last.finish_reason
    # An abort that met the response at its very end.
    if len(last.token_ids) and (
      int(last.token_ids[-1]) in self.sampling.stop_token_ids
    ):
      return "stop"
    return "length" if self.budget == 0 else None

  def result(self, finish_reason: str) -> GenerationResult:
    def joined(name: str, dtype: type) -> np.ndarray:
      return np.concatenate(
        [getattr(part, name) for part in self.parts],
        dtype=dtype,
        casting="same_kind",
      )

    return GenerationResult(
      token_ids=joined("token_ids", np.int32),
      log_probs=joined("log_probs", np.float32),
      versions=joined("versions", np.int32),
      kv_versions=joined("kv_versions", np.int32),
      finish_reason=finish_reason,
    )


def check_part(
  part: GenerationResult, request: GenerationRequest, replica: str
) -> None:
  """Refuses a result that breaks I4, whoever made it."""
  num_tokens = len(part.token_ids)
  lengths = (len(part.log_probs), len(part.versions), len(part.kv_versions))
  if lengths != (num_tokens,) * 3 or num_tokens > request.max_new_tokens:
    raise ValueError(
      f"replica {replica} answered {request.request_id} with {num_tokens}"
      f" tokens of {request.max_new_tokens} allowed, and log-probs, versions"
      f" and kv-versions of lengths {lengths}"
    )
  if part.finish_reason not in ("stop", "length", "abort"):
    raise ValueError(
      f"replica {replica} ended {request.request_id} with"
      f" {part.finish_reason!r}"
    )
