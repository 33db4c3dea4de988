"""Samples for the learner's tests."""

import numpy as np

from hybridrl.data.sample import Prompt, Response, Sample


def make_response(tokens, reward, *, log_prob=-3.0, mask=None):
  tokens = np.asarray(tokens, np.int32)
  size = len(tokens)
  return Response(
    token_ids=tokens,
    log_probs=np.broadcast_to(np.float32(log_prob), size).copy(),
    versions=np.zeros(size, np.int32),
    kv_versions=np.zeros(size, np.int32),
    loss_mask=np.ones(size, bool) if mask is None else np.asarray(mask, bool),
    finish_reason="stop",
    reward=reward,
  )


def make_sample(sample_id, prompt, responses, rewards, **kwargs):
  return Sample(
    sample_id=sample_id,
    prompt=Prompt(
      prompt_id=sample_id,
      text="",
      token_ids=np.asarray(prompt, np.int32),
      answer="",
      data_source="test",
    ),
    responses=tuple(
      make_response(tokens, reward, **kwargs)
      for tokens, reward in zip(responses, rewards, strict=True)
    ),
  )


def random_samples(seed, count=4, n=3, vocab=40, longest=24):
  """Groups of ragged lengths with rewards 0 and 1, at least one of each."""
  rng = np.random.default_rng(seed)
  samples = []
  for index in range(count):
    lengths = rng.integers(1, longest + 1, n)
    samples.append(
      make_sample(
        index,
        rng.integers(vocab, size=rng.integers(1, 9)),
        [rng.integers(vocab, size=length) for length in lengths],
        rng.permutation([1.0, *([0.0] * (n - 1))]).tolist(),
      )
    )
  return samples
