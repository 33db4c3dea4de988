"""A deterministic learner that computes nothing and takes time as told.

Its weights are a digest of everything that it was trained on, in order, so two
runs end with equal weights exactly if they trained on the same batches.
Checkpoints are JSON files, written completely or not at all.
"""

import asyncio
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridrl.data.sample import Sample
from hybridrl.models import bundle as bundle_lib
from hybridrl.training.learner_api import TrainResult


class ScriptedLearner:
  """Implements LearnerHandle.

  Args:
    root: folder of checkpoints and exports.
    train_s: seconds of one micro-step, or a function of its samples.
    publish_s: seconds of one publication.
    save_s: seconds of one checkpoint.
    fail: called with (method name, number of the call, from 1) before each
      call; raises what the test injects.

  Attributes:
    batches: sample ids of each micro-step.
    trained: the samples of each micro-step.
    published: versions in the order of publication.
    steps: micro-steps so far.
    stopped: stop() was called.
    log: (time_s, method) of every call that succeeded, when it ended.
  """

  def __init__(
    self,
    root: str | os.PathLike[str],
    *,
    train_s: float | Callable[[Sequence[Sample]], float] = 1.0,
    publish_s: float = 0.1,
    save_s: float = 0.1,
    fail: Callable[[str, int], None] | None = None,
  ):
    self._root = pathlib.Path(root)
    self._train_s = train_s
    self._publish_s = publish_s
    self._save_s = save_s
    self._fail = fail
    self._calls: dict[str, int] = {}
    self._digest = hashlib.sha256(b"initial weights").digest()
    self.batches: list[tuple[int, ...]] = []
    self.trained: list[tuple[Sample, ...]] = []
    self.published: list[int] = []
    self.steps = 0
    self.stopped = False
    self.log: list[tuple[float, str]] = []

  @property
  def digest(self) -> str:
    """Equal for equal weights."""
    return self._digest.hex()

  async def start(self) -> None:
    await self._work("start", 0.0)

  async def train(self, samples: Sequence[Sample]) -> TrainResult:
    seconds = (
      self._train_s(samples) if callable(self._train_s) else self._train_s
    )
    await self._work("train", seconds)
    self._digest = _digest_after(self._digest, samples)
    self.batches.append(tuple(s.sample_id for s in samples))
    self.trained.append(tuple(samples))
    self.steps += 1
    num_tokens = sum(len(r.token_ids) for s in samples for r in s.responses)
    return TrainResult(
      step=self.steps,
      metrics={"actor/grad_norm": 1.0},
      compute_s={"update_actor": seconds},
      num_tokens=num_tokens,
      num_padded_tokens=num_tokens,
      compilations=1,
    )

  async def publish(self, version: int) -> bundle_lib.WeightBundle:
    if self.published and version <= self.published[-1]:
      raise ValueError(
        f"version {version} published after {self.published[-1]}"
      )
    await self._work("publish", self._publish_s)
    self.published.append(version)
    values = np.frombuffer(self._digest, np.uint8).astype(np.float32)
    return bundle_lib.pack([("digest", values)], version)

  async def save(self, step: int, driver_state: Mapping[str, Any]) -> str:
    state = {"digest": self.digest, "steps": self.steps, "driver": driver_state}
    text = json.dumps(state)
    await self._work("save", self._save_s)
    path = self._root / "checkpoints" / str(step)
    _write(path / "state.json", text)
    return str(path)

  async def restore(self, path: str) -> Mapping[str, Any]:
    state = _read(pathlib.Path(path) / "state.json")
    await self._work("restore", 0.0)
    self._digest = bytes.fromhex(state["digest"])
    self.steps = state["steps"]
    return state["driver"]

  async def export(self, path: str) -> None:
    await self._work("export", 0.0)
    _write(pathlib.Path(path) / "digest", self.digest)

  async def stop(self) -> None:
    self.stopped = True

  async def _work(self, method: str, seconds: float) -> None:
    self._calls[method] = self._calls.get(method, 0) + 1
    if self._fail:
      self._fail(method, self._calls[method])
    await asyncio.sleep(seconds)
    self.log.append((asyncio.get_running_loop().time(), method))


def _write(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(path.name + ".partial")
  partial.write_text(text)
  partial.replace(path)


def _read(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text())


def _digest_after(digest: bytes, samples: Sequence[Sample]) -> bytes:
  """The digest after training on these samples, all their arrays included."""
  hasher = hashlib.sha256(digest)
  for sample in samples:
    hasher.update(f"{sample.sample_id}:{sample.prompt.prompt_id};".encode())
    for response in sample.responses:
      hasher.update(f"{response.reward}{response.finish_reason}".encode())
      for array in (response.token_ids, response.log_probs, response.loss_mask):
        hasher.update(np.ascontiguousarray(array).tobytes())
  return hasher.digest()
