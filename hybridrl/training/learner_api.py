"""What the runtime knows of a learner.

`training.learner.Learner` does the work; `runtime.ray_learner` runs it in a
Ray actor; `testing.scripted_learner` is a deterministic one for tests. The
methods are those of the asynchronous handle that the driver holds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hybridrl.data.sample import Sample
from hybridrl.models.bundle import WeightBundle


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
  """What one micro-step did.

  Attributes:
    step: number of optimizer micro-steps so far, this one included.
    metrics: scalar metrics under their final names, such as 'actor/pg_loss'.
    compute_s: seconds by the seed's keys ('update_actor', 'adv', ...); their
      sum is the compute_i of the seed's section 4.1.
    num_tokens: response tokens that carried loss.
    num_padded_tokens: tokens that the device computed, padding included.
    compilations: compilations of the step since the learner started.
  """

  step: int
  metrics: Mapping[str, float]
  compute_s: Mapping[str, float]
  num_tokens: int
  num_padded_tokens: int
  compilations: int


class LearnerHandle(Protocol):
  """The learner as the driver sees it."""

  async def start(self) -> None:
    """Loads the model; compiles nothing yet."""
    ...

  async def train(self, samples: Sequence[Sample]) -> TrainResult:
    """One micro-step on R samples (fewer at the end of data)."""
    ...

  async def publish(self, version: int) -> WeightBundle:
    """Copies the weights out of the device into a bundle."""
    ...

  async def save(self, step: int, driver_state: Mapping[str, Any]) -> str:
    """Writes one checkpoint of learner and driver; returns its path.

    driver_state is JSON-like. Returns when the checkpoint is durable.
    """
    ...

  async def restore(self, path: str) -> Mapping[str, Any]:
    """Loads a checkpoint; returns the driver_state it was saved with."""
    ...

  async def export(self, path: str) -> None:
    """Writes the durable weight export (orbax) and a Hugging Face folder."""
    ...

  async def stop(self) -> None: ...
