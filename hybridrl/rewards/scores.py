"""What counts as a reward."""

import math
import numbers
from typing import Any


def to_reward(value: Any) -> float:
  """A bool, int, float or numpy / JAX scalar as a finite float.

  Raises:
    TypeError: the value is no number.
    ValueError: it is not finite.
  """
  if not isinstance(value, numbers.Real) and hasattr(value, "item"):
    if getattr(value, "size", 1) != 1:
      raise TypeError(f"a reward must be one number, not {value!r}")
    value = value.item()
  if not isinstance(value, numbers.Real):
    raise TypeError(f"a reward must be a number, not {value!r}")
  reward = float(value)
  if not math.isfinite(reward):
    raise ValueError(f"a reward must be finite, not {reward}")
  return reward
