"""Values of a run as strict JSON and back.

Strict JSON has no infinities, and a decision log must replay exactly, so a
float that JSON cannot hold becomes {"$float": "inf"}. float32 values widen to
the double of equal value, which narrows back to the same bits.
"""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_FLOAT_KEY = "$float"
_UNKNOWN_KEY = "$repr"


def to_jsonable(value: Any) -> Any:
  """Plain JSON types for numbers, arrays, structs and containers.

  A NamedTuple or dataclass becomes a mapping of its fields, an array nested
  lists. A value of another type becomes {"$repr": text}: a log goes on, and
  shows what it could not hold.
  """
  if value is None or isinstance(value, (bool, str)):
    return str(value) if isinstance(value, enum.Enum) else value
  if isinstance(value, enum.Enum):
    return to_jsonable(value.value)
  if isinstance(value, int):
    return int(value)
  if isinstance(value, float):
    return float(value) if math.isfinite(value) else {_FLOAT_KEY: str(value)}
  if isinstance(value, Mapping):
    return {str(k): to_jsonable(v) for k, v in value.items()}
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    names = [field.name for field in dataclasses.fields(value)]
    return {name: to_jsonable(getattr(value, name)) for name in names}
  if isinstance(value, tuple) and hasattr(value, "_fields"):
    return {k: to_jsonable(v) for k, v in value._asdict().items()}  # pyright: ignore
  if isinstance(value, (list, tuple, set, frozenset)):
    return [to_jsonable(v) for v in value]
  if hasattr(value, "__array__"):  # NumPy and JAX arrays and scalars
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
      return to_jsonable(array.tolist())
  return {_UNKNOWN_KEY: repr(value)}


def from_jsonable(value: Any) -> Any:
  """Undoes the encoding of floats; mappings, lists and scalars stay."""
  if isinstance(value, dict):
    if set(value) == {_FLOAT_KEY}:
      return float(value[_FLOAT_KEY])
    return {k: from_jsonable(v) for k, v in value.items()}
  if isinstance(value, list):
    return [from_jsonable(v) for v in value]
  return value


def dumps(value: Any) -> str:
  """One line of strict JSON."""
  return json.dumps(
    to_jsonable(value),
    allow_nan=False,
    ensure_ascii=False,
    separators=(",", ":"),
  )


def loads(text: str) -> Any:
  """The value of one line written by `dumps`."""
  return from_jsonable(json.loads(text))
