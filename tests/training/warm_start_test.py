import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.data import embedded
from hybridrl.data.tokenizer import load_tokenizer
from hybridrl.models.hf import load_hf
from hybridrl.training import warm_start as ws


def _sequences(lengths):
  return [
    (np.full(2, i + 1, np.int32), np.full(n - 2, i + 1, np.int32))
    for i, n in enumerate(lengths)
  ]


@settings(deadline=None)
@given(st.lists(st.integers(4, 60), min_size=1, max_size=40), st.integers(1, 3))
def test_every_sequence_is_packed_once_and_whole(lengths, num_rows):
  pool, seen = _sequences(lengths), []
  rounds = 0
  while pool:
    oldest = pool[0][0][0]
    rows = ws.fill_rows(pool, num_rows, 64)
    assert rows.tokens.shape == (num_rows, 64)
    assert oldest in rows.tokens  # Nothing waits for ever.
    for tokens, segments, mask in zip(
      rows.tokens, rows.segments, rows.loss_mask, strict=True
    ):
      for segment in range(1, segments.max() + 1):
        ids = tokens[segments == segment]
        assert len(set(ids)) == 1
        assert len(ids) == lengths[ids[0] - 1]
        assert mask[segments == segment].sum() == len(ids) - 2
        seen.append(int(ids[0]))
    rounds += 1
    assert rounds <= len(lengths)
  assert sorted(seen) == list(range(1, len(lengths) + 1))


def test_rows_are_filled_well():
  rng = np.random.default_rng(0)
  pool, used = [], 0
  for _ in range(100):
    while len(pool) < 48:
      pool += _sequences(
        np.clip(rng.lognormal(4.3, 0.6, 8), 20, 260).astype(int)
      )
    used += (ws.fill_rows(pool, 1, 272).segments > 0).sum()
  assert used / (100 * 272) > 0.93


@pytest.mark.parametrize("accuracy", [0.3, 0.45, 0.6])
def test_slip_rates_give_the_accuracy(accuracy):
  rate = ws.slip_rate_for(accuracy)
  rng = np.random.default_rng(1)
  right = 0
  for _ in range(1500):
    problem = embedded.sample_problem(rng, "train")
    text = embedded.worked_answer(problem, rng, rate)
    right += text.endswith(f"Answer: {problem.answer}")
  # Slips that cancel each other make a few more right.
  assert accuracy - 0.05 < right / 1500 < accuracy + 0.08


def test_a_slip_rate_moves_toward_the_target():
  assert ws._adjusted(0.1, 0.7, 0.45) > 0.1
  assert ws._adjusted(0.1, 0.2, 0.45) < 0.1
  assert ws._adjusted(0.1, 0.45, 0.45) == pytest.approx(0.1)
  for accuracy in (0.0, 1.0):
    assert 0.03 < ws._adjusted(0.1, accuracy, 0.45) < 0.25


def test_a_short_run_writes_a_whole_model_folder(tmp_path):
  lines = []
  options = ws.WarmStartConfig(
    clean_loss=3.0,
    careless_steps=5,
    tolerance=1.0,
    num_measured=4,
    max_new_tokens=8,
  )
  report = ws.warm_start(tmp_path, 0, options=options, progress=lines.append)
  # ln(320) = 5.8 at the start: below 3 it has learnt something.
  assert ws.WINDOW <= report.clean_steps < 200
  assert report.careless_rounds == 1
  assert report.mean_response_tokens <= 8
  assert any("loss" in line for line in lines)
  config, params = load_hf(tmp_path)
  tokenizer = load_tokenizer(tmp_path)
  assert config == ws.model_config(tokenizer)
  assert 0.7e6 < config.num_parameters < 1e6
  assert params["embed"].shape == (tokenizer.vocab_size, 128)
  assert np.isfinite(np.asarray(params["embed"])).all()


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"max_clean_steps": 3}, "after 3 steps, not below 0.03"),
    (
      {"clean_loss": 9.0, "careless_steps": 1, "max_careless_rounds": 1},
      "sampled accuracy is 0.00 after 1 rounds",
    ),
  ],
)
def test_a_failure_says_how_far_it_came(tmp_path, change, message):
  options = ws.WarmStartConfig(num_measured=4, max_new_tokens=8, **change)
  with pytest.raises(ws.WarmStartFailed, match=message):
    ws.warm_start(tmp_path, 0, options=options, progress=lambda line: None)
  # A half-made folder is not taken for a model.
  assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_is_right_some_of_the_time(tmp_path, seed):
  report = ws.warm_start(tmp_path, seed)
  assert 0.3 <= report.accuracy <= 0.6
  assert 60 <= report.mean_response_tokens <= 90
