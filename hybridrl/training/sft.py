"""One step of supervised fine-tuning on packed rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hybridrl.algorithms.log_probs import token_log_probs
from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import Params, bind
from hybridrl.training.packing import PackedRows
from hybridrl.training.state import TrainState


def sft_loss(config: ModelConfig, params: Params, rows: PackedRows):
  """Mean cross-entropy of the target tokens in nats; 0 if there are none."""
  model = bind(config, params)
  hidden = model(rows.tokens, rows.positions, rows.segments)
  # The state at t - 1 predicts the token at t.
  targets, mask = rows.tokens[:, 1:], rows.loss_mask[:, 1:]
  pad = ((0, 0), (0, 1))
  targets, mask = jnp.pad(targets, pad), jnp.pad(mask, pad)
  out = token_log_probs(
    hidden.reshape(-1, hidden.shape[-1]),
    model.output_matrix(),
    targets.reshape(-1),
    mask.reshape(-1),
  )
  return -out.log_probs.sum() / jnp.maximum(mask.sum(), 1)


@functools.partial(
  jax.jit, static_argnames=("config", "optimizer"), donate_argnames="state"
)
def sft_step(
  state: TrainState,
  rows: PackedRows,
  *,
  config: ModelConfig,
  optimizer: optax.GradientTransformation,
) -> tuple[TrainState, jax.Array]:
  """One update; the given state is used up.

  Args:
    state: from state.init_state, with the same optimizer.
    rows: a batch; every new shape compiles once.
    config: shape of the model.
    optimizer: for instance from state.make_optimizer, or any optax chain; it
      must be the same object at every call, or each call compiles.

  Returns:
    The new state and the loss before the update, [] float32.
  """
  loss, grads = jax.value_and_grad(
    lambda params: sft_loss(config, params, rows)
  )(state.params)
  updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
  params: Any = optax.apply_updates(state.params, updates)
  return TrainState(state.step + 1, params, opt_state), loss
