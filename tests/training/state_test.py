import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hybridrl.training.state import init_state, make_optimizer

PARAMS = {
  "embed": jnp.full((4, 3), 2.0),
  "norm": jnp.full((3,), 2.0),
  "layers": {"q": jnp.full((2, 3, 3), 2.0), "q_norm": jnp.full((2, 3), 2.0)},
}


def updates_of(optimizer, count, grad=1.0):
  state = optimizer.init(PARAMS)
  grads = jax.tree.map(lambda x: jnp.full_like(x, grad), PARAMS)
  out = []
  for _ in range(count):
    updates, state = optimizer.update(grads, state, PARAMS)
    out.append(updates)
  return out


def test_l4_weights_and_adams_moments_are_float32():
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
  state = init_state(half, make_optimizer(1e-3))
  floats = [x for x in jax.tree.leaves(state) if x.dtype != jnp.int32]
  assert len(floats) == 3 * 4
  assert {x.dtype for x in floats} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
  ("warmup", "rates"), [(0, [1, 1, 1]), (2, [0.5, 1, 1])]
)
def test_the_rate_rises_linearly(warmup, rates):
  # Adam's update on a constant gradient has the size of the rate.
  found = updates_of(make_optimizer(1e-2, warmup_steps=warmup), 3)
  sizes = [-float(u["norm"][0]) for u in found]
  np.testing.assert_allclose(sizes, np.array(rates) * 1e-2, rtol=1e-4)


def test_weight_decay_spares_norms():
  plain = updates_of(make_optimizer(1e-2), 1)[0]
  decayed = updates_of(make_optimizer(1e-2, weight_decay=0.1), 1)[0]
  difference = jax.tree.map(lambda x, y: np.abs(x - y).max(), plain, decayed)
  assert difference["embed"] > 1e-3
  assert difference["layers"]["q"] > 1e-3
  assert difference["norm"] == difference["layers"]["q_norm"] == 0


def test_the_global_norm_is_clipped_before_adam():
  clipped = make_optimizer(1e-2, max_grad_norm=0.5)
  reference = optax.adamw(1e-2, weight_decay=0.0)
  state, expected = clipped.init(PARAMS), reference.init(PARAMS)
  for scale in (1e-3, 1.0):  # below, then above the bound
    grads = jax.tree.map(lambda x, s=scale: jnp.full_like(x, s), PARAMS)
    factor = min(1.0, 0.5 / float(optax.global_norm(grads)))
    scaled = jax.tree.map(lambda x, f=factor: x * f, grads)
    found, state = clipped.update(grads, state, PARAMS)
    want, expected = reference.update(scaled, expected, PARAMS)
    np.testing.assert_allclose(found["norm"], want["norm"], rtol=1e-4)


@pytest.mark.parametrize(
  "bad", [{"lr": 0.0}, {"warmup_steps": -1}, {"max_grad_norm": 0.0}]
)
def test_impossible_values_are_named(bad):
  with pytest.raises(ValueError, match=next(iter(bad))):
    make_optimizer(**({"lr": 1e-3} | bad))
