"""What travels between data, rollout, rewards and training.

A *sample* is a prompt group: one prompt and its n responses. Every counter in
hybridrl counts samples, never responses.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
  """One row of a prompt set, tokenised.

  Attributes:
    prompt_id: index of the prompt in its prompt set.
    text: the prompt as a person reads it (the last user message).
    token_ids: [P] int32, the ids that are fed to the model, chat template and
      generation prompt included.
    answer: the gold answer that a grader compares with.
    data_source: name of the set; selects the grader.
    extra: further columns of the row, never read by the core.
  """

  prompt_id: int
  text: str
  token_ids: np.ndarray
  answer: str
  data_source: str
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Response:
  """One finished trajectory after the prompt. All arrays have length T (I4).

  Attributes:
    token_ids: [T] int32, exactly the ids that were sampled (or, in multi-turn
      workflows, inserted); never re-tokenised.
    log_probs: [T] float32, log-probability of each token under the
      distribution that it was sampled from; 0 where loss_mask is False.
    versions: [T] int32, version of the weights that sampled the token.
    kv_versions: [T] int32, oldest version in the token's KV cache.
    loss_mask: [T] bool, True for tokens that the model sampled.
    finish_reason: 'stop' or 'length'. 'length' means truncated, whatever the
      last token is.
    reward: score of the grader before shaping; None until graded.
  """

  token_ids: np.ndarray
  log_probs: np.ndarray
  versions: np.ndarray
  kv_versions: np.ndarray
  loss_mask: np.ndarray
  finish_reason: str
  reward: float | None = None

  def __post_init__(self):
    lengths = {
      name: len(getattr(self, name))
      for name in (
        "token_ids",
        "log_probs",
        "versions",
        "kv_versions",
        "loss_mask",
      )
    }
    if len(set(lengths.values())) != 1:
      raise ValueError(f"a response's arrays differ in length: {lengths}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
  """A prompt group.

  Attributes:
    sample_id: position in the order in which prompts are offered; unique over
      the whole run, epochs and resumes included.
    prompt: the prompt.
    responses: n responses, in the order of their index.
  """

  sample_id: int
  prompt: Prompt
  responses: tuple[Response, ...]

  @property
  def rewards(self) -> np.ndarray:
    """[n] float32 raw rewards; raises if a response is not graded yet."""
    values = [r.reward for r in self.responses]
    if any(v is None for v in values):
      raise ValueError(f"sample {self.sample_id} is not graded")
    return np.asarray(values, np.float32)

  @property
  def oldest_version(self) -> int:
    """Version of the oldest weights that sampled any token of the group."""
    return min(
      (int(r.versions.min()) for r in self.responses if len(r.versions)),
      default=0,
    )
