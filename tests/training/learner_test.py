import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.models.bundle import unpack
from hybridrl.models.decoder import init_params, logits
from hybridrl.models.hf import load_hf, save_hf
from hybridrl.training.export import read_export
from hybridrl.training.learner import Learner
from hybridrl.training.learner_config import LearnerConfig
from tests.training.samples import make_sample, random_samples
from tests.training.step_test import MODEL

pytestmark = pytest.mark.usefixtures("cheap_compilation")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp("model")
  save_hf(path, MODEL, init_params(MODEL, 0))
  return path


def make_learner(model_dir, folder, **changes):
  defaults = dict(
    model_dir=str(model_dir),
    checkpoint_dir=str(folder / "checkpoints"),
    max_prompt_length=8,
    max_response_length=24,
    lr=1e-2,
    lr_warmup_steps=0,
    mini_batch_samples=4,
    max_tokens_per_micro_batch=64,
  )
  learner = Learner(LearnerConfig(**(defaults | changes)))
  learner.start()
  return learner


def weights(learner):
  """Name -> array, by the way that replicas get them."""
  return {n: a.copy() for n, a in unpack(learner.publish(10**6))}


def assert_weights(a, b, **tolerance):
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_allclose(a[name], b[name], err_msg=name, **tolerance)


@pytest.fixture(scope="module")
def trained(model_dir, tmp_path_factory):
  """A learner after one step, with what it was given and what it said."""
  learner = make_learner(model_dir, tmp_path_factory.mktemp("run"))
  samples = random_samples(0)
  result = learner.train(samples)
  yield learner, samples, result
  learner.stop()


def test_a_step_reports_what_it_did(trained):
  _, samples, result = trained
  responses = [r for s in samples for r in s.responses]
  lengths = [len(r.token_ids) for r in responses]
  assert result.step == 1
  assert result.num_tokens == sum(lengths)
  assert result.num_padded_tokens >= sum(lengths)
  assert result.num_padded_tokens % 32 == 0
  assert set(result.compute_s) == {"adv", "update_actor"}
  assert result.metrics["response_length/mean"] == np.mean(lengths)
  assert result.metrics["actor/grad_norm"] > 0
  assert 0 < result.metrics["actor/entropy"] <= np.log(MODEL.vocab_size)


def test_no_further_compilation_whatever_the_lengths(trained):
  learner, _, result = trained
  for seed in range(3):
    again = learner.train(random_samples(seed, count=1 + seed))
    assert again.compilations == result.compilations
  # One row shape: zeros, accumulate, apply.
  assert result.compilations == 3


