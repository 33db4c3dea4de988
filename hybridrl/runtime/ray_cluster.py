"""Where processes run: a local or existing Ray cluster, bundles, actors.

One placement group holds everything, so a run starts whole or not at all:
bundle 0 is the trainer's (learner and hybrid replicas share its devices), then
one bundle per standalone replica.

On a CPU-only machine a device is one of Ray's CPU units; cores are dealt out by
affinity.py.
"""

import asyncio
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hybridrl.rollout.replica import Replica
from hybridrl.runtime.affinity import Affinity, Cores, pin_process
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.ray_learner import LearnerServer, RayLearner
from hybridrl.runtime.ray_replica import RayReplica, ReplicaServer

_PLACEMENT_TIMEOUT_S = 60.0
# The store holds two published versions and batches on their way.
_OBJECT_STORE_BYTES = 2 << 30

ReplicaFactory = Callable[[], Replica]


class PlacementError(RuntimeError):
  """The devices asked for cannot be had; the message has both numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
  """Handles on everything that was placed; nothing in it is started yet."""

  learner: RayLearner
  standalone: tuple[RayReplica, ...]
  hybrid: tuple[RayReplica, ...]

  async def start(self) -> None:
    """Starts all parts side by side; the first failure ends the others."""
    async with asyncio.TaskGroup() as group:
      group.create_task(self.learner.start(), name="start learner")
      for replica in (*self.standalone, *self.hybrid):
        group.create_task(replica.start(), name=f"start {replica.name}")


def start_ray(config: RunConfig) -> None:
  """Joins the cluster named by RAY_ADDRESS, or starts one on loopback."""
  # Ray asks home and prints banners otherwise; workers keep their own logs.
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
  if os.environ.get("RAY_ADDRESS"):
    ray.init(log_to_driver=False, logging_level="error")
    return
  devices = config.trainer_devices + config.rollout_devices
  ray.init(
    num_cpus=devices if config.device == "cpu" else None,
    num_gpus=devices if config.device == "cuda" else None,
    include_dashboard=False,
    log_to_driver=False,
    logging_level="error",
    object_store_memory=_OBJECT_STORE_BYTES,
    _node_ip_address="127.0.0.1",
  )


def _bundles(config: RunConfig) -> list[dict[str, float]]:
  unit = "CPU" if config.device == "cpu" else "GPU"

  def bundle(devices: int) -> dict[str, float]:
    whole = {unit: float(devices)}
    return whole if unit == "CPU" else whole | {"CPU": 1.0}

  size = config.rollout_tensor_parallel_size
  return [
    bundle(config.trainer_devices),
    *(bundle(size) for _ in range(config.num_standalone)),
  ]


async def _place(config: RunConfig) -> Any:
  bundles = _bundles(config)
  group = placement_group(bundles, strategy="PACK", name="hybridrl")
  try:
    async with asyncio.timeout(_PLACEMENT_TIMEOUT_S):
      await asyncio.wrap_future(group.ready().future())
  except TimeoutError:
    raise PlacementError(
      f"no place for the run within {_PLACEMENT_TIMEOUT_S:g} s: it asks for"
      f" bundles {bundles}; the cluster has {ray.cluster_resources()}, of which"
      f" {ray.available_resources()} are free"
    ) from None
  return group


def _environment(cores: Cores) -> dict[str, str]:
  threads = str(cores.num_threads)
  return {
    "OMP_NUM_THREADS": threads,
    "MKL_NUM_THREADS": threads,
    "OPENBLAS_NUM_THREADS": threads,
    # One process a device: none may take the whole accelerator's memory.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TOKENIZERS_PARALLELISM": "false",
  }


def _pinned(factory: Callable[[], Any], cores: Cores) -> Callable[[], Any]:
  """A factory that pins its process first: threads inherit the affinity."""

  def make() -> Any:
    if cores.cores is not None:
      pin_process(cores.cores)
    return factory()

  return make


async def place(
  config: RunConfig,
  affinity: Affinity,
  make_learner: Callable[[], Any],
  make_replica: Callable[[str, bool, int], ReplicaFactory],
) -> Cluster:
  """Creates the actors of a run inside one placement group.

  Args:
    config: the run.
    affinity: cores of every process.
    make_learner: builds the learner, in its actor.
    make_replica: (name, hybrid, index) -> what builds the replica, in its
      actor.

  Raises:
    PlacementError: the cluster has not what is asked for.
  """
  group = await _place(config)
  size = config.rollout_tensor_parallel_size
  unit = "num_cpus" if config.device == "cpu" else "num_gpus"

  def options(bundle: int, devices: float, cores: Cores) -> dict[str, Any]:
    environment = _environment(cores)
    # The driver computes on the CPU; workers would inherit that.
    environment["JAX_PLATFORMS"] = config.device
    return {
      "num_cpus": 0,
      unit: devices,
      "max_restarts": 0,
      "runtime_env": {"env_vars": environment},
      "scheduling_strategy": PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=bundle
      ),
    }

  # Learner and hybrid replicas share the trainer's devices half and half.
  share = 0.5 if config.num_hybrid else 1.0
  learner = (
    ray.remote(LearnerServer)
    .options(**options(0, config.trainer_devices * share, affinity.learner))
    .remote(_pinned(make_learner, affinity.learner))
  )

  def replica(hybrid: bool, index: int) -> RayReplica:
    name = f"{'hybrid' if hybrid else 'standalone'}-{index}"
    cores = (affinity.hybrid if hybrid else affinity.standalone)[index]
    devices = size * share if hybrid else size
    actor = (
      ray.remote(ReplicaServer)
      .options(**options(0 if hybrid else 1 + index, devices, cores))
      .remote(_pinned(make_replica(name, hybrid, index), cores))
    )
    return RayReplica(name, actor)

  return Cluster(
    learner=RayLearner(learner),
    standalone=tuple(replica(False, i) for i in range(config.num_standalone)),
    hybrid=tuple(replica(True, i) for i in range(config.num_hybrid)),
  )


def stop_ray() -> None:
  """Ends the local cluster, or leaves the one that was joined. Idempotent."""
  ray.shutdown()
