"""Tests of validation.py."""

import asyncio

import numpy as np
import pytest

from hybridrl.data.sample import Response
from hybridrl.rollout.replica import SamplingConfig
from hybridrl.runtime.validation import ValidationFailed, validate
from hybridrl.testing.scripted_grader import ScriptedGrader
from hybridrl.testing.scripted_run import make_prompts
from hybridrl.testing.virtual_loop import run_virtual


class Workflow:
  """Answers prompt i with i + 1 tokens; some of them fail."""

  def __init__(self, failing=()):
    self.failing = failing
    self.running = self.most = 0
    self.keys = []

  async def __call__(self, prompt, generate, *, key, **options):
    self.running += 1
    self.most = max(self.most, self.running)
    self.keys.append(key)
    await asyncio.sleep(1)
    self.running -= 1
    if prompt.prompt_id in self.failing:
      raise OSError("no answer")
    n = prompt.prompt_id + 1
    return Response(
      token_ids=np.full(n, 7, np.int32),
      log_probs=np.zeros(n, np.float32),
      versions=np.ones(n, np.int32),
      kv_versions=np.ones(n, np.int32),
      loss_mask=np.ones(n, bool),
      finish_reason="length" if n > 3 else "stop",
    )


def run_validation(workflow, num_prompts=4):
  async def generate(*args):
    raise AssertionError("the workflow of this test generates by itself")

  return run_virtual(
    validate(
      make_prompts(num_prompts).prompts,
      workflow=workflow,
      generate=generate,
      grader=ScriptedGrader(lambda prompt, text: float(len(text.split()) > 2)),
      decode=lambda ids: " ".join(map(str, ids)),
      max_response_length=10,
      sampling=SamplingConfig(),
      max_concurrent=3,
      label="val7",
    )
  )


def test_means_over_all_prompts():
  workflow = Workflow()
  result = run_validation(workflow)
  assert result.reward == 0.5
  assert result.num_prompts == 4 and result.num_failed == 0
  assert result.response_length == 2.5
  assert result.truncated == 0.25
  assert sorted(workflow.keys) == [f"val7-{i}" for i in range(4)]


def test_no_more_than_the_given_number_at_once():
  workflow = Workflow()
  run_validation(workflow, num_prompts=9)
  assert workflow.most == 3


def test_failed_prompts_are_left_out_and_counted():
  result = run_validation(Workflow(failing=(0, 3)))
  assert result.num_prompts == 2 and result.num_failed == 2
  assert result.reward == 0.5


def test_if_all_fail_there_is_no_mean():
  with pytest.raises(ValidationFailed, match="all 2 .*OSError") as caught:
    run_validation(Workflow(failing=(0, 1)), num_prompts=2)
  assert isinstance(caught.value.__cause__, OSError)
