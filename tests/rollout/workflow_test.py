import asyncio

import numpy as np
import pytest

from hybridrl.data.sample import Prompt, Response
from hybridrl.rollout.replica import SamplingConfig
from hybridrl.rollout.workflow import Workflow, response_key, single_turn
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_fleet import (
  SAMPLING,
  check_text,
  scripted_fleet,
  scripted_prompt,
)
from hybridrl.testing.virtual_loop import run_virtual


def _prompt(i=0):
  return Prompt(
    prompt_id=i,
    text="",
    token_ids=scripted_prompt(i),
    answer="1",
    data_source="test",
  )


async def two_turns(
  prompt, generate, *, max_response_length, sampling, key
) -> Response:
  """A workflow of another shape: a tool's answer between two turns."""
  first = await generate(prompt.token_ids, 4, sampling, key)
  tool = np.array([50, 51], np.int32)
  second = await generate(
    np.concatenate([prompt.token_ids, first.token_ids, tool]),
    max_response_length - len(first.token_ids) - len(tool),
    sampling,
    key,
  )
  pad = {name: np.zeros(2, np.int32) for name in ("versions", "kv_versions")}
  return Response(
    token_ids=np.concatenate([first.token_ids, tool, second.token_ids]),
    log_probs=np.concatenate(
      [first.log_probs, np.zeros(2, np.float32), second.log_probs]
    ),
    versions=np.concatenate([first.versions, pad["versions"], second.versions]),
    kv_versions=np.concatenate(
      [first.kv_versions, pad["kv_versions"], second.kv_versions]
    ),
    loss_mask=np.array(
      [True] * len(first.token_ids)
      + [False] * 2
      + [True] * len(second.token_ids)
    ),
    finish_reason=second.finish_reason,
  )


@pytest.mark.parametrize(("budget", "reason"), [(8, "length"), (20, "stop")])
def test_single_turn(budget, reason):
  async def main():
    fleet = await scripted_fleet(1, lengths=scripted_text.fixed_length(12))
    workflow: Workflow = single_turn
    key = response_key(3, 1)
    response = await workflow(
      _prompt(),
      fleet.client.generate,
      max_response_length=budget,
      sampling=SAMPLING,
      key=key,
    )
    assert response.finish_reason == reason
    assert len(response.token_ids) == min(budget, 12)
    assert response.loss_mask.dtype == bool
    assert response.loss_mask.all()
    assert response.reward is None
    check_text(response, key, _prompt().token_ids)

  run_virtual(main())


def test_siblings_of_a_group_differ():
  async def main():
    fleet = await scripted_fleet(2)
    responses = await asyncio.gather(
      *(
        single_turn(
          _prompt(),
          fleet.client.generate,
          max_response_length=30,
          sampling=SamplingConfig(),
          key=response_key(5, index),
        )
        for index in range(8)
      )
    )
    assert len({tuple(r.token_ids) for r in responses}) == 8

  run_virtual(main())


def test_response_keys_are_unique():
  keys = {response_key(s, i) for s in range(30) for i in range(30)}
  assert len(keys) == 900


def test_a_multi_turn_workflow_needs_no_other_path():
  """It stays on one replica, and an abort between keeps its parts."""

  async def main():
    fleet = await scripted_fleet(2, lengths=scripted_text.fixed_length(12))
    workflow: Workflow = two_turns
    response = await workflow(
      _prompt(),
      fleet.client.generate,
      max_response_length=30,
      sampling=SAMPLING,
      key="7-0",
    )
    assert response.finish_reason == "stop"
    assert response.loss_mask.sum() == len(response.token_ids) - 2 == 4 + 12
    used = [
      fleet.client.usage(name).finished_responses for name in ("s0", "s1")
    ]
    assert sorted(used) == [0, 2]

  run_virtual(main())
