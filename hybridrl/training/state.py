"""The learner's state and its optimizer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hybridrl.models.decoder import Params


class TrainState(NamedTuple):
  """Everything that an update changes; float32 throughout.

  Attributes:
    step: [] int32, number of updates so far.
    params: master weights.
    opt_state: state of the optimizer.
  """

  step: jax.Array
  params: Params
  opt_state: optax.OptState


def init_state(
  params: Params, optimizer: optax.GradientTransformation
) -> TrainState:
  """A state at step 0. The parameters are copied: updates donate the state."""
  params = jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)
  return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def make_optimizer(
  lr: float,
  *,
  warmup_steps: int = 0,
  max_grad_norm: float = 1.0,
  weight_decay: float = 0.0,
  b1: float = 0.9,
  b2: float = 0.999,
) -> optax.GradientTransformation:
  """AdamW after a clip by global norm, with a linear warm-up of the rate.

  Args:
    lr: rate after the warm-up.
    warmup_steps: updates during which the rate rises; update i (from 1) of
      them uses lr * i / warmup_steps.
    max_grad_norm: gradients of a larger global norm are scaled down to it.
    weight_decay: decoupled, on matrices only.
    b1, b2: decay rates of the moments.

  Raises:
    ValueError: a value is out of its range.
  """
  if not lr > 0:
    raise ValueError(f"lr is {lr}; it must be > 0")
  if warmup_steps < 0:
    raise ValueError(f"warmup_steps is {warmup_steps}; it must be >= 0")
  if not max_grad_norm > 0:
    raise ValueError(f"max_grad_norm is {max_grad_norm}; it must be > 0")

  def rate(count):
    return lr * jnp.minimum(1.0, (count + 1) / max(warmup_steps, 1))

  def is_matrix(params: Params):
    # A stacked vector (norm or bias) has two axes, a stacked matrix three.
    layers = jax.tree.map(lambda x: x.ndim == 3, params["layers"])
    return {k: v.ndim == 2 for k, v in params.items() if k != "layers"} | {
      "layers": layers
    }

  return optax.chain(
    optax.clip_by_global_norm(max_grad_norm),
    optax.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay, mask=is_matrix),
  )
