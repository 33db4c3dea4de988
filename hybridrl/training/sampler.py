"""A plain sampler in JAX, for measuring a model without an inference engine.

Symbols: B rows, S positions (prompt and response), L layers, G KV heads, D head
size, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import Params, rms_norm, rotary_angles


class Sampled(NamedTuple):
  """One response. Both arrays have length T; the stop token is included."""

  token_ids: np.ndarray  # [T] int32
  log_probs: np.ndarray  # [T] float32, at the sampling temperature


def sample(
  config: ModelConfig,
  params: Params,
  prompts: Sequence[np.ndarray],
  key: jax.Array,
  *,
  stop_token_id: int,
  max_new_tokens: int,
  temperature: float = 1.0,
) -> list[Sampled]:
  """Samples one response per prompt; equal shapes compile once.

  Args:
    config: shape of the model.
    params: its weights.
    prompts: B arrays [P_i] int32 of at least one token.
    key: consumed.
    stop_token_id: ends a response.
    max_new_tokens: longest response, in tokens.
    temperature: divides logits; 0 takes the likeliest token.
  """
  lengths = np.array([len(p) for p in prompts], np.int32)
  # Multiples of 32 keep the number of compilations small.
  size = -(-(int(lengths.max()) + max_new_tokens) // 32) * 32
  tokens = np.zeros((len(prompts), size), np.int32)
  for row, prompt in zip(tokens, prompts, strict=True):
    row[: len(prompt)] = prompt
  tokens, log_probs, ends = jax.device_get(
    _run(
      params,
      jnp.asarray(tokens),
      jnp.asarray(lengths),
      jnp.int32(stop_token_id),
      jnp.int32(max_new_tokens),
      jnp.float32(temperature),
      key,
      config=config,
    )
  )
  return [
    Sampled(t[start:end], p[start:end])
    for t, p, start, end in zip(tokens, log_probs, lengths, ends, strict=True)
  ]


class _Carry(NamedTuple):
  position: jax.Array  # [] int32, the position that is read next
  tokens: jax.Array  # [B, S] int32
  log_probs: jax.Array  # [B, S] float32
  ends: jax.Array  # [B] int32, one past the last token; S while it runs
  keys: jax.Array  # [L, B, G, S, D] float32
  values: jax.Array  # [L, B, G, S, D] float32


@functools.partial(jax.jit, static_argnames="config")
def _run(
  params, tokens, lengths, stop, max_new_tokens, temperature, key, *, config
):
  batch, size = tokens.shape
  cache = (config.num_layers, batch, config.num_kv_heads, size)
  zeros = jnp.zeros((*cache, config.head_size), jnp.float32)
  limits = lengths + max_new_tokens
  carry = _Carry(
    position=jnp.int32(0),
    tokens=tokens,
    log_probs=jnp.zeros(tokens.shape, jnp.float32),
    ends=limits,
    keys=zeros,
    values=zeros,
  )

  def running(carry: _Carry):
    return carry.position + 1 < jnp.max(carry.ends)

  def body(carry: _Carry) -> _Carry:
    here = carry.position
    logits, keys, values = _decode(
      config, params, carry.tokens[:, here], here, carry.keys, carry.values
    )
    greedy = temperature == 0
    logits = logits / jnp.where(greedy, 1.0, temperature)
    drawn = jnp.where(
      greedy,
      jnp.argmax(logits, axis=-1),
      jax.random.categorical(jax.random.fold_in(key, here), logits),
    ).astype(jnp.int32)
    chosen = jnp.take_along_axis(
      jax.nn.log_softmax(logits), drawn[:, None], axis=-1
    )[:, 0]
    there = here + 1
    write = (there >= lengths) & (there < carry.ends)
    stopped = write & (drawn == stop)
    return _Carry(
      position=there,
      tokens=carry.tokens.at[:, there].set(
        jnp.where(write, drawn, carry.tokens[:, there])
      ),
      log_probs=carry.log_probs.at[:, there].set(jnp.where(write, chosen, 0.0)),
      ends=jnp.where(stopped, there + 1, carry.ends),
      keys=keys,
      values=values,
    )

  carry = jax.lax.while_loop(running, body, carry)
  return carry.tokens, carry.log_probs, carry.ends


def _decode(
  config: ModelConfig, params: Params, tokens, position, keys, values
):
  """Logits [B, V] after one token a row, and the caches with it."""
  batch, heads = tokens.shape[0], config.num_heads
  kv_heads, size = config.num_kv_heads, config.head_size
  cos, sin = rotary_angles(config, jnp.full((batch, 1), position))
  cos, sin = cos[:, :, 0], sin[:, :, 0]  # [B, 1, D / 2]
  seen = jnp.arange(keys.shape[3]) <= position

  def rotate(x):
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis=-1
    )

  def project(x, w, name, count):
    y = x @ w[name].T
    if f"{name}_bias" in w:
      y = y + w[f"{name}_bias"]
    y = y.reshape(batch, count, size)
    norm = w.get(f"{name}_norm")
    return y if norm is None else rms_norm(y, norm, config.norm_eps)

  def layer(index, carry):
    # The caches are carried, so that they are updated in place.
    x, keys, values = carry
    w = jax.tree.map(lambda a: a[index], params["layers"])
    y = rms_norm(x, w["attn_norm"], config.norm_eps)
    q = rotate(project(y, w, "q", heads)) * size**-0.5
    k, v = rotate(project(y, w, "k", kv_heads)), project(y, w, "v", kv_heads)
    keys = keys.at[index, :, :, position].set(k)
    values = values.at[index, :, :, position].set(v)
    q = q.reshape(batch, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("bghd,bgsd->bghs", q, keys[index])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    out = jnp.einsum("bghs,bgsd->bghd", weights, values[index])
    x = x + out.reshape(batch, heads * size) @ w["o"].T
    y = rms_norm(x, w["mlp_norm"], config.norm_eps)
    gated = jax.nn.silu(y @ w["gate"].T) * (y @ w["up"].T)
    return x + gated @ w["down"].T, keys, values

  x, keys, values = jax.lax.fori_loop(
    0,
    config.num_layers,
    layer,
    (params["embed"][tokens], keys, values),
  )
  x = rms_norm(x, params["norm"], config.norm_eps)
  matrix = params["embed" if config.tie_embeddings else "lm_head"]
  return x @ matrix.T, keys, values
