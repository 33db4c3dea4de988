"""Arithmetic that reads the same for Python numbers, NumPy and JAX arrays.

The live run folds its metrics with Python floats (exact to float64), the
simulator the same formulas with traced float32 arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Number = Any  # float | int | np.ndarray | jax.Array


def _namespace(*values: Number):
  """jax.numpy if any value is a JAX array or tracer, else numpy."""
  return jnp if any(isinstance(v, jax.Array) for v in values) else np


def is_python_number(value: Number) -> bool:
  """True for a plain int or float, which can be validated at once."""
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def minimum(a: Number, b: Number) -> Number:
  """The smaller of the two, elementwise."""
  if is_python_number(a) and is_python_number(b):
    return min(a, b)
  return _namespace(a, b).minimum(a, b)


def clip01(value: Number) -> Number:
  """The value, moved into [0, 1]."""
  if is_python_number(value):
    return min(max(value, 0.0), 1.0)
  return _namespace(value).clip(value, 0.0, 1.0)


def ratio_or_zero(numerator: Number, denominator: Number) -> Number:
  """numerator / denominator where denominator > 0, and 0.0 elsewhere."""
  if is_python_number(numerator) and is_python_number(denominator):
    return numerator / denominator if denominator > 0 else 0.0
  xp = _namespace(numerator, denominator)
  positive = xp.asarray(denominator) > 0
  return xp.where(positive, numerator / xp.where(positive, denominator, 1), 0.0)
