import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.models import decoder
from hybridrl.models.config import ModelConfig, RopeScaling
from hybridrl.models.hf import save_hf

pytestmark = pytest.mark.usefixtures("cheap_compilation")

LOGITS = jax.jit(decoder.logits, static_argnums=0)
SHAPE = dict(
  vocab_size=61,
  hidden_size=64,
  intermediate_size=80,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_size=32,
)
CONFIGS = {
  "qwen3": ModelConfig(**SHAPE),
  "qwen3-tied": ModelConfig(**SHAPE, tie_embeddings=True),
  "qwen2": ModelConfig(**SHAPE, model_type="qwen2", rope_theta=1e6),
  "llama": ModelConfig(**SHAPE, model_type="llama", norm_eps=1e-5),
  "llama3-rope-tied": ModelConfig(
    **SHAPE,
    model_type="llama",
    tie_embeddings=True,
    rope_theta=5e5,
    rope_scaling=RopeScaling(
      factor=8.0,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
      original_max_position=64,
    ),
  ),
}


def noisy_params(config, seed=0):
  """Parameters in which norms and biases matter too."""
  params = decoder.init_params(config, seed)
  leaves, tree = jax.tree.flatten(params)
  rng = np.random.default_rng(seed)
  leaves = [x + 0.1 * rng.normal(size=x.shape).astype("f4") for x in leaves]
  return jax.tree.unflatten(tree, leaves)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(tmp_path, name):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  config = CONFIGS[name]
  params = noisy_params(config)
  save_hf(tmp_path, config, params)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
  tokens = np.random.default_rng(1).integers(61, size=(2, 90))
  with torch.no_grad():
    expected = model(torch.tensor(tokens)).logits.numpy()
  found = LOGITS(config, params, tokens)
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_packed_sequences_do_not_see_each_other(name):
  config = CONFIGS[name]
  params = noisy_params(config)
  rng = np.random.default_rng(2)
  parts = [rng.integers(61, size=n) for n in (7, 12, 1)]
  tokens = np.concatenate([*parts, np.zeros(4, int)])[None]
  positions = np.concatenate([np.arange(7), np.arange(12), [0], np.zeros(4)])
  segments = np.repeat([1, 2, 3, 0], [7, 12, 1, 4])
  packed = LOGITS(
    config,
    params,
    jnp.asarray(tokens),
    jnp.asarray(positions[None], jnp.int32),
    jnp.asarray(segments[None]),
  )[0]
  one = (jnp.arange(24)[None], jnp.ones((1, 24), jnp.int32))
  alone = [
    LOGITS(config, params, jnp.asarray(np.pad(p, (0, 24 - len(p))))[None], *one)
    for p in parts
  ]
  alone = [rows[0, : len(p)] for rows, p in zip(alone, parts, strict=True)]
  np.testing.assert_allclose(packed[:20], np.concatenate(alone), atol=2e-5)
  assert np.all(np.isfinite(packed))


def test_a_later_token_changes_nothing_before_it():
  config = CONFIGS["qwen3"]
  params = noisy_params(config)
  tokens = np.random.default_rng(3).integers(61, size=(1, 20))
  changed = tokens.copy()
  changed[0, 12] = (changed[0, 12] + 1) % 61
  a = LOGITS(config, params, jnp.asarray(tokens))
  b = LOGITS(config, params, jnp.asarray(changed))
  np.testing.assert_array_equal(a[0, :12], b[0, :12])
  assert np.all(np.abs(a[0, 12:] - b[0, 12:]).max(-1) > 0)


def test_scan_unrolled_layers_and_remat_agree(monkeypatch):
  config = CONFIGS["qwen3"]
  params = noisy_params(config)
  tokens = jnp.asarray(np.random.default_rng(4).integers(61, size=(2, 16)))
  positions = jnp.broadcast_to(jnp.arange(16), (2, 16))
  segments = jnp.ones((2, 16), jnp.int32)

  def grads(remat):
    def loss(params):
      model = decoder.bind(config, params)
      return jnp.sum(model(tokens, positions, segments, remat=remat) ** 2)

    return jax.grad(loss)(params)

  unrolled = grads(False)
  rematerialised = grads(True)
  monkeypatch.setattr(decoder, "_MAX_UNROLLED_LAYERS", 0)
  scanned = grads(False)
  for other in (rematerialised, scanned):
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3, rtol=1e-4),
      unrolled,
      other,
    )


def test_parameters_are_float32_and_as_many_as_announced():
  for config in CONFIGS.values():
    leaves = jax.tree.leaves(decoder.init_params(config, 0))
    assert {x.dtype for x in leaves} == {jnp.dtype("float32")}
    assert sum(x.size for x in leaves) == config.num_parameters


def test_equal_seeds_give_equal_parameters_and_others_do_not():
  a, b, c = (
    decoder.init_params(CONFIGS["qwen3"], s)["embed"] for s in (1, 1, 2)
  )
  np.testing.assert_array_equal(a, b)
  assert np.abs(a - c).max() > 0
