import enum
import json
import math
import pathlib
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.reporting import json_codec
from tests.reporting.synthetic_run import snapshot


class _Pair(NamedTuple):
  a: int
  b: float


class _Colour(enum.StrEnum):
  RED = "red"


class _Number(enum.IntEnum):
  SEVEN = 7


def _round_trip(value):
  text = json_codec.dumps(value)
  assert "\n" not in text
  # Strict JSON: no bare Infinity or NaN.
  json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} in {text}"))
  return json_codec.loads(text)


_JSON = st.recursive(
  st.none()
  | st.booleans()
  | st.integers()
  | st.floats(allow_nan=False)
  | st.text(),
  lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
  ),
  max_leaves=12,
)


@settings(deadline=None)
@given(_JSON)
def test_every_value_comes_back(value):
  assert _round_trip(value) == value


def test_nan_comes_back():
  assert math.isnan(_round_trip({"a": [math.nan]})["a"][0])


@settings(deadline=None)
@given(st.floats(width=32))
def test_float32_comes_back_to_the_bit(value):
  single = np.float32(value)
  for scalar in (single, jnp.float32(single)):
    back = np.float32(_round_trip(scalar))
    assert np.isnan(back) if np.isnan(single) else back == single


@pytest.mark.parametrize(
  ("value", "right"),
  [
    (_Pair(1, math.inf), {"a": 1, "b": math.inf}),
    (_Colour.RED, "red"),
    (_Number.SEVEN, 7),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (jnp.asarray([1.5, jnp.inf]), [1.5, math.inf]),
    ((1, 2), [1, 2]),
    ({3: "x"}, {"3": "x"}),
    (snapshot(lent=()), None),
  ],
)
def test_structs_and_arrays(value, right):
  back = _round_trip(value)
  if right is None:  # a dataclass: its fields
    assert back["waiting_for"] == "trainer: 16 samples"
    assert back["lent"] == []
  else:
    assert back == right
    assert type(back) is type(right)


def test_what_json_cannot_hold_is_shown_as_text():
  assert _round_trip(pathlib.PurePosixPath("/a")) == {
    "$repr": "PurePosixPath('/a')"
  }
