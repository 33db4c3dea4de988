"""The learner in a Ray actor, and the driver's handle on it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from hybridrl.data.sample import Sample
from hybridrl.models.bundle import WeightBundle
from hybridrl.runtime import ray_calls
from hybridrl.training.learner_api import TrainResult


class LearnerServer:
  """Runs in the actor, one call at a time."""

  def __init__(self, factory: Callable[[], Any]):
    self._learner = factory()

  def start(self) -> None:
    self._learner.start()

  def train(self, samples: Sequence[Sample]) -> TrainResult:
    return self._learner.train(samples)

  def publish(self, version: int) -> WeightBundle:
    """The bundle's buffer is a reference into the object store."""
    bundle = self._learner.publish(version)
    return dataclasses.replace(bundle, buffer=ray.put(bundle.buffer))

  def save(self, step: int, driver_state: Mapping[str, Any]) -> str:
    return self._learner.save(step, driver_state)

  def restore(self, path: str) -> Mapping[str, Any]:
    return self._learner.restore(path)

  def export(self, path: str) -> None:
    self._learner.export(path)

  def stop(self) -> None:
    self._learner.stop()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerTimeouts:
  """Deadlines of the learner's calls, in seconds."""

  start_s: float = 600.0
  train_s: float = 3600.0
  publish_s: float = 300.0
  save_s: float = 600.0


class RayLearner:
  """Implements LearnerHandle on a LearnerServer actor."""

  def __init__(
    self,
    actor: Any,
    timeouts: LearnerTimeouts = LearnerTimeouts(),  # noqa: B008 - frozen
  ):
    self._actor = actor
    self._timeouts = timeouts
    self._stopped = False

  async def _call(self, ref: Any, reason: str, timeout_s: float) -> Any:
    return await ray_calls.call(
      ref, owner="learner", reason=reason, timeout_s=timeout_s
    )

  async def start(self) -> None:
    await self._call(
      self._actor.start.remote(), "start", self._timeouts.start_s
    )

  async def train(self, samples: Sequence[Sample]) -> TrainResult:
    return await self._call(
      self._actor.train.remote(list(samples)), "train", self._timeouts.train_s
    )

  async def publish(self, version: int) -> WeightBundle:
    return await self._call(
      self._actor.publish.remote(version), "publish", self._timeouts.publish_s
    )

  async def save(self, step: int, driver_state: Mapping[str, Any]) -> str:
    return await self._call(
      self._actor.save.remote(step, dict(driver_state)),
      "save",
      self._timeouts.save_s,
    )

  async def restore(self, path: str) -> Mapping[str, Any]:
    return await self._call(
      self._actor.restore.remote(path), "restore", self._timeouts.save_s
    )

  async def export(self, path: str) -> None:
    await self._call(
      self._actor.export.remote(path), "export", self._timeouts.save_s
    )

  async def stop(self) -> None:
    if self._stopped:
      return
    self._stopped = True
    try:
      await self._call(self._actor.stop.remote(), "stop", 10.0)
    except ray_calls.ActorFailed:
      pass  # dead, or in the middle of a step: the kill ends it either way
    finally:
      ray.kill(self._actor, no_restart=True)
