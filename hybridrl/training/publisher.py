"""Copies weights out of the device into bundles."""

import jax
import jax.numpy as jnp
import numpy as np

from hybridrl.models.bundle import Canary, WeightBundle, pack
from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import Params, logits
from hybridrl.models.hf import named_arrays

# Long enough for rotary positions and the causal mask to matter, short enough
# to cost nothing.
_CANARY_TOKENS = 16


class Publisher:
  """Makes numbered bundles in two buffers that take turns.

  A bundle stays whole until the second publication after it, so whoever still
  loads version v while v + 1 is packed reads v.
  """

  def __init__(self, config: ModelConfig, wire_dtype: str):
    """Remembers how to write; takes no memory yet.

    Args:
      config: shape of the model.
      wire_dtype: 'float32' or 'bfloat16'.
    """
    self._config = config
    self._wire_dtype = wire_dtype
    self._buffers: list[np.ndarray | None] = [None, None]
    rng = np.random.default_rng(0)  # fixed: the same prompt in every run
    length = min(_CANARY_TOKENS, config.max_position)
    self._canary_ids = rng.integers(config.vocab_size, size=length, dtype="i4")
    self._score = jax.jit(self._canary_log_probs)

  def publish(self, params: Params, version: int) -> WeightBundle:
    """Packs the weights under Hugging Face names, a tied matrix once.

    Args:
      params: float32.
      version: number of the publication.
    """
    canary = Canary(
      token_ids=self._canary_ids.copy(),
      log_probs=np.array(self._score(params, self._canary_ids)),
    )
    arrays = named_arrays(params, self._config, self._wire_dtype)
    bundle = pack(arrays, version, canary=canary, out=self._buffers[0])
    self._buffers = [self._buffers[1], bundle.buffer]
    return bundle

  def _canary_log_probs(self, params: Params, token_ids) -> jax.Array:
    """[P - 1] log-probs, by the weights as they are on the wire."""
    wire = jnp.dtype(self._wire_dtype)
    params = jax.tree.map(lambda x: x.astype(wire).astype(jnp.float32), params)
    out = jax.nn.log_softmax(logits(self._config, params, token_ids[None]))[0]
    return jnp.take_along_axis(out[:-1], token_ids[1:, None], axis=1)[:, 0]
