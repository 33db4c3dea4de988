import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import init_params, logits
from hybridrl.training.sampler import sample


def _config(model_type="qwen3", tied=False):
  return ModelConfig(
    model_type=model_type,
    vocab_size=19,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    tie_embeddings=tied,
  )


_PROMPTS = [
  np.array(p, np.int32) for p in ([1], [2, 3, 4, 5, 6, 7, 8], [9, 9, 1])
]


def _sharp(params):
  """Weights whose distributions are far from uniform."""
  return jax.tree.map(lambda x: x * 2.0, params)


def _sample(config, params, key=0, **options):
  options = {"stop_token_id": 0, "max_new_tokens": 20} | options
  return sample(config, params, _PROMPTS, jax.random.key(key), **options)


@pytest.mark.parametrize(
  ("model_type", "tied", "temperature"),
  [("qwen3", False, 1.0), ("qwen2", True, 0.5), ("llama", False, 2.0)],
)
def test_log_probs_are_those_of_the_whole_sequence(
  model_type, tied, temperature
):
  config = _config(model_type, tied)
  params = _sharp(init_params(config, 0))
  for prompt, out in zip(
    _PROMPTS,
    _sample(config, params, temperature=temperature),
    strict=True,
  ):
    whole = jnp.asarray(np.concatenate([prompt, out.token_ids]))[None]
    log_p = jax.nn.log_softmax(logits(config, params, whole)[0] / temperature)
    rows = np.arange(len(prompt) - 1, len(prompt) - 1 + len(out.token_ids))
    expected = np.asarray(log_p)[rows, out.token_ids]
    np.testing.assert_allclose(out.log_probs, expected, atol=2e-4)


def test_greedy_takes_the_likeliest_token():
  config = _config()
  params = _sharp(init_params(config, 1))
  for prompt, out in zip(
    _PROMPTS, _sample(config, params, temperature=0.0), strict=True
  ):
    whole = jnp.asarray(np.concatenate([prompt, out.token_ids]))[None]
    best = np.asarray(logits(config, params, whole)[0].argmax(-1))
    np.testing.assert_array_equal(best[len(prompt) - 1 : -1], out.token_ids)


def test_responses_end_at_the_stop_token_or_the_budget():
  config = _config()
  params = init_params(config, 2)
  ends = set()
  for key in range(5):
    for out in _sample(config, params, key):
      body, last = out.token_ids[:-1], out.token_ids[-1]
      assert 0 not in body
      assert last == 0 or len(out.token_ids) == 20
      assert len(out.log_probs) == len(out.token_ids)
      ends.add(last == 0)
  assert ends == {True, False}


def test_x2_a_budget_of_one_gives_exactly_one_token():
  config = _config()
  outs = _sample(config, init_params(config, 0), max_new_tokens=1)
  assert [len(o.token_ids) for o in outs] == [1, 1, 1]


def test_tokens_come_with_their_probability():
  config = _config()
  params = _sharp(init_params(config, 3))
  prompts = [_PROMPTS[1]] * 4000
  outs = sample(
    config,
    params,
    prompts,
    jax.random.key(0),
    stop_token_id=0,
    max_new_tokens=1,
  )
  counts = np.bincount([o.token_ids[0] for o in outs], minlength=19)
  row = logits(config, params, jnp.asarray(_PROMPTS[1])[None])[0, -1]
  p = np.asarray(jax.nn.softmax(row))
  # Six standard deviations of each count.
  bound = 6 * np.sqrt(4000 * p * (1 - p)) + 1
  assert np.all(np.abs(counts - 4000 * p) <= bound)


def test_keys_decide():
  config = _config()
  params = init_params(config, 0)
  same, again, other = (
    [o.token_ids.tolist() for o in _sample(config, params, k)]
    for k in (0, 0, 1)
  )
  assert same == again != other
