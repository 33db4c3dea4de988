import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.algorithms import soft_overlong_penalty


@pytest.mark.parametrize("use_jit", [False, True])
def test_a1_the_slope_of_dapo(use_jit):
  function = soft_overlong_penalty
  if use_jit:
    function = jax.jit(function, static_argnums=(1, 2))
  lengths = np.array([1, 16384, 16385, 18432, 20480, 20481, 90000])
  found = function(lengths, 20480, 4096)
  expected = [0, 0, -1 / 4096, -0.5, -1, -1, -1]
  np.testing.assert_allclose(found, expected, atol=1e-7)


def test_a1_a_buffer_of_zero_is_off():
  found = soft_overlong_penalty(np.array([1, 100, 10_000]), 100, 0)
  np.testing.assert_array_equal(found, np.zeros(3))


@pytest.mark.parametrize("buffer", [-1, 101])
def test_a1_an_impossible_buffer_is_refused(buffer):
  with pytest.raises(ValueError, match=str(buffer)):
    soft_overlong_penalty(np.array([1]), 100, buffer)


@given(st.integers(1, 1000), st.data())
@settings(deadline=None, max_examples=50)
def test_the_penalty_is_bounded_and_never_rises_with_length(limit, data):
  buffer = data.draw(st.integers(0, limit))
  found = np.asarray(soft_overlong_penalty(np.arange(1, 1200), limit, buffer))
  assert found.min() >= -1
  assert np.all(found[: limit - buffer] == 0)
  assert np.all(np.diff(found) <= 0)
