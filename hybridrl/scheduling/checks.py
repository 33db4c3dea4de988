"""Checks of policy parameters, for concrete values only.

A traced value (a parameter under vmap) passes: no Python branch reads it.
"""

from typing import Any

import numpy as np
from jax.core import Tracer


def is_traced(value: Any) -> bool:
  """Whether a JAX transformation is tracing this value."""
  return isinstance(value, Tracer)


def check_ratio(value: Any) -> None:
  """Refuses a deactivate ratio outside (0, 1].

  Raises:
    ValueError: names parameter, flag, value and range.
  """
  if is_traced(value):
    return
  array = np.asarray(value, np.float64)
  if not ((array > 0) & (array <= 1)).all():
    raise ValueError(
      f"deactivate_ratio (--dynamic_schedule_deactivate_ratio) is {value}; "
      "it must be in (0, 1]: a larger ratio would wait for more samples than "
      "a cycle consumes, a smaller one for fewer than none"
    )
