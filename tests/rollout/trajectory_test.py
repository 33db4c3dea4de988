import numpy as np
import pytest

from hybridrl.rollout.replica import GenerationResult, SamplingConfig
from hybridrl.rollout.trajectory import MAX_BACKOFF_S, Trajectory


def _trajectory(budget=10):
  return Trajectory(
    np.array([1, 2], np.int64),
    budget,
    SamplingConfig(stop_token_ids=(7,)),
    "k",
  )


def _part(ids, reason, version=0):
  num = len(ids)
  return GenerationResult(
    token_ids=np.asarray(ids, np.int32),
    log_probs=-np.arange(num, dtype=np.float32),
    versions=np.full(num, version, np.int32),
    kv_versions=np.full(num, version, np.int32),
    finish_reason=reason,
  )


@pytest.mark.parametrize(
  ("parts", "expected"),
  [
    ([], None),
    ([([5, 6], "abort")], None),
    ([([], "abort")], None),
    ([([5, 7], "abort")], "stop"),
    ([([5] * 10, "abort")], "length"),
    ([([5] * 4, "abort"), ([5] * 6, "length")], "length"),
    ([([5] * 4, "abort"), ([7], "stop")], "stop"),
    ([([5] * 10, "length")], "length"),
  ],
)
def test_finish_reason(parts, expected):
  trajectory = _trajectory()
  for ids, reason in parts:
    trajectory.append(_part(ids, reason))
  assert trajectory.finish_reason() == expected


def test_result_joins_the_parts_in_the_declared_types():
  trajectory = _trajectory()
  trajectory.append(_part([3, 4], "abort", 1))
  trajectory.append(_part([], "abort", 2))
  trajectory.append(_part([5], "length", 2))
  assert trajectory.budget == 7
  assert trajectory.token_ids.tolist() == [1, 2, 3, 4, 5]
  assert trajectory.token_ids.dtype == np.int32
  result = trajectory.result("length")
  assert result.token_ids.tolist() == [3, 4, 5]
  assert result.log_probs.tolist() == [0, -1, 0]
  assert result.versions.tolist() == [1, 1, 2]
  assert result.kv_versions.dtype == np.int32
  assert result.log_probs.dtype == np.float32


def test_backoff_doubles_within_bounds():
  trajectory = _trajectory()
  waits = []
  for fruitless in range(40):
    trajectory.fruitless = fruitless
    waits.append(trajectory.backoff_s())
  assert waits[:5] == pytest.approx([0, 0, 0.01, 0.02, 0.04])
  assert waits == sorted(waits)
  assert waits[-1] == MAX_BACKOFF_S
