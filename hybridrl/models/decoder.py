"""A dense decoder (Llama, Qwen2, Qwen3) in Flax NNX, f32.

Symbols: B rows, T tokens a row, E hidden, H query heads, G KV heads, D head
size, F MLP width, L layers, V vocabulary.

Weights keep Hugging Face's [out, in] layout, so that publishing them needs no
transpose; the L layers are stacked on a leading axis and scanned, so that
compile time does not grow with depth. Rows can hold several sequences: a token
sees the earlier tokens of its own segment only.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridrl.models.config import ModelConfig

# A nested dict of arrays: {'embed', 'layers': {...}, 'norm'[, 'lm_head']}.
Params = dict[str, Any]

# Up to here layers are unrolled: a tenth faster and a third less temporary
# memory on CPU, at the same compile time for four layers.
_MAX_UNROLLED_LAYERS = 8

# Large and finite: a row of padding then has a uniform softmax, not NaN.
_MASKED = -1e9

# Names of a layer's parameters here -> below 'model.layers.<i>.' there.
LAYER_NAMES = {
  "attn_norm": "input_layernorm.weight",
  "q": "self_attn.q_proj.weight",
  "k": "self_attn.k_proj.weight",
  "v": "self_attn.v_proj.weight",
  "o": "self_attn.o_proj.weight",
  "mlp_norm": "post_attention_layernorm.weight",
  "gate": "mlp.gate_proj.weight",
  "up": "mlp.up_proj.weight",
  "down": "mlp.down_proj.weight",
  "q_bias": "self_attn.q_proj.bias",
  "k_bias": "self_attn.k_proj.bias",
  "v_bias": "self_attn.v_proj.bias",
  "q_norm": "self_attn.q_norm.weight",
  "k_norm": "self_attn.k_norm.weight",
}


class Layers(nnx.Module):
  """The stacked parameters of all layers; each has a leading axis L."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    shapes = config.layer_shapes()
    residual_scale = (2 * config.num_layers) ** -0.5
    for name, hf_name in LAYER_NAMES.items():
      if hf_name not in shapes:
        continue
      shape = (config.num_layers, *shapes[hf_name])
      if name.endswith("_norm"):
        value = jnp.ones(shape)
      elif name.endswith("_bias"):
        value = jnp.zeros(shape)
      else:
        std = shape[-1] ** -0.5
        if name in ("o", "down"):
          std *= residual_scale
        value = std * jax.random.normal(rngs.params(), shape)
      setattr(self, name, nnx.Param(value))


class Decoder(nnx.Module):
  """Maps tokens to hidden states; `output_matrix` maps those to logits."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    shape = (config.vocab_size, config.hidden_size)
    std = config.hidden_size**-0.5
    self.config = config
    self.embed = nnx.Param(std * jax.random.normal(rngs.params(), shape))
    self.layers = Layers(config, rngs)
    self.norm = nnx.Param(jnp.ones((config.hidden_size,)))
    if not config.tie_embeddings:
      self.lm_head = nnx.Param(std * jax.random.normal(rngs.params(), shape))

  def __call__(
    self,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    *,
    remat: bool = False,
  ) -> jax.Array:
    """Hidden states after the last norm.

    Args:
      tokens: [B, T] int32.
      positions: [B, T] int32, position of each token in its own sequence.
      segments: [B, T] int32, number of the sequence in the row; 0 is padding.
      remat: recompute each layer in the backward pass instead of keeping it.

    Returns:
      [B, T, E] float32.
    """
    config = self.config
    cos_sin = rotary_angles(config, positions)
    bias = attention_bias(segments)

    def body(x, weights):
      return _layer(config, weights, x, cos_sin, bias), None

    weights = nnx.to_pure_dict(nnx.state(self.layers, nnx.Param))
    x = self.embed[...][tokens]
    unroll = (
      config.num_layers if config.num_layers <= _MAX_UNROLLED_LAYERS else 1
    )
    layer = jax.checkpoint(body) if remat else body
    x, _ = jax.lax.scan(layer, x, weights, unroll=unroll)
    return rms_norm(x, self.norm[...], config.norm_eps)

  def output_matrix(self) -> jax.Array:
    """[V, E]."""
    tied = self.config.tie_embeddings
    return self.embed[...] if tied else self.lm_head[...]


@functools.cache
def _graphdef(config: ModelConfig):
  abstract = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))
  return nnx.graphdef(abstract)


def bind(config: ModelConfig, params: Params) -> Decoder:
  """The module over these parameters; cheap, usable inside jit and grad."""
  return nnx.merge(_graphdef(config), nnx.State(params))


def init_params(config: ModelConfig, seed: int) -> Params:
  """Fresh float32 parameters: normal, std 1/sqrt(fan in)."""
  model = Decoder(config, nnx.Rngs(seed))
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def logits(
  config: ModelConfig,
  params: Params,
  tokens: jax.Array,
  positions: jax.Array | None = None,
  segments: jax.Array | None = None,
) -> jax.Array:
  """[B, T, V] float32 logits of each next token; for tests and samplers.

  Training uses `hidden states -> log-probs of chosen tokens` instead, which
  never holds all logits (algorithms.token_log_probs).
  """
  if positions is None:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  if segments is None:
    segments = jnp.ones_like(tokens)
  model = bind(config, params)
  hidden = model(tokens, positions, segments)
  return hidden @ model.output_matrix().T


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
  """x / rms(x) * weight over the last axis."""
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(mean_square + eps) * weight


def rotary_frequencies(config: ModelConfig) -> np.ndarray:
  """[D / 2] float32 radians a position, with Llama 3's scaling if any."""
  exponents = np.arange(0, config.head_size, 2) / config.head_size
  frequencies = config.rope_theta**-exponents
  if s := config.rope_scaling:
    turns = s.original_max_position * frequencies / (2 * np.pi)
    smooth = (turns - s.low_freq_factor) / (
      s.high_freq_factor - s.low_freq_factor
    )
    smooth = np.clip(smooth, 0, 1)
    frequencies = frequencies * (smooth + (1 - smooth) / s.factor)
  return frequencies.astype(np.float32)


