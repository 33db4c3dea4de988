"""How a prompt becomes a trajectory.

A workflow is an async function that calls `generate` as often as it likes and
returns one Response, whose loss_mask marks the tokens that the model sampled.
`single_turn` is the built-in one.
"""

from typing import Protocol

import numpy as np

from hybridrl.data.sample import Prompt, Response
from hybridrl.rollout.replica import GenerationResult, SamplingConfig


class Generate(Protocol):
  """What a workflow calls; `GenerationClient.generate` is one."""

  async def __call__(
    self,
    prompt_ids: np.ndarray,
    max_new_tokens: int,
    sampling: SamplingConfig,
    key: str,
  ) -> GenerationResult:
    """Samples one whole continuation ('stop' or 'length', never 'abort').

    Args:
      prompt_ids: [P] int32, all tokens before the continuation.
      max_new_tokens: at most this many are sampled.
      sampling: see SamplingConfig.
      key: names the trajectory; unique among those in flight. Turns of one
        trajectory pass the same key, so that they find their prefix cached.
    """
    ...


class Workflow(Protocol):
  """Turns a prompt into one response."""

  async def __call__(
    self,
    prompt: Prompt,
    generate: Generate,
    *,
    max_response_length: int,
    sampling: SamplingConfig,
    key: str,
  ) -> Response:
    """Runs one trajectory.

    Args:
      prompt: the prompt.
      generate: samples continuations.
      max_response_length: budget of the trajectory, inserted tokens included.
      sampling: see SamplingConfig.
      key: see Generate.
    """
    ...


def response_key(sample_id: int, index: int) -> str:
  """Key of response `index` of a sample."""
  return f"{sample_id}-{index}"


async def single_turn(
  prompt: Prompt,
  generate: Generate,
  *,
  max_response_length: int,
  sampling: SamplingConfig,
  key: str,
) -> Response:
  """One question, one answer. Implements Workflow."""
  result = await generate(prompt.token_ids, max_response_length, sampling, key)
  return Response(
    token_ids=result.token_ids,
    log_probs=result.log_probs,
    versions=result.versions,
    kv_versions=result.kv_versions,
    loss_mask=np.ones(len(result.token_ids), bool),
    finish_reason=result.finish_reason,
  )
