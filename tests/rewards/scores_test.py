import numpy as np
import pytest

from hybridrl.rewards.scores import to_reward


@pytest.mark.parametrize(
  ("value", "reward"),
  [
    (True, 1.0),
    (False, 0.0),
    (3, 3.0),
    (-0.5, -0.5),
    (np.float32(0.25), 0.25),
    (np.int64(2), 2.0),
    (np.bool_(True), 1.0),
    (np.array(0.5), 0.5),
    (np.array([1.5]), 1.5),
  ],
)
def test_g17_scalars_of_any_kind_are_rewards(value, reward):
  result = to_reward(value)
  assert type(result) is float
  assert result == reward


@pytest.mark.parametrize("value", [None, "1", [1.0], np.array([1.0, 2.0]), {}])
def test_what_is_no_number_is_refused(value):
  with pytest.raises(TypeError, match="reward"):
    to_reward(value)


@pytest.mark.parametrize(
  "value", [float("nan"), float("inf"), np.float32("nan")]
)
def test_a_reward_is_finite(value):
  with pytest.raises(ValueError, match="finite"):
    to_reward(value)