def rotary_angles(
  config: ModelConfig, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """cos and sin, each [B, 1, T, D / 2] float32."""
  angles = positions[:, None, :, None] * rotary_frequencies(config)
  return jnp.cos(angles), jnp.sin(angles)


def attention_bias(segments: jax.Array) -> jax.Array:
  """[B, 1, T, T] float32: 0 where the column is seen, else very negative."""
  length = segments.shape[1]
  causal = jnp.tril(jnp.ones((length, length), bool))
  same = segments[:, :, None] == segments[:, None, :]
  return jnp.where(causal & same, 0.0, _MASKED)[:, None]


def _rotate(x: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Rotary embedding in the half-split layout; x is [B, H, T, D]."""
  cos, sin = cos_sin
  first, second = jnp.split(x, 2, axis=-1)
  return jnp.concatenate(
    [first * cos - second * sin, second * cos + first * sin], axis=-1
  )


def _heads(x, weight, bias, num_heads: int, head_size: int) -> jax.Array:
  """Projects [B, T, E] to [B, heads, T, D]."""
  y = x @ weight.T
  if bias is not None:
    y = y + bias
  batch, length, _ = x.shape
  return y.reshape(batch, length, num_heads, head_size).swapaxes(1, 2)


def _attention(config: ModelConfig, w: Params, x, cos_sin, bias) -> jax.Array:
  heads, kv_heads, size = (
    config.num_heads,
    config.num_kv_heads,
    config.head_size,
  )
  batch, length, _ = x.shape
  q = _heads(x, w["q"], w.get("q_bias"), heads, size)
  k = _heads(x, w["k"], w.get("k_bias"), kv_heads, size)
  v = _heads(x, w["v"], w.get("v_bias"), kv_heads, size)
  if config.qk_norm:
    q = rms_norm(q, w["q_norm"], config.norm_eps)
    k = rms_norm(k, w["k_norm"], config.norm_eps)
  q, k = _rotate(q * size**-0.5, cos_sin), _rotate(k, cos_sin)
  k, v = (jnp.repeat(a, heads // kv_heads, axis=1) for a in (k, v))
  # Explicit products in [B, H, T, D]: on CPU faster than a grouped einsum or
  # jax.nn.dot_product_attention at rows of 64 to 256 tokens.
  scores = jnp.einsum("bhtd,bhsd->bhts", q, k) + bias
  out = jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores, axis=-1), v)
  out = out.swapaxes(1, 2).reshape(batch, length, heads * size)
  return out @ w["o"].T


def _layer(config: ModelConfig, w: Params, x, cos_sin, bias) -> jax.Array:
  y = rms_norm(x, w["attn_norm"], config.norm_eps)
  x = x + _attention(config, w, y, cos_sin, bias)
  y = rms_norm(x, w["mlp_norm"], config.norm_eps)
  gated = jax.nn.silu(y @ w["gate"].T) * (y @ w["up"].T)
  return x + gated @ w["down"].T
