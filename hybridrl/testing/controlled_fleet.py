"""The fleet of a run without a driver: scripted replicas, real runtime."""

import asyncio
import math
from typing import Any

import numpy as np

from hybridrl.models import bundle as bundle_lib
from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.client import GenerationClient
from hybridrl.rollout.replica import (
  ReplicaState,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.runtime.controller import (
  DynamicResourceController,
  FleetState,
  Switch,
)
from hybridrl.runtime.parts import Limits
from hybridrl.runtime.policy_runner import LiveDecision
from hybridrl.runtime.replica_set import ReplicaSet
from hybridrl.runtime.waiting import Waits
from hybridrl.runtime.weight_sync import WeightSync
from hybridrl.testing.recording_reporter import RecordingReporter
from hybridrl.testing.scripted_replica import ScriptedReplica
from hybridrl.testing.scripted_text import fixed_length

PROMPT = np.array([1, 2, 3], np.int32)


def want(
  lend: int, *, drain_s: float = 0.0, rebalance: bool = True
) -> LiveDecision:
  """A decision to lend so many replicas."""
  return LiveDecision(
    lend=lend,
    wait_samples=0,
    recheck_s=math.inf,
    drain_s=drain_s,
    rebalance=rebalance,
    reason=0,
  )


def make_bundle(version: int) -> bundle_lib.WeightBundle:
  """Some weights."""
  return bundle_lib.pack([("w", np.arange(8, dtype=np.float32))], version)


class ControlledFleet:
  """Replicas around a real controller, holding weights of version 1.

  Has to be made in a running loop, and started.

  Args:
    num_standalone, num_hybrid: replicas of each kind.
    length: of every response, in tokens.
    enable_rebalance, custom_rebalance: see DynamicResourceController.
  """

  def __init__(
    self,
    num_standalone: int = 1,
    num_hybrid: int = 2,
    length: int = 100,
    *,
    enable_rebalance: bool = True,
    custom_rebalance: Any = None,
  ):
    loop = asyncio.get_running_loop()
    lengths = fixed_length(length)
    self.standalone = [
      ScriptedReplica(f"standalone-{i}", lengths=lengths)
      for i in range(num_standalone)
    ]
    self.hybrid = [
      ScriptedReplica(f"hybrid-{i}", lengths=lengths) for i in range(num_hybrid)
    ]
    self.reporter = RecordingReporter()
    self.waits = Waits(loop.time)
    self.balancer = LoadBalancer()
    self.limits = Limits(switch_s=5.0, stop_s=2.0)
    self.replicas = ReplicaSet(
      self.standalone,
      self.hybrid,
      balancer=self.balancer,
      waits=self.waits,
      stop_s=self.limits.stop_s,
      on_event=self.reporter.event,
    )
    self.client = GenerationClient(
      self.replicas.all,
      self.balancer,
      clock=loop.time,
      wait_timeout_s=1000.0,
      on_replica_failed=self.replicas.fail,
    )
    self.weights = WeightSync(
      self.replicas,
      self.balancer,
      mode=WeightUpdateMode.KEEP,
      waits=self.waits,
      load_s=self.limits.switch_s,
      clock=loop.time,
      reporter=self.reporter,
    )
    self.switches: list[Switch] = []
    self.controller = DynamicResourceController(
      replicas=self.replicas,
      balancer=self.balancer,
      client=self.client,
      weights=self.weights,
      enable_rebalance=enable_rebalance,
      custom_rebalance=custom_rebalance,
      waits=self.waits,
      limits=self.limits,
      clock=loop.time,
      reporter=self.reporter,
      on_switch=self.switches.append,
    )

  async def start(self) -> "ControlledFleet":
    for replica in (*self.standalone, *self.hybrid):
      await replica.start()
    for replica in self.hybrid:
      await replica.sleep()
    self.weights.published(make_bundle(1))
    await self.weights.load_standalone()
    return self

  def generate(self, count: int) -> list[asyncio.Task]:
    """Starts so many responses of `length` tokens."""
    return [
      asyncio.create_task(
        self.client.generate(PROMPT, 1000, SamplingConfig(), f"r-{i}")
      )
      for i in range(count)
    ]

  def check_truth(self) -> None:
    """What is routable is awake with the last weights; the rest is not awake.

    These are the replicas' own states, not what anybody noted of them.
    """
    routable = set(self.balancer.routable())
    for replica in (*self.standalone, *self.hybrid):
      if replica.name in routable:
        assert replica.state is ReplicaState.AWAKE, replica.name
        assert replica.version >= self.weights.bundle.version
      elif replica.name in self.replicas.hybrid:
        assert replica.state is not ReplicaState.AWAKE, replica.name
    lent = [r.name for r in self.hybrid if r.name in routable]
    assert list(self.controller.lent) == lent
    active = self.controller.state is FleetState.HYBRID_ACTIVE
    assert active == bool(lent)
