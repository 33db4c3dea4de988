import numpy as np
import pytest

from hybridrl.data import embedded
from hybridrl.data.tokenizer import load_tokenizer
from hybridrl.models.hf import load_hf
from hybridrl.rewards.answers import is_right
from hybridrl.training import warm_start as ws


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


def test_slips_follow_the_measured_accuracy():
  assert ws.next_slip_rate(0.0, 0.2, 0.45) == 0.0
  assert ws.next_slip_rate(0.1, 0.2, 0.45) == 0.05
  # From always right, the rate is that of the target.
  rate = ws.next_slip_rate(0.0, 1.0, 0.45)
  assert rate == pytest.approx(ws.slip_rate_for(0.45))
  assert 0.02 < ws.next_slip_rate(0.02, 0.6, 0.45) < rate


_QUICK = {
  "fact_loss": 9.0,
  "problem_loss": 9.0,
  "round_steps": 2,
  "num_measured": 4,
  "max_new_tokens": 8,
}


def test_a_short_run_writes_a_whole_model_folder(tmp_path):
  lines = []
  options = ws.WarmStartConfig(**_QUICK | {"problem_loss": 3.0, "tolerance": 1})
  report = ws.warm_start(
    tmp_path, 0, is_right=is_right, options=options, progress=lines.append
  )
  # ln(320) = 5.8 at the start: below 3 it has learnt something.
  assert report.fact_steps == ws.WINDOW
  assert ws.WINDOW < report.problem_steps < 200
  assert report.rounds == 1
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
    (
      {"fact_loss": 0.4, "max_steps": 3},
      "facts is .* after 3 steps, not below",
    ),
    ({"max_rounds": 2}, "sampled accuracy is 0.00 after 2 rounds"),
  ],
)
def test_a_failure_says_how_far_it_came(tmp_path, change, message):
  options = ws.WarmStartConfig(**_QUICK | change)
  with pytest.raises(ws.WarmStartFailed, match=message):
    ws.warm_start(
      tmp_path,
      0,
      is_right=is_right,
      options=options,
      progress=lambda line: None,
    )
  # A half-made folder is not taken for a model.
  assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_is_right_some_of_the_time(tmp_path, seed):
  report = ws.warm_start(tmp_path, seed, is_right=is_right)
  assert 0.3 <= report.accuracy <= 0.6
  assert 60 <= report.mean_response_tokens <= 90
