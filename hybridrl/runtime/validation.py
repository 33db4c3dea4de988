"""Scores held-out prompts with the weights that the replicas hold."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from hybridrl.data.sample import Prompt, Response
from hybridrl.rollout.replica import SamplingConfig
from hybridrl.rollout.workflow import Generate, Workflow
from hybridrl.runtime.parts import Grader


class ValidationFailed(RuntimeError):
  """No held-out prompt could be scored; the last failure is its cause."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validation:
  """One pass over the held-out prompts, one response each.

  Attributes:
    reward: mean reward of the prompts that were scored.
    num_prompts: those.
    num_failed: prompts whose generation or grading failed.
    response_length: mean length in tokens.
    truncated: share of responses that hit their budget.
  """

  reward: float
  num_prompts: int
  num_failed: int
  response_length: float
  truncated: float


async def validate(
  prompts: Sequence[Prompt],
  *,
  workflow: Workflow,
  generate: Generate,
  grader: Grader,
  decode: Callable[[np.ndarray], str],
  max_response_length: int,
  sampling: SamplingConfig,
  max_concurrent: int,
  label: str,
) -> Validation:
  """Generates and grades one response for each prompt.

  Args:
    prompts: at least one.
    workflow, generate, grader, decode: as in training.
    max_response_length: tokens.
    sampling: as in training, so that the two rewards can be compared.
    max_concurrent: responses in flight at once.
    label: makes the keys of responses unique.

  Raises:
    ValidationFailed: every prompt failed.
  """
  slots = asyncio.Semaphore(max_concurrent)

  async def score(index: int, prompt: Prompt) -> tuple[float, Response]:
    async with slots:
      response = await workflow(
        prompt,
        generate,
        max_response_length=max_response_length,
        sampling=sampling,
        key=f"{label}-{index}",
      )
    (reward,) = await grader.grade(prompt, [decode(response.token_ids)])
    return float(reward), response

  results = await asyncio.gather(
    *(score(i, prompt) for i, prompt in enumerate(prompts)),
    return_exceptions=True,
  )
  scored = [r for r in results if not isinstance(r, BaseException)]
  errors = [r for r in results if isinstance(r, BaseException)]
  for error in errors:
    if not isinstance(error, Exception):
      raise error
  if not scored:
    raise ValidationFailed(
      f"all {len(errors)} held-out prompts failed, the last with"
      f" {type(errors[-1]).__name__}: {errors[-1]}"
    ) from errors[-1]
  responses = [response for _, response in scored]
  return Validation(
    reward=float(np.mean([reward for reward, _ in scored])),
    num_prompts=len(scored),
    num_failed=len(errors),
    response_length=float(np.mean([len(r.token_ids) for r in responses])),
    truncated=float(np.mean([r.finish_reason == "length" for r in responses])),
  )
