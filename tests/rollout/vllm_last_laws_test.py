"""The laws of a replica that leave it failed and stopped, on a real engine.

The other laws run on the engine of vllm_replica_test.py.
"""

import asyncio
import importlib.util

import numpy as np
import psutil
import pytest

from hybridrl.rollout import replica, vllm_config, vllm_replica
from hybridrl.testing import replica_conformance

pytest.importorskip("transformers")
if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

from tests.rollout import vllm_models  # noqa: E402 (needs transformers)

pytestmark = pytest.mark.vllm


def test_it_obeys_the_last_laws_and_leaves_no_process(tmp_path):
  model = vllm_models.make_model("qwen3", tied=True, seed=0)
  config = vllm_config.VllmConfig(
    model_dir=vllm_models.save_config(model, tmp_path),
    kv_cache_bytes=64 << 20,
  )
  engine = vllm_replica.VllmReplica("r0", config)
  versions = iter(range(1, 10))
  kit = replica_conformance.Kit(
    replica=engine,
    next_bundle=lambda: vllm_models.make_bundle(model, next(versions)),
    prompts=[np.arange(3, 3 + n, dtype=np.int32) for n in (5, 17, 40, 61)],
    long_tokens=900,
    moment_s=0.3,
    bound_s=60.0,
  )

  async def run():
    try:
      await engine.start()
      pids = engine._processes.pids
      await engine.load_weights(
        kit.next_bundle(), replica.WeightUpdateMode.KEEP
      )
      for law in replica_conformance.LAST_LAWS:
        await law(kit)
      return pids
    finally:
      await engine.stop()

  pids = asyncio.run(run())
  assert pids and not any(psutil.pid_exists(pid) for pid in pids)
