"""Scripted replicas that serve, for tests of what stands in front of them."""

import asyncio

import numpy as np

from hybridrl.models import bundle as bundle_lib
from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.client import GenerationClient
from hybridrl.rollout.replica import (
  GenerationResult,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_replica import ScriptedReplica, ScriptedTimes

STOP_TOKEN_ID = 7
SAMPLING = SamplingConfig(stop_token_ids=(STOP_TOKEN_ID,))


def scripted_bundle(version: int) -> bundle_lib.WeightBundle:
  """Valid weights of a version; their bytes depend on it."""
  weights = np.arange(8, dtype=np.float32) + version
  return bundle_lib.pack([("weight", weights)], version)


def scripted_prompt(i: int, length: int = 5) -> np.ndarray:
  """[length] int32, different for every i below 10^4."""
  digits = [i // 10**d % 10 for d in range(length)]
  return np.asarray(digits, np.int32) + 20


async def started(
  name: str,
  *,
  lengths: scripted_text.Lengths | None = None,
  times: ScriptedTimes | None = None,
  version: int = 0,
) -> ScriptedReplica:
  """An AWAKE replica with weights."""
  replica = ScriptedReplica(name, lengths=lengths, times=times)
  await replica.start()
  await replica.load_weights(scripted_bundle(version), WeightUpdateMode.KEEP)
  return replica


async def wake(replica: ScriptedReplica, version: int = 0) -> None:
  """Sleeping to AWAKE, in the order of the life cycle."""
  await replica.wake_weights()
  await replica.load_weights(scripted_bundle(version), WeightUpdateMode.KEEP)
  await replica.wake_kv_cache()


class ScriptedFleet:
  """Routable replicas with a client in front.

  Attributes:
    replicas: by name.
    balancer: knows all of them.
    client: generates on them.
    failed: (name, error) of every report of a failure.
  """

  def __init__(self, replicas: list[ScriptedReplica], **client_options):
    self.replicas = {replica.name: replica for replica in replicas}
    self.balancer = LoadBalancer()
    self.failed: list[tuple[str, Exception]] = []
    for name in self.replicas:
      self.balancer.add(name)
    options = {
      "clock": asyncio.get_running_loop().time,
      "wait_timeout_s": 60.0,
      "on_replica_failed": lambda name, e: self.failed.append((name, e)),
    }
    self.client = GenerationClient(
      self.replicas, self.balancer, **(options | client_options)
    )

  async def generate(
    self, i: int, max_new_tokens: int = 10_000
  ) -> GenerationResult:
    """Response i, to prompt i, checked against the oracle."""
    prompt, key = scripted_prompt(i), str(i)
    result = await self.client.generate(prompt, max_new_tokens, SAMPLING, key)
    check_text(result, key, prompt)
    return result


async def scripted_fleet(
  num: int,
  *,
  lengths: scripted_text.Lengths | None = None,
  times: ScriptedTimes | None = None,
  **client_options,
) -> ScriptedFleet:
  """Replicas s0, s1, ... that serve version 0."""
  replicas = [
    await started(f"s{i}", lengths=lengths, times=times) for i in range(num)
  ]
  return ScriptedFleet(replicas, **client_options)


def check_text(result: GenerationResult, key: str, prompt: np.ndarray) -> None:
  """Asserts that not a token is lost, doubled, moved or relabelled."""
  stop = STOP_TOKEN_ID if result.finish_reason == "stop" else None
  token_ids, log_probs = scripted_text.expected(
    key, prompt, result.versions, stop_token_id=stop
  )
  np.testing.assert_array_equal(result.token_ids, token_ids)
  np.testing.assert_array_equal(result.log_probs, log_probs)
  assert len(result.kv_versions) == len(result.token_ids)
  assert np.all(result.kv_versions <= result.versions)
