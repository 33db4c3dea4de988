import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hybridrl.models.bundle import unpack
from hybridrl.models.decoder import init_params, logits
from hybridrl.models.hf import _from_named, named_arrays
from hybridrl.training.publisher import Publisher
from tests.training.step_test import MODEL

pytestmark = pytest.mark.usefixtures("cheap_compilation")

TIED = dataclasses.replace(MODEL, tie_embeddings=True)


def canary_of(config, params, canary):
  """The receiving side's view: logits of the weights that arrived."""
  ids = canary.token_ids
  table = jax.nn.log_softmax(logits(config, params, jnp.asarray(ids)[None])[0])
  return np.asarray(table)[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("config", [MODEL, TIED])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_canary_is_that_of_the_weights_on_the_wire(config, dtype):
  params = init_params(config, 0)
  bundle = Publisher(config, dtype).publish(params, 3)
  assert bundle.version == 3
  received = dict(unpack(bundle))
  assert set(received) == set(config.tensor_shapes())
  assert {a.dtype for a in received.values()} == {
    np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
  }
  loaded = _from_named(
    config, {n: a.astype(np.float32) for n, a in received.items()}
  )
  np.testing.assert_allclose(
    canary_of(config, loaded, bundle.canary), bundle.canary.log_probs, atol=1e-5
  )


def test_o22_every_tensor_is_published_bit_equal():
  params = init_params(MODEL, 0)
  bundle = Publisher(MODEL, "float32").publish(params, 0)
  sent = named_arrays(params, MODEL)
  for (name, a), (other, b) in zip(sent, unpack(bundle), strict=True):
    assert name == other
    np.testing.assert_array_equal(a, b)


def test_o21_a_tied_matrix_goes_once_and_takes_effect_everywhere():
  params = init_params(TIED, 0)
  publisher = Publisher(TIED, "float32")
  before = publisher.publish(params, 0)
  moved = params | {"embed": params["embed"] + 0.1}
  after = publisher.publish(moved, 1)
  assert "lm_head.weight" not in dict(unpack(after))
  assert np.abs(after.canary.log_probs - before.canary.log_probs).max() > 0.01
  loaded = _from_named(TIED, dict(unpack(after)))
  np.testing.assert_allclose(
    canary_of(TIED, loaded, after.canary), after.canary.log_probs, atol=1e-5
  )


def test_a_bundle_stays_whole_while_the_next_one_is_packed():
  publisher = Publisher(MODEL, "float32")
  bundles = [publisher.publish(init_params(MODEL, v), v) for v in range(2)]
  expected = named_arrays(init_params(MODEL, 0), MODEL)
  for (_, a), (_, b) in zip(expected, unpack(bundles[0]), strict=True):
    np.testing.assert_array_equal(a, b)
  third = publisher.publish(init_params(MODEL, 2), 2)
  assert third.buffer is bundles[0].buffer
