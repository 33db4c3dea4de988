import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.models.decoder import init_params, logits
from hybridrl.training.packing import empty_rows, pack_in_order
from hybridrl.training.sft import sft_loss, sft_step
from hybridrl.training.state import init_state, make_optimizer
from tests.training.step_test import MODEL

pytestmark = pytest.mark.usefixtures("cheap_compilation")

RNG = np.random.default_rng(0)
PAIRS = [
  (RNG.integers(40, size=p), RNG.integers(40, size=a))
  for p, a in ((3, 9), (5, 4), (1, 12))
]


def test_the_loss_is_the_mean_cross_entropy_of_the_answers():
  params = init_params(MODEL, 0)
  terms = []
  for prompt, answer in PAIRS:
    tokens = np.concatenate([prompt, answer])
    table = jax.nn.log_softmax(
      logits(MODEL, params, jnp.asarray(tokens)[None])[0]
    )
    terms += [-table[len(prompt) - 1 + i, t] for i, t in enumerate(answer)]
  for num_rows, row_length in ((1, 40), (3, 16)):
    rows, taken = pack_in_order(PAIRS, num_rows, row_length)
    assert taken == 3
    found = jax.jit(lambda p, r: sft_loss(MODEL, p, r))(params, rows)
    np.testing.assert_allclose(found, np.mean(terms), rtol=1e-5)


def test_rows_without_targets_cost_nothing():
  assert float(sft_loss(MODEL, init_params(MODEL, 0), empty_rows(1, 16))) == 0


def test_steps_learn_the_answers_with_one_compilation():
  optimizer = make_optimizer(1e-2)
  state = init_state(init_params(MODEL, 0), optimizer)
  rows, _ = pack_in_order(PAIRS, 1, 40)
  before, losses = sft_step._cache_size(), []
  for _ in range(60):
    state, loss = sft_step(state, rows, config=MODEL, optimizer=optimizer)
    losses.append(float(loss))
  assert losses[0] > 3
  assert losses[-1] < 0.1
  assert int(state.step) == 60
  assert sft_step._cache_size() == before + 1


def test_the_step_lowers_for_every_platform():
  optimizer = make_optimizer(1e-2)
  state = init_state(init_params(MODEL, 0), optimizer)
  rows, _ = pack_in_order(PAIRS, 1, 40)
  step = jax.jit(lambda s, r: sft_step(s, r, config=MODEL, optimizer=optimizer))
  platforms = ("cpu", "cuda", "tpu")
  assert jax.export.export(step, platforms=platforms)(state, rows)
