import jax
import numpy as np
import pytest

from hybridrl.algorithms import token_log_probs
from hybridrl.algorithms.log_probs import chunk_size


def make(num_tokens=96, width=8, vocab=13, seed=0):
  rng = np.random.default_rng(seed)
  return (
    rng.normal(size=(num_tokens, width)).astype(np.float32),
    rng.normal(size=(vocab, width)).astype(np.float32),
    rng.integers(vocab, size=num_tokens).astype(np.int32),
  )


def numpy_log_probs(hidden, matrix, targets, temperature):
  logits = hidden.astype(np.float64) @ matrix.T.astype(np.float64)
  logits = logits / temperature
  logits -= logits.max(-1, keepdims=True)
  table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  chosen = table[np.arange(len(targets)), targets]
  return chosen, -(np.exp(table) * table).sum(-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("use_jit", [False, True])
def test_values_equal_numpys_in_float64(temperature, use_jit):
  hidden, matrix, targets = make()
  mask = np.arange(96) < 50
  function = jax.jit(token_log_probs) if use_jit else token_log_probs
  found = function(hidden, matrix, targets, mask, temperature)
  chosen, entropy = numpy_log_probs(hidden, matrix, targets, temperature)
  np.testing.assert_allclose(
    found.log_probs, np.where(mask, chosen, 0), atol=1e-5
  )
  np.testing.assert_allclose(
    found.entropy, np.where(mask, entropy, 0), atol=1e-5
  )


@pytest.mark.parametrize(
  ("temperature", "expected"), [(0.5, -0.01815), (1.0, -0.12693)]
)
def test_l2_the_temperature_divides_the_logits(temperature, expected):
  found = token_log_probs(
    np.ones((1, 1), np.float32),
    np.array([[2.0], [0.0]], np.float32),
    np.zeros(1, np.int32),
    np.ones(1, bool),
    temperature,
  )
  np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)


def test_gradients_equal_those_of_the_plain_formula():
  hidden, matrix, targets = make()
  mask = np.arange(96) < 70
  weights = np.random.default_rng(1).normal(size=96).astype(np.float32)

  def chunked(hidden, matrix):
    out = token_log_probs(hidden, matrix, targets, mask, 0.7)
    return (out.log_probs * weights).sum() + out.entropy.sum()

  def plain(hidden, matrix):
    table = jax.nn.log_softmax(hidden @ matrix.T / 0.7)
    return (table[np.arange(96), targets] * weights * mask).sum()

  found = jax.grad(chunked, argnums=(0, 1))(hidden, matrix)
  expected = jax.grad(plain, argnums=(0, 1))(hidden, matrix)
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-4)


@pytest.mark.parametrize(
  ("tokens", "vocab"), [(1, 2), (7, 50), (512, 64), (4096, 150_000), (97, 9)]
)
def test_chunks_divide_the_tokens_and_stay_small(tokens, vocab):
  size = chunk_size(tokens, vocab)
  assert tokens % size == 0
  assert size * vocab <= max(2**22, vocab)
