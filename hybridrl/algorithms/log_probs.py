"""Log-probabilities of chosen tokens, without ever holding all logits."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

# Logits of one chunk: 2^22 float32 are 16 MiB, which stays in a CPU's last
# cache level and keeps an accelerator busy.
_CHUNK_LOGITS = 2**22


class TokenLogProbs(NamedTuple):
  """Per token; zeros where nothing was asked for.

  Attributes:
    log_probs: [N] float32, log-probability of the chosen token.
    entropy: [N] float32, entropy of the distribution in nats; no gradient.
  """

  log_probs: jax.Array
  entropy: jax.Array


def chunk_size(num_tokens: int, vocab_size: int) -> int:
  """Tokens a chunk: a divisor of num_tokens near the cache's size."""
  target = max(1, min(num_tokens // 4, _CHUNK_LOGITS // vocab_size))
  return next(c for c in range(target, 0, -1) if num_tokens % c == 0)


def token_log_probs(
  hidden: jax.Array,
  output_matrix: jax.Array,
  targets: jax.Array,
  mask: jax.Array,
  temperature: jax.Array | float = 1.0,
) -> TokenLogProbs:
  """Log-probs of `targets` under softmax(hidden @ output_matrix.T / T).

  Works chunk by chunk and skips chunks in which nothing is asked for, so tokens
  that are asked for should lie together. The backward pass computes a chunk's
  logits again.

  Args:
    hidden: [N, E] float32.
    output_matrix: [V, E] float32.
    targets: [N] int32.
    mask: [N] bool, tokens that are asked for.
    temperature: > 0, that of the rollout; logits are divided by it.
  """
  chex.assert_rank([hidden, output_matrix, targets, mask], [2, 2, 1, 1])
  num_tokens, width = hidden.shape
  size = chunk_size(num_tokens, output_matrix.shape[0])
  chunks = (
    hidden.reshape(-1, size, width),
    targets.reshape(-1, size),
    mask.reshape(-1, size),
  )
  matrix = output_matrix / temperature

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def compute(matrix, hidden, targets, mask):
    logits = hidden @ matrix.T
    log_z = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    log_p = jax.lax.stop_gradient(logits - log_z[:, None])
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    return TokenLogProbs(
      jnp.where(mask, chosen - log_z, 0.0), jnp.where(mask, entropy, 0.0)
    )

  def skip(matrix, hidden, targets, mask):
    del matrix, targets, mask
    zeros = jnp.zeros(hidden.shape[:1], hidden.dtype)
    return TokenLogProbs(zeros, zeros)

  def body(carry, chunk):
    out = jax.lax.cond(jnp.any(chunk[2]), compute, skip, matrix, *chunk)
    return carry, out

  _, out = jax.lax.scan(body, None, chunks)
  return jax.tree.map(lambda x: x.reshape(num_tokens), out)