def test_log_probs_equal_the_plain_forward(trained, tmp_path):
  learner, samples, _ = trained
  pairs = [
    (s.prompt.token_ids, r.token_ids) for s in samples for r in s.responses
  ]
  learner.export(str(tmp_path / "export"))
  config, params = load_hf(tmp_path / "export" / "hf")
  assert config == MODEL
  for (prompt, response), found in zip(
    pairs, learner.log_probs(pairs), strict=True
  ):
    tokens = np.concatenate([prompt, response])
    padded = np.pad(tokens, (0, 32 - len(tokens)))
    table = jax.nn.log_softmax(
      logits(MODEL, params, jnp.asarray(padded)[None])[0]
    )
    every = np.asarray(table)[np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(found, every[len(prompt) - 1 :], atol=1e-4)


def test_published_and_exported_weights_are_the_same(trained, tmp_path):
  learner, _, _ = trained
  learner.export(str(tmp_path / "export"))
  _, exported = read_export(tmp_path / "export")
  assert_weights(dict(exported), weights(learner), atol=0, rtol=0)


def test_o18_versions_never_fall(trained):
  learner, _, _ = trained
  learner.publish(10**6)
  with pytest.raises(ValueError, match="never fall"):
    learner.publish(3)


def test_a12_samples_are_not_changed(trained):
  learner, samples, _ = trained
  before = copy.deepcopy(samples)
  learner.train(samples)
  for old, new in zip(before, samples, strict=True):
    for a, b in zip(old.responses, new.responses, strict=True):
      assert a.reward == b.reward
      np.testing.assert_array_equal(a.log_probs, b.log_probs)


def test_a13_a_batch_with_nothing_valid_changes_nothing(trained):
  learner, _, _ = trained
  before = weights(learner)
  sample = make_sample(0, [1], [[2, 3], [4, 5]], [0.0, 1.0], mask=[False] * 2)
  result = learner.train([sample])
  assert result.num_tokens == 0
  assert all(np.isfinite(v) for v in result.metrics.values())
  assert_weights(before, weights(learner), atol=0, rtol=0)


def test_on_policy_log_probs_give_ratio_one(trained):
  learner, samples, _ = trained
  pairs = [
    (s.prompt.token_ids, r.token_ids) for s in samples for r in s.responses
  ]
  found = iter(learner.log_probs(pairs))
  fresh = [
    dataclasses.replace(
      s,
      responses=tuple(
        dataclasses.replace(r, log_probs=next(found)) for r in s.responses
      ),
    )
    for s in samples
  ]
  metrics = learner.train(fresh).metrics
  assert metrics["training/rollout_log_prob_diff_max"] < 1e-4
  assert abs(metrics["actor/ppo_kl"]) < 1e-5
  assert metrics["actor/pg_clipfrac"] == 0


@pytest.mark.parametrize(
  ("sample", "message"),
  [
    (make_sample(5, [1], [[1], [2]], [None, 1.0]), "sample 5 is not graded"),
    (make_sample(5, [1], [[1]], [1.0]), "at least 2"),
    (make_sample(5, [1], [[1] * 40, [2]], [0.0, 1.0]), "41 tokens"),
  ],
)
def test_samples_that_cannot_be_trained_on_are_errors(trained, sample, message):
  with pytest.raises(ValueError, match=message):
    trained[0].train([sample])
  with pytest.raises(ValueError, match="at least one sample"):
    trained[0].train([])


def test_a_checkpoint_continues_bit_for_bit(model_dir, tmp_path):
  learner = make_learner(model_dir, tmp_path)
  learner.train(random_samples(1))
  learner.publish(4)
  path = learner.save(1, {"cursor": [3, 1], "ledger": {"x": 2}})
  learner.train(random_samples(2))
  expected = weights(learner)
  learner.stop()
  other = make_learner(model_dir, tmp_path)
  assert other.restore(path) == {"cursor": [3, 1], "ledger": {"x": 2}}
  with pytest.raises(ValueError, match="never fall"):
    other.publish(3)
  result = other.train(random_samples(2))
  assert result.step == 2
  assert result.compilations == 3
  assert_weights(expected, weights(other), atol=0, rtol=0)


def test_a6_the_update_does_not_depend_on_the_micro_batches(
  model_dir, tmp_path
):
  samples = random_samples(3)
  found = []
  for tokens in (32, 4096):
    learner = make_learner(
      model_dir, tmp_path, max_tokens_per_micro_batch=tokens, lr=1e-3
    )
    metrics = learner.train(samples).metrics
    found.append((weights(learner), metrics))
  (a, first), (b, second) = found
  # Adam's first step is close to lr * sign(gradient): compare by the rate.
  assert_weights(a, b, atol=2e-4)
  assert first == pytest.approx(second, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
  "change",
  [
    {"lr": 2e-2},
    {"lr_warmup_steps": 5},
    {"max_grad_norm": 1e-9},
    {"weight_decay": 0.1},
    {"temperature": 0.7},
    {"clip_ratio_low": 0.05},
    {"clip_ratio_high": 0.05},
    {"clip_ratio_c": 1.3},
    {"divide_by_std": False},
    {"overlong_buffer_len": 20},
    {"mini_batch_samples": 2},
  ],
  ids=lambda change: next(iter(change)),
)
def test_a16_every_flag_changes_the_update(model_dir, tmp_path, base, change):
  learner = make_learner(model_dir, tmp_path, **change)
  found = flag_update(learner)
  difference = max(np.abs(found[n] - base[n]).max() for n in found)
  assert difference > 1e-6


def flag_update(learner):
  """Weights after one update in which every clip binds somewhere."""
  samples = random_samples(4)
  rng = np.random.default_rng(0)
  samples = [
    dataclasses.replace(
      s,
      responses=tuple(
        dataclasses.replace(
          r,
          # Groups of unequal spread: Adam does not see a common factor.
          reward=(s.sample_id + 1) * (r.reward or 0.0),
          log_probs=rng.normal(-3.7, 0.5, len(r.token_ids)).astype("f4"),
        )
        for r in s.responses
      ),
    )
    for s in samples
  ]
  learner.train(samples)
  return weights(learner)


@pytest.fixture(scope="module")
def base(model_dir, tmp_path_factory):
  return flag_update(make_learner(model_dir, tmp_path_factory.mktemp("base")))


def test_a_gradient_that_is_no_number_ends_the_run(model_dir, tmp_path):
  learner = make_learner(model_dir, tmp_path)
  sample = make_sample(
    0, [1], [[2, 3], [4, 5]], [0.0, 1.0], log_prob=float("nan")
  )
  with pytest.raises(FloatingPointError, match="micro-step 1"):
    learner.train([sample])


def test_a_model_that_is_too_short_is_refused(model_dir, tmp_path):
  with pytest.raises(ValueError, match="2048 tokens"):
    make_learner(model_dir, tmp_path, max_response_length=4000)


def test_rewarded_tokens_become_likelier(model_dir, tmp_path):
  learner = make_learner(model_dir, tmp_path)
  prompt, good, bad = [1, 2], [7, 7, 7], [9, 9, 9]
  pair = [(np.array(prompt), np.array(good))]
  before = learner.log_probs(pair)[0].sum()
  for _ in range(10):
    scores = learner.log_probs([(prompt, good), (prompt, bad)])
    sample = make_sample(0, prompt, [good, bad], [1.0, 0.0])
    sample = dataclasses.replace(
      sample,
      responses=tuple(
        dataclasses.replace(r, log_probs=s)
        for r, s in zip(sample.responses, scores, strict=True)
      ),
    )
    learner.train([sample])
  assert learner.log_probs(pair)[0].sum() > before + 3
