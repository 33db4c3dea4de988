"""Swapped weights are the learner's: hot-loaded, slept and fresh engines agree.

After each real micro-step the published weights go to a replica that never
sleeps and to one that does; an engine that has never held any weights loads
the learner's durable export. A tied model, because its output matrix is what
swaps are known to leave stale.
"""

import asyncio
import importlib.util
import itertools

import numpy as np
import pytest

from hybridrl.data.sample import Sample
from hybridrl.models import bundle
from hybridrl.rollout.replica import (
  GenerationRequest,
  GenerationResult,
  Replica,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.rollout.vllm_config import VllmConfig
from hybridrl.training.export import read_export
from hybridrl.training.learner import Learner
from hybridrl.training.learner_config import LearnerConfig
from tests.small_model import save_small_model
from tests.training.samples import random_samples

if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

from hybridrl.rollout.vllm_replica import VllmReplica  # noqa: E402

pytestmark = pytest.mark.vllm

KEEP = WeightUpdateMode.KEEP
_ROUNDS, _NUM_TOKENS = 2, 40
_REQUESTS = itertools.count()


def _samples(round_: int) -> list[Sample]:
  return random_samples(round_, count=4, n=4, vocab=200, longest=48)


def _prompts(round_: int) -> list[np.ndarray]:
  """New in every round; none of them was trained on."""
  rng = np.random.default_rng(100 + round_)
  return [
    rng.integers(4, 200, size=size).astype(np.int32) for size in (3, 17, 40, 90)
  ]


async def _continue(
  replica: Replica, round_: int
) -> tuple[GenerationResult, ...]:
  requests = [
    GenerationRequest(
      request_id=f"request-{next(_REQUESTS)}",
      token_ids=prompt,
      max_new_tokens=_NUM_TOKENS,
      sampling=SamplingConfig(temperature=0.0),
    )
    for prompt in _prompts(round_)
  ]
  return tuple(await asyncio.gather(*map(replica.generate, requests)))


async def _load_export(replica: Replica, path: str, version: int) -> None:
  """As a late replica does; without a canary, which would be the answer."""
  _, arrays = read_export(path)
  await replica.load_weights(bundle.pack(arrays, version), KEEP)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
  """[round] of (results before, replica name -> results, learner's scores)."""
  folder = tmp_path_factory.mktemp("swap")
  model_dir = save_small_model(folder / "model", tied=True)
  learner = Learner(
    LearnerConfig(
      model_dir=model_dir,
      checkpoint_dir=str(folder / "checkpoints"),
      mini_batch_samples=4,
      max_prompt_length=128,
      max_response_length=64,
      # Large, so that every step changes what is generated.
      lr=1e-2,
      lr_warmup_steps=0,
      max_tokens_per_micro_batch=1024,
    )
  )
  learner.start()
  config = VllmConfig(
    model_dir=model_dir,
    kv_cache_bytes=64 << 20,
    max_num_seqs=8,
    max_model_len=256,
  )
  awake, sleeper = VllmReplica("awake", config), VllmReplica("sleeper", config)
  fresh = [VllmReplica(f"fresh-{i}", config) for i in range(_ROUNDS)]

  async def one_round(i: int):
    # What the weights before this step say must not be what is compared.
    before = await _continue(awake, i)
    learner.train(_samples(i))
    published = learner.publish(i + 1)
    await awake.load_weights(published, KEEP)
    await sleeper.wake_weights()
    await sleeper.load_weights(published, KEEP)
    await sleeper.wake_kv_cache()
    learner.export(str(folder / f"export-{i}"))
    await _load_export(fresh[i], str(folder / f"export-{i}"), i + 1)
    found = {
      name: await _continue(replica, i)
      for name, replica in (
        ("awake", awake),
        ("sleeper", sleeper),
        ("fresh", fresh[i]),
      )
    }
    await sleeper.sleep()
    scored = learner.log_probs(
      [
        (prompt, result.token_ids)
        for prompt, result in zip(_prompts(i), found["awake"], strict=True)
      ]
    )
    return before, found, scored

  async def run():
    try:
      await asyncio.gather(*(r.start() for r in (awake, sleeper, *fresh)))
      await sleeper.sleep()
      await awake.load_weights(learner.publish(0), KEEP)
      return [await one_round(i) for i in range(_ROUNDS)]
    finally:
      await asyncio.gather(*(r.stop() for r in (awake, sleeper, *fresh)))
      learner.stop()

  return asyncio.run(run())


@pytest.mark.parametrize("i", range(_ROUNDS))
@pytest.mark.parametrize("name", ["awake", "sleeper"])
def test_o24_a_swapped_engine_equals_a_fresh_one(rounds, i, name):
  _, found, _ = rounds[i]
  for mine, other in zip(found[name], found["fresh"], strict=True):
    np.testing.assert_array_equal(mine.token_ids, other.token_ids)
    np.testing.assert_allclose(mine.log_probs, other.log_probs, atol=1e-4)
    assert set(mine.versions) == {i + 1}


@pytest.mark.parametrize("i", range(_ROUNDS))
@pytest.mark.parametrize("name", ["awake", "sleeper", "fresh"])
def test_the_learner_scores_what_was_generated_alike(rounds, i, name):
  """At temperature 1; an engine's greedy log-probs are of 1 as well."""
  _, found, scored = rounds[i]
  for result, expected in zip(found[name], scored, strict=True):
    assert len(result.token_ids) == _NUM_TOKENS
    np.testing.assert_allclose(result.log_probs, expected, atol=1e-3)


@pytest.mark.parametrize("i", range(_ROUNDS))
def test_each_step_changed_what_is_generated(rounds, i):
  """Or equality would say nothing about swapping."""
  before, found, _ = rounds[i]
  for new, old in zip(found["awake"], before, strict=True):
    assert set(old.versions) == {i}
    assert np.abs(new.log_probs - old.log_probs).max() > 0.1
