"""Llama, tied and untied, on two engines side by side; and how engines die."""

import asyncio
import importlib.util
import os
import signal
import time

import numpy as np
import psutil
import pytest

from hybridrl.rollout import replica, vllm_config, vllm_replica

pytest.importorskip("transformers")
if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

from tests.rollout import vllm_models  # noqa: E402 (needs transformers)

pytestmark = pytest.mark.vllm

KEEP = replica.WeightUpdateMode.KEEP
PROMPT = np.arange(3, 40, dtype=np.int32)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
  """name -> (replica, [model of version 1, 2, 3]); started in parallel."""
  runner = asyncio.Runner()
  members = {}
  for name, tied in (("tied", True), ("untied", False)):
    models = [
      vllm_models.make_model("llama", tied=tied, seed=seed) for seed in range(3)
    ]
    folder = tmp_path_factory.mktemp(name)
    config = vllm_config.VllmConfig(
      model_dir=vllm_models.save_config(models[0], folder),
      kv_cache_bytes=64 << 20,
      prefix_caching=tied,  # both settings see all tests
    )
    members[name] = (vllm_replica.VllmReplica(name, config), models)

  async def start():
    await asyncio.gather(*(r.start() for r, _ in members.values()))

  async def stop():
    await asyncio.gather(*(r.stop() for r, _ in members.values()))

  runner.run(start())
  pids = [pid for r, _ in members.values() for pid in r._processes.pids]
  yield runner.run, members
  runner.run(stop())
  assert not any(psutil.pid_exists(pid) for pid in pids)
  runner.close()


async def generate(engine, key, num=24, prompt=PROMPT):
  return await engine.generate(
    replica.GenerationRequest(
      request_id=key,
      token_ids=prompt,
      max_new_tokens=num,
      sampling=replica.SamplingConfig(temperature=0.0),
    )
  )


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_each_version_equals_transformers_also_after_sleep(fleet, name):
  run, members = fleet
  engine, models = members[name]

  async def check(version):
    result = await generate(engine, f"v{version}")
    model = models[version - 1]
    vllm_models.assert_greedy(model, PROMPT, result.token_ids)
    whole = np.concatenate([PROMPT, result.token_ids])
    expected = vllm_models.log_probs(model, whole)[-len(result.token_ids) :]
    np.testing.assert_allclose(result.log_probs, expected, atol=1e-4)
    assert set(result.versions) == {version}

  async def test():
    for version in (1, 2):
      bundle = vllm_models.make_bundle(models[version - 1], version)
      await engine.load_weights(bundle, KEEP)
      await check(version)
    await engine.sleep()
    await engine.wake_weights()
    bundle = vllm_models.make_bundle(models[2], 3)
    await engine.load_weights(bundle, KEEP)
    await engine.wake_kv_cache()
    await check(3)

  run(test())


def test_a_response_moves_to_another_replica_and_goes_on(fleet):
  """Same weights on both: the uninterrupted greedy continuation."""
  run, members = fleet
  first, models = members["tied"]
  second, _ = members["untied"]
  # An untied model can hold a tied model's weights.
  arrays = dict(vllm_models.named_arrays(models[0]))
  arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]

  async def test():
    good = vllm_models.make_bundle(models[0], 4)
    await first.load_weights(good, KEEP)
    await second.load_weights(
      vllm_models.pack_like(arrays, 4, good.canary), KEEP
    )
    task = asyncio.create_task(generate(first, "move", num=400))
    await asyncio.sleep(0.3)
    await first.abort(["move"])
    part = await task
    prefix = np.concatenate([PROMPT, part.token_ids])
    rest = await generate(second, "moved", num=30, prompt=prefix)
    return part, rest

  part, rest = run(test())
  assert part.finish_reason == "abort" and len(part.token_ids)
  whole = np.concatenate([part.token_ids, rest.token_ids])
  vllm_models.assert_greedy(models[0], PROMPT, whole)


def test_missing_tensor_fails_the_replica_naming_it(fleet):
  """The bytes are right, so that only the completeness check can see it."""
  run, members = fleet
  engine, models = members["untied"]
  arrays = dict(vllm_models.named_arrays(models[0]))
  del arrays["model.layers.2.mlp.down_proj.weight"]

  async def test():
    with pytest.raises(replica.ReplicaFailed, match="layers.2.mlp.down_proj"):
      await engine.load_weights(vllm_models.pack_like(arrays, 9, None), KEEP)
    return await engine.stats()

  assert run(test()).state == replica.ReplicaState.FAILED


def test_o12_a_killed_engine_surfaces_at_once_with_its_cause(fleet):
  run, members = fleet
  engine, _ = members["tied"]

  async def test():
    tasks = [
      asyncio.create_task(generate(engine, f"x{i}", num=800)) for i in range(4)
    ]
    await asyncio.sleep(0.2)
    start = time.monotonic()
    os.kill(engine._processes.pids[0], signal.SIGKILL)
    outcomes = await asyncio.wait_for(
      asyncio.gather(*tasks, return_exceptions=True), 20
    )
    with pytest.raises(replica.ReplicaFailed, match="exit code -9"):
      await generate(engine, "later")
    with pytest.raises(replica.ReplicaFailed, match="exit code -9"):
      await engine.sleep()
    return outcomes, time.monotonic() - start

  outcomes, elapsed_s = run(test())
  for outcome in outcomes:
    assert isinstance(outcome, replica.ReplicaFailed)
    assert "exit code -9" in str(outcome)
  assert elapsed_s < 10  # vLLM alone takes 11 s; generous for a busy machine
