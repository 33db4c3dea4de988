import decimal
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.accounting import (
  Counts,
  Event,
  admissible,
  apply,
  arrivable,
  capacity,
  max_required_samples,
)


@pytest.mark.parametrize(
  "samples, text, expected",
  [
    (100, "0.03", 103),
    (100, "0.15", 115),
    (10, "0.3", 13),
    (64, "0.1", 70),
    (128, "0", 128),
    (128, "0.5", 192),
    (1, "0.999", 1),
    (3, "1e-1", 3),
    (16, "2", 48),
  ],
)
def test_s12_decimal_staleness_costs_no_sample(samples, text, expected):
  assert max_required_samples(samples, text) == expected


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 6))
def test_s12_equals_integer_arithmetic(samples, digits, places):
  text = format(decimal.Decimal(digits).scaleb(-places), "f")
  expected = samples * (10**places + digits) // 10**places
  assert max_required_samples(samples, text) == expected


@pytest.mark.parametrize("text", ["-0.1", "nan", "inf", "", "a half", "1/2"])
def test_a_bad_threshold_is_refused_with_flag_and_value(text):
  with pytest.raises(ValueError, match="--staleness_threshold=") as error:
    max_required_samples(64, text)
  assert text in str(error.value)
  assert "at least 0" in str(error.value)


@pytest.mark.parametrize(
  "replicas, concurrent, limit, expected",
  [(0, 16, 70, 0), (1, 16, 70, 16), (4, 16, 70, 64), (5, 16, 70, 70)],
)
def test_capacity(replicas, concurrent, limit, expected):
  assert capacity(replicas, concurrent, limit) == expected
  traced = jax.jit(capacity)(replicas, concurrent, limit)
  assert int(traced) == expected


_counts = st.builds(
  Counts, *[st.integers(0, 1000) for _ in range(len(Counts._fields))]
)


@settings(deadline=None)
@given(_counts, st.integers(0, 5000), st.integers(0, 100))
def test_arrivable_by_its_definition(counts, limit, not_offered):
  left = max(
    0,
    limit
    - counts.in_flight
    - counts.grading
    - counts.queued
    - counts.consumed_in_cycle,
  )
  assert admissible(counts, limit) == left
  to_come = counts.pending + not_offered
  assert arrivable(counts, limit, not_offered) == (
    counts.queued + counts.in_flight + counts.grading + min(to_come, left)
  )
  arrays = Counts(*(jnp.int32(c) for c in counts))
  np.testing.assert_array_equal(
    arrivable(arrays, limit, not_offered),
    (arrivable(counts, limit, not_offered)),
  )


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 100))
def test_a_whole_cycle_can_always_arrive_while_prompts_last(
  samples, per_cent, carried
):
  """Progress: whatever is carried over, S samples of a cycle can arrive."""
  limit = max_required_samples(samples, f"{per_cent / 100:.2f}")
  carried = min(carried, limit)
  counts = apply(Counts(), Event.OFFER, carried)
  counts = apply(counts, Event.START, carried)
  counts = apply(counts, Event.BEGIN_CYCLE)
  assert arrivable(counts, limit, math.inf) >= samples
