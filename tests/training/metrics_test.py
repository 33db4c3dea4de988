import pytest

from hybridrl.algorithms import PolicySums
from hybridrl.training.metrics import step_metrics
from tests.training.samples import make_sample

SAMPLE = make_sample(0, [1], [[1, 2, 3], [1]], [0.0, 1.0])


def test_means_are_sums_over_all_tokens():
  sums = PolicySums(
    tokens=8.0,
    loss=-4.0,
    clipped=2.0,
    dual_clipped=1.0,
    kl=0.8,
    abs_log_prob_diff=1.6,
    max_abs_log_prob_diff=0.9,
    entropy=16.0,
  )
  assert step_metrics(sums, [1.0, 3.0], [SAMPLE]) == pytest.approx(
    {
      "actor/pg_loss": -0.5,
      "actor/pg_clipfrac": 0.25,
      "actor/pg_clipfrac_lower": 0.125,
      "actor/ppo_kl": 0.1,
      "actor/entropy": 2.0,
      "actor/grad_norm": 2.0,
      "training/rollout_log_prob_diff_mean": 0.2,
      "training/rollout_log_prob_diff_max": 0.9,
      "response_length/mean": 2.0,
      "response_length/max": 3.0,
      "response_length/min": 1.0,
    }
  )


def test_a13_no_valid_token_divides_nothing():
  found = step_metrics(PolicySums(*[0.0] * 8), [0.0], [SAMPLE])
  assert found["actor/pg_loss"] == found["actor/entropy"] == 0
