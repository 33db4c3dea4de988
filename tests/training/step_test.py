import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.algorithms import ClipRange
from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import init_params, logits
from hybridrl.training.batches import make_batches, trajectories
from hybridrl.training.plan import Shape
from hybridrl.training.state import init_state, make_optimizer
from hybridrl.training.step import hyper, loss_and_sums, make_steps
from tests.training.samples import random_samples

pytestmark = pytest.mark.usefixtures("cheap_compilation")

MODEL = ModelConfig(
  vocab_size=40,
  hidden_size=32,
  intermediate_size=48,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_size=32,
)
CLIP = ClipRange(0.2, 0.28, 3.0)


def ragged_sequences(seed=0, count=8):
  """Trajectories with ragged lengths, holes in their masks, any advantage."""
  rng = np.random.default_rng(seed)
  samples = random_samples(seed, count)
  sequences = trajectories(samples, rng.normal(size=(count, 3)))
  return [
    s._replace(
      loss_mask=rng.random(len(s.response_ids)) < 0.8,
      old_log_probs=(-3.7 + rng.normal(0, 0.3, len(s.response_ids))).astype(
        "f4"
      ),
    )
    for s in sequences
  ]


def num_tokens(sequences):
  return sum(int(s.loss_mask.sum()) for s in sequences)


@jax.jit
def loss_and_grads(params, batch, numbers):
  function = functools.partial(loss_and_sums, MODEL)
  return jax.value_and_grad(function, has_aux=True)(params, batch, numbers)


def split_loss_and_grads(params, sequences, parts, shape, temperature=1.0):
  """Loss and gradient, summed over this split into micro-batches."""
  numbers = hyper(num_tokens(sequences), temperature, CLIP)
  loss, grads = 0.0, jax.tree.map(jnp.zeros_like, params)
  for part in range(parts):
    _, batches, _ = make_batches(sequences[part::parts], [shape])
    for batch in batches:
      (one, _), more = loss_and_grads(params, batch, numbers)
      loss, grads = loss + one, jax.tree.map(jnp.add, grads, more)
  return loss, grads


@pytest.mark.parametrize("shape", [Shape(1, 32), Shape(2, 64)])
def test_a6_the_gradient_does_not_depend_on_the_split(shape):
  sequences = ragged_sequences()
  with jax.enable_x64(True):
    params = jax.tree.map(
      lambda x: jnp.asarray(np.asarray(x), jnp.float64), init_params(MODEL, 0)
    )
    loss, grads = split_loss_and_grads(params, sequences, 1, Shape(2, 64))
    for parts in (1, 2, 4, 8):
      other, found = split_loss_and_grads(params, sequences, parts, shape)
      np.testing.assert_allclose(other, loss, rtol=1e-6)
      jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
          x, y, rtol=1e-6, atol=1e-6 * np.abs(x).max()
        ),
        grads,
        found,
      )


def plain_loss(params, sequences, temperature):
  """The same loss without packing or chunks, a sequence at a time."""
  total = 0.0
  for s in sequences:
    tokens = np.concatenate([s.prompt_ids, s.response_ids])
    table = jax.nn.log_softmax(
      logits(MODEL, params, jnp.asarray(tokens)[None])[0] / temperature
    )
    new = table[np.arange(len(tokens) - 1), tokens[1:]]
    new = new[len(s.prompt_ids) - 1 :]
    ratio = jnp.exp(new - s.old_log_probs)
    a = s.advantage
    surrogate = jnp.minimum(a * ratio, a * jnp.clip(ratio, 0.8, 1.28))
    if a < 0:
      surrogate = jnp.maximum(surrogate, CLIP.dual * a)
    total -= jnp.sum(jnp.where(s.loss_mask, surrogate, 0.0))
  return total / num_tokens(sequences)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_loss_and_gradient_equal_the_plain_formula(temperature):
  sequences = ragged_sequences(1, count=1)
  params = init_params(MODEL, 0)
  expected, slopes = jax.jit(
    jax.value_and_grad(lambda p: plain_loss(p, sequences, temperature))
  )(params)
  loss, grads = split_loss_and_grads(
    params, sequences, 1, Shape(2, 64), temperature
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(
      x, y, rtol=1e-3, atol=1e-3 * np.abs(x).max()
    ),
    slopes,
    grads,
  )


def test_an_update_accumulates_then_applies_and_clears():
  optimizer = make_optimizer(1e-2)
  sequences = ragged_sequences(2)
  steps = make_steps(MODEL, optimizer)
  params = init_params(MODEL, 0)
  _, grads = split_loss_and_grads(params, sequences, 1, Shape(2, 64))
  state = init_state(params, optimizer)
  expected, _ = optimizer.update(grads, state.opt_state, params)
  numbers = hyper(num_tokens(sequences), 1.0, CLIP)
  total = steps.zeros(state.params)
  for round_number in range(2):
    _, batches, _ = make_batches(sequences, [Shape(1, 64)])
    for batch in batches:
      total = steps.accumulate(total, state.params, batch, numbers)
    state, total, sums, norm = steps.apply(state, total)
    assert float(sums.tokens) == num_tokens(sequences)
    assert all(not np.any(x) for x in jax.tree.leaves(total))
    if round_number == 0:
      assert norm == pytest.approx(
        np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads))),
        rel=1e-3,
      )
      jax.tree.map(
        lambda new, old, change: np.testing.assert_allclose(
          new, old + change, atol=2e-3
        ),
        state.params,
        params,
        expected,
      )
  assert int(state.step) == 2
  assert steps.zeros._cache_size() == 1


@pytest.mark.parametrize("remat", [False, True])
def test_the_step_lowers_for_every_platform(remat):
  optimizer = make_optimizer(1e-3, warmup_steps=3)
  steps = make_steps(MODEL, optimizer, remat=remat)
  state = init_state(init_params(MODEL, 0), optimizer)
  total = steps.zeros(state.params)
  _, (batch, *_), _ = make_batches(ragged_sequences(), [Shape(2, 64)])
  numbers = hyper(10, 1.0, CLIP)
  platforms = ("cpu", "cuda", "tpu")
  for function, args in (
    (steps.accumulate, (total, state.params, batch, numbers)),
    (steps.apply, (state, total)),
    (steps.score, (state.params, batch, numbers.temperature)),
  ):
    exported = jax.export.export(function, platforms=platforms)(*args)
    assert exported.platforms == platforms
