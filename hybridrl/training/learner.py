"""The learner: one model, its optimizer and everything done with them.

A plain synchronous class; runtime.ray_learner runs it in an actor.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridrl.algorithms import (
  ClipRange,
  add_sums,
  group_advantages,
  soft_overlong_penalty,
  zero_sums,
)
from hybridrl.data.sample import Sample
from hybridrl.models.bundle import WeightBundle
from hybridrl.models.hf import load_hf
from hybridrl.training import checkpoint
from hybridrl.training.batches import (
  Trajectory,
  make_batches,
  trajectories,
  unscored,
)
from hybridrl.training.export import write_export
from hybridrl.training.learner_api import TrainResult
from hybridrl.training.learner_config import LearnerConfig
from hybridrl.training.metrics import step_metrics
from hybridrl.training.plan import activation_bytes_per_token, batch_shapes
from hybridrl.training.publisher import Publisher
from hybridrl.training.state import init_state, make_optimizer
from hybridrl.training.step import hyper, make_steps

# A micro-batch whose temporaries would take more recomputes them instead.
_REMAT_BYTES = 2**30


class Learner:
  """Trains on samples, publishes weights, saves and restores.

  Metrics of one train() call are sums over its tokens divided by their number,
  whatever the number of updates and micro-batches.
  """

  def __init__(self, config: LearnerConfig):
    """Keeps the configuration; start() does the work."""
    self._config = config
    self._clip = ClipRange(
      config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c
    )
    self._micro_steps = 0
    self._version = -1
    self._checkpointer: checkpoint.Checkpointer | None = None

  def start(self) -> None:
    """Loads the model onto the device; compiles nothing yet.

    Raises:
      ValueError: the model folder is broken, or the model is too short for
        max_prompt_length + max_response_length.
    """
    config = self._config
    device = jax.devices(config.device)[0]
    self._device = device
    self._model, params = load_hf(config.model_dir)
    if config.max_length > self._model.max_position:
      raise ValueError(
        f"max_prompt_length + max_response_length is {config.max_length}, but"
        f" {config.model_dir} was made for {self._model.max_position} tokens"
      )
    optimizer = make_optimizer(
      config.lr,
      warmup_steps=config.lr_warmup_steps,
      max_grad_norm=config.max_grad_norm,
      weight_decay=config.weight_decay,
    )
    # Committed from the start: jit compiles again when that changes.
    self._state = jax.device_put(init_state(params, optimizer), device)
    self._shapes = batch_shapes(
      self._model,
      config.max_length,
      config.max_tokens_per_micro_batch,
      device.platform,
    )
    self._steps = make_steps(
      self._model,
      optimizer,
      remat=self._needs_remat(),
    )
    self._total = jax.device_put(self._steps.zeros(self._state.params), device)
    self._publisher = Publisher(self._model, config.wire_dtype)

  def _needs_remat(self) -> bool:
    return any(
      s.num_rows
      * s.row_length
      * activation_bytes_per_token(self._model, s.row_length)
      > _REMAT_BYTES
      for s in self._shapes
    )

  @property
  def compilations(self) -> int:
    """Compilations of the update's parts since start()."""
    return self._steps.compilations

  def train(self, samples: Sequence[Sample]) -> TrainResult:
    """One micro-step: an update for each mini_batch_samples samples.

    Args:
      samples: graded groups of equal size n >= 2; fewer than usual at the end
        of the data. They are not changed.

    Raises:
      ValueError: no sample, an ungraded one, or a sequence that is too long.
      FloatingPointError: the gradient is not finite; the message says of which
        micro-step.
    """
    if not samples:
      raise ValueError("a micro-step needs at least one sample")
    started_s = time.perf_counter()
    sequences = [
      trajectories([sample], [self._advantages(sample)]) for sample in samples
    ]
    advantages_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    sums, norms, padded = zero_sums(), [], 0
    for first in range(0, len(samples), self._config.mini_batch_samples):
      last = first + self._config.mini_batch_samples
      part = [t for group in sequences[first:last] for t in group]
      part_sums, norm, part_padded = self._update(part)
      sums, padded = add_sums(sums, part_sums), padded + part_padded
      norms.append(norm)
    sums, norms = jax.device_get((sums, norms))
    if not np.all(np.isfinite(norms)):
      raise FloatingPointError(
        f"micro-step {self._micro_steps + 1}: gradient norms are {norms}"
      )
    self._micro_steps += 1
    update_s = time.perf_counter() - started_s
    return TrainResult(
      step=self._micro_steps,
      metrics=step_metrics(sums, norms, samples),
      compute_s={"adv": advantages_s, "update_actor": update_s},
      num_tokens=int(sums.tokens),
      num_padded_tokens=padded,
      compilations=self.compilations,
    )

  def _advantages(self, sample: Sample) -> np.ndarray:
    """[n] float32; shaping happens here, on a copy of the raw rewards."""
    config = self._config
    lengths = jnp.array([len(r.token_ids) for r in sample.responses])
    rewards = jnp.asarray(sample.rewards) + soft_overlong_penalty(
      lengths, config.max_response_length, config.overlong_buffer_len
    )
    return np.asarray(
      group_advantages(rewards, divide_by_std=config.divide_by_std)
    )

  def _update(self, sequences: list[Trajectory]):
    """One optimizer update; returns (sums, gradient norm, padded tokens)."""
    plan, batches, _ = make_batches(sequences, self._shapes)
    num_tokens = sum(int(t.loss_mask.sum()) for t in sequences)
    if not num_tokens:
      # Nothing to learn from; Adam's momentum alone must not move the weights.
      return zero_sums(), jnp.zeros(()), 0
    numbers = hyper(num_tokens, self._config.temperature, self._clip)
    total = self._total
    for batch in batches:
      batch = jax.device_put(batch, self._device)
      total = self._steps.accumulate(total, self._state.params, batch, numbers)
    self._state, self._total, sums, norm = self._steps.apply(self._state, total)
    return sums, norm, plan.padded_tokens

  def log_probs(
    self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
  ) -> list[np.ndarray]:
    """Log-probs of responses under the current weights, at the temperature.

    Args:
      pairs: prompts [P] and responses [T], int32.

    Returns:
      [T] float32 for each pair.
    """
    sequences = [unscored(prompt, response) for prompt, response in pairs]
    _, batches, places = make_batches(sequences, self._shapes)
    score = functools.partial(self._steps.score, self._state.params)
    temperature = jnp.asarray(self._config.temperature, jnp.float32)
    outs = [
      np.asarray(score(jax.device_put(b, self._device), temperature).log_probs)
      for b in batches
    ]
    return [outs[number][spots] for number, spots in places]

  def publish(self, version: int) -> WeightBundle:
    """Copies the weights into a bundle; see Publisher.

    Raises:
      ValueError: the version is older than one published before.
    """
    if version < self._version:
      raise ValueError(
        f"version {version} after version {self._version}: versions never fall"
      )
    self._version = version
    return self._publisher.publish(self._state.params, version)

  def save(self, step: int, driver_state: Mapping[str, Any]) -> str:
    """Writes one checkpoint of learner and driver; returns its path."""
    if self._checkpointer is None:
      self._checkpointer = checkpoint.Checkpointer(
        self._config.checkpoint_dir, keep=self._config.keep_checkpoints
      )
    meta = {
      "micro_steps": self._micro_steps,
      "version": self._version,
      "driver": dict(driver_state),
    }
    return self._checkpointer.save(step, self._state, meta)

  def restore(self, path: str) -> Mapping[str, Any]:
    """Loads a checkpoint; returns the driver_state it was saved with.

    Raises:
      ValueError: no checkpoint, or one of another model; names the path.
    """
    self._state, meta = checkpoint.restore(path, self._state)
    self._micro_steps = meta["micro_steps"]
    self._version = meta["version"]
    return meta["driver"]

  def export(self, path: str) -> None:
    """Writes a weight export; see training.export."""
    write_export(path, self._model, self._state.params, self._config.model_dir)

  def stop(self) -> None:
    """Closes what is open. Idempotent."""
    if self._checkpointer is not None:
      self._checkpointer.close()
      self._checkpointer = None
