import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrl.models import bundle
from hybridrl.rollout import vllm_probes


def canary(values):
  return bundle.Canary(
    token_ids=np.arange(len(values) + 1, dtype=np.int32),
    log_probs=np.asarray(values, np.float32),
  )


@pytest.mark.parametrize(
  "found, message",
  [
    ([-1.0, -2.0, -3.0], ""),
    ([-1.0, -2.0005, -3.0], ""),
    ([-1.0, -2.01, -3.0], "version 5: log-prob 1 is -2.01"),
    ([-1.0, np.nan, -3.0], "log-prob 1 is nan"),
    ([-1.0, -2.0, -np.inf], "log-prob 2 is -inf"),
    ([-1.0, -2.0], "(2,) log-probs"),
  ],
)
def test_canary(found, message):
  wrong = vllm_probes.canary_mismatch(
    np.asarray(found, np.float32), canary([-1.0, -2.0, -3.0]), 5, 1e-3
  )
  assert message in wrong and bool(message) == bool(wrong)


def log_softmax(logits, temperature=1.0):
  z = np.asarray(logits, np.float64) / temperature
  return (z - z.max() - np.log(np.exp(z - z.max()).sum())).astype(np.float32)


def test_l2_table():
  """Logits [2, 0]: -.12693 at temperature 1, -.01815 at 0.5."""
  at_one, at_half = log_softmax([2, 0]), log_softmax([2, 0], 0.5)
  np.testing.assert_allclose(
    [at_one[0], at_half[0]], [-0.12693, -0.01815], atol=1e-5
  )
  assert not vllm_probes.temperature_mismatch(at_one, at_half, 0.5, 1e-3)
  raw = vllm_probes.temperature_mismatch(at_one, at_one, 0.5, 1e-3)
  assert "temperature 0.5 differ" in raw


@given(
  st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=50),
  st.sampled_from([0.25, 0.5, 0.9, 2.0]),
)
def test_probe_accepts_scaled_log_probs_and_only_those(logits, temperature):
  at_one, scaled = log_softmax(logits), log_softmax(logits, temperature)
  check = vllm_probes.temperature_mismatch
  assert not check(at_one, scaled, temperature, 1e-3)
  if np.abs(at_one - scaled).max() > 0.2:
    assert check(at_one, at_one, temperature, 1e-3)


def test_probe_refuses_nan_and_another_size():
  at_one = log_softmax([1.0, 2.0])
  broken = np.asarray([np.nan, -1.0], np.float32)
  assert vllm_probes.temperature_mismatch(at_one, broken, 0.5, 1e-3)
  assert vllm_probes.temperature_mismatch(at_one, at_one[:1], 0.5, 1e-3)
