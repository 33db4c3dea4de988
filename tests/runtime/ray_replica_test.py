"""The handle on a replica in a real Ray actor."""

import asyncio
import dataclasses
import os
import signal

import numpy as np
import pytest
import ray

from hybridrl.models import bundle as bundle_lib
from hybridrl.rollout.replica import (
  GenerationRequest,
  ReplicaFailed,
  ReplicaState,
  ReplicaUnavailable,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.runtime import ray_cluster
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.ray_replica import RayReplica, ReplicaServer
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_replica import ScriptedReplica, ScriptedTimes

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def _ray():
  ray_cluster.start_ray(RunConfig(trainer_n_gpus_per_node=2))
  yield
  ray_cluster.stop_ray()


def _make(length=20):
  times = ScriptedTimes(step_s=lambda n: 0.001, start_s=0.0)
  return ScriptedReplica(
    "r0", lengths=scripted_text.fixed_length(length), times=times
  )


class _PidServer(ReplicaServer):
  def pid(self) -> int:
    return os.getpid()


def _replica(length=20) -> tuple[RayReplica, object]:
  actor = (
    ray.remote(_PidServer).options(num_cpus=0).remote(lambda: _make(length))
  )
  return RayReplica("r0", actor), actor


def _bundle(version: int):
  arrays = [("w", np.arange(4, dtype=np.float32))]
  bundle = bundle_lib.pack(arrays, version)
  return dataclasses.replace(bundle, buffer=ray.put(bundle.buffer))


def _request(index: int, budget: int = 50) -> GenerationRequest:
  return GenerationRequest(
    request_id=f"q{index}",
    token_ids=np.array([1, 2, index], np.int32),
    max_new_tokens=budget,
    sampling=SamplingConfig(),
  )


async def _ready(length=20):
  replica, actor = _replica(length)
  await replica.start()
  await replica.load_weights(_bundle(1), WeightUpdateMode.KEEP)
  return replica, actor


def test_every_request_returns_once_and_whole():
  async def scenario():
    replica, _ = await _ready()
    results = await asyncio.gather(
      *(replica.generate(_request(i)) for i in range(200))
    )
    stats = await replica.stats()
    await replica.stop()
    return results, stats

  results, stats = asyncio.run(scenario())
  assert [len(r.token_ids) for r in results] == [20] * 200
  assert all(np.all(r.versions == 1) for r in results)
  assert len({tuple(r.token_ids.tolist()) for r in results}) > 1
  assert stats.state == ReplicaState.AWAKE and stats.num_in_flight == 0


def test_b8_control_calls_pass_outstanding_generation():
  async def scenario():
    replica, _ = await _ready(length=100_000)
    tasks = [
      asyncio.create_task(replica.generate(_request(i, 100_000)))
      for i in range(2000)
    ]
    await asyncio.sleep(0.5)
    async with asyncio.timeout(20):
      stats = await replica.stats()
      await replica.abort()
      results = await asyncio.gather(*tasks)
    await replica.stop()
    return stats, results

  stats, results = asyncio.run(scenario())
  assert stats.num_in_flight == 2000
  assert {r.finish_reason for r in results} == {"abort"}
  assert all(0 < len(r.token_ids) < 100_000 for r in results)


def test_errors_keep_their_type():
  async def scenario():
    replica, _ = await _ready()
    await replica.sleep()
    with pytest.raises(ReplicaUnavailable):
      await replica.generate(_request(0))
    damaged = dataclasses.replace(_bundle(2), checksum=1)
    await replica.wake_weights()
    with pytest.raises(ReplicaFailed, match="damaged|crc|checksum"):
      await replica.load_weights(damaged, WeightUpdateMode.KEEP)
    await replica.stop()

  asyncio.run(scenario())


def test_o12_death_surfaces_at_every_request_and_call():
  async def scenario():
    replica, actor = await _ready(length=100_000)
    tasks = [
      asyncio.create_task(replica.generate(_request(i, 100_000)))
      for i in range(10)
    ]
    await asyncio.sleep(0.2)
    os.kill(await actor.pid.remote(), signal.SIGKILL)
    async with asyncio.timeout(30):
      outcomes = await asyncio.gather(*tasks, return_exceptions=True)
      with pytest.raises(ReplicaFailed, match="r0"):
        await replica.generate(_request(99))
      with pytest.raises(ReplicaFailed, match="r0"):
        await replica.abort()
    await replica.stop()
    await replica.stop()
    return outcomes

  outcomes = asyncio.run(scenario())
  assert all(isinstance(o, ReplicaFailed) for o in outcomes)
  assert "r0" in str(outcomes[0])


def test_x3_a_cancelled_request_leaves_the_device():
  async def scenario():
    replica, _ = await _ready(length=100_000)
    task = asyncio.create_task(replica.generate(_request(0, 100_000)))
    await asyncio.sleep(0.2)
    assert (await replica.stats()).num_in_flight == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    async with asyncio.timeout(10):
      while (await replica.stats()).num_in_flight:
        await asyncio.sleep(0.05)
    await replica.stop()

  asyncio.run(scenario())


def test_b7_abort_follows_what_was_just_submitted():
  async def scenario():
    replica, _ = await _ready(length=100_000)
    tasks = [
      asyncio.create_task(replica.generate(_request(i, 100_000)))
      for i in range(5)
    ]
    await asyncio.sleep(0)  # queued in the handle, not sent yet
    async with asyncio.timeout(10):
      await replica.abort()
      results = await asyncio.gather(*tasks)
    await replica.stop()
    return results

  assert {r.finish_reason for r in asyncio.run(scenario())} == {"abort"}
