"""The jitted parts of an update.

An update is: for each micro-batch `accumulate`, then `apply`. The loss is the
sum over all tokens of the whole batch divided by their number, so neither it
nor its gradient depends on the split into micro-batches. Each shape of a
micro-batch compiles `accumulate` once; `apply` compiles once.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hybridrl.algorithms import (
  ClipRange,
  PolicySums,
  TokenLogProbs,
  add_sums,
  policy_sums,
  token_log_probs,
  zero_sums,
)
from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import Params, bind
from hybridrl.training.batches import MicroBatch
from hybridrl.training.state import TrainState


class Accumulator(NamedTuple):
  """What the micro-batches of one update have added up to.

  Attributes:
    grads: like the parameters.
    sums: see dapo.PolicySums.
  """

  grads: Params
  sums: PolicySums


class Hyper(NamedTuple):
  """Numbers of the loss, [] float32; no new value compiles anything.

  Attributes:
    num_tokens: tokens that carry loss in the whole batch of the update.
    temperature: of the rollout.
    clip: see dapo.ClipRange.
  """

  num_tokens: jax.Array
  temperature: jax.Array
  clip: ClipRange


class Steps(NamedTuple):
  """Jitted functions; the first argument's buffers are used up.

  Attributes:
    zeros: (params) -> Accumulator; uses nothing up.
    accumulate: (Accumulator, params, MicroBatch, Hyper) -> Accumulator.
    apply: (TrainState, Accumulator) -> (TrainState, zeroed Accumulator, sums,
      gradient norm before the clip).
    score: (params, MicroBatch, temperature) -> TokenLogProbs; uses nothing up.
  """

  zeros: Any
  accumulate: Any
  apply: Any
  score: Any

  @property
  def compilations(self) -> int:
    """Programs of updates compiled so far.

    Counts what jit holds: an argument that is committed to its device now and
    was not before compiles again without being traced again.
    """
    update = (self.zeros, self.accumulate, self.apply)
    return sum(function._cache_size() for function in update)


def hyper(num_tokens: int, temperature: float, clip: ClipRange) -> Hyper:
  """Casts once, so that every call has the same types."""
  f32 = functools.partial(jnp.asarray, dtype=jnp.float32)
  return Hyper(f32(num_tokens), f32(temperature), ClipRange(*map(f32, clip)))


def batch_log_probs(
  config: ModelConfig,
  params: Params,
  batch: MicroBatch,
  temperature: jax.Array,
  remat: bool = False,
) -> TokenLogProbs:
  """[N] log-probs and entropies of the listed tokens."""
  model = bind(config, params)
  hidden = model(batch.tokens, batch.positions, batch.segments, remat=remat)
  hidden = hidden.reshape(-1, config.hidden_size)[batch.sources]
  return token_log_probs(
    hidden, model.output_matrix(), batch.targets, batch.mask, temperature
  )


def loss_and_sums(
  config: ModelConfig,
  params: Params,
  batch: MicroBatch,
  numbers: Hyper,
  remat: bool = False,
) -> tuple[jax.Array, PolicySums]:
  """This micro-batch's part of the batch's token-mean loss, and its sums."""
  out = batch_log_probs(config, params, batch, numbers.temperature, remat)
  sums = policy_sums(
    out.log_probs,
    batch.old_log_probs,
    batch.advantages,
    batch.mask,
    numbers.clip,
    out.entropy,
  )
  return sums.loss / jnp.maximum(numbers.num_tokens, 1), sums


def make_steps(
  config: ModelConfig,
  optimizer: optax.GradientTransformation,
  *,
  remat: bool = False,
) -> Steps:
  """Makes the functions of one learner.

  Args:
    config: shape of the model.
    optimizer: applied to the accumulated gradient.
    remat: recompute layers in the backward pass.
  """

  def zeros(params):
    return Accumulator(jax.tree.map(jnp.zeros_like, params), zero_sums())

  def accumulate(total, params, batch, numbers):

    def part(params):
      return loss_and_sums(config, params, batch, numbers, remat)

    grads, sums = jax.grad(part, has_aux=True)(params)
    grads = jax.tree.map(jnp.add, total.grads, grads)
    return Accumulator(grads, add_sums(total.sums, sums))

  def apply(state, total):
    norm = optax.global_norm(total.grads)
    updates, opt_state = optimizer.update(
      total.grads, state.opt_state, state.params
    )
    params: Any = optax.apply_updates(state.params, updates)
    state = TrainState(state.step + 1, params, opt_state)
    cleared = Accumulator(
      jax.tree.map(jnp.zeros_like, total.grads), zero_sums()
    )
    return state, cleared, total.sums, norm

  def score(params, batch, temperature):
    return batch_log_probs(config, params, batch, temperature)

  return Steps(
    zeros=jax.jit(zeros),
    accumulate=jax.jit(accumulate, donate_argnums=0),
    apply=jax.jit(apply, donate_argnums=(0, 1)),
    score=jax.jit(score),
  )
