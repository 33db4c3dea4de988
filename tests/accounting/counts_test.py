import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.accounting import (
  DELTAS,
  ConservationError,
  Counts,
  Event,
  apply,
  check_conservation,
  imbalance,
)


def _fold(events):
  """Applies those events that are possible, one sample each."""
  counts = Counts()
  for event in events:
    after = apply(counts, event)
    if all(c >= 0 for c in after):
      counts = after
      yield event, counts


def test_every_event_conserves_samples():
  assert set(DELTAS) | {Event.BEGIN_CYCLE} == set(Event)
  for event in Event:
    assert imbalance(apply(Counts(), event, 3)) == 0, event


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(list(Event)), max_size=80))
def test_o2_conservation_and_derived_counts_hold_at_every_event(events):
  admitted = finished = consumed = 0
  for event, counts in _fold(events):
    check_conservation(counts)
    # Told event by event, as the counts that were not kept would be.
    admitted += event == Event.START
    admitted -= event in (
      Event.REQUEUE,
      Event.DROP_IN_FLIGHT,
      Event.DROP_GRADING,
      Event.DROP_QUEUED,
      Event.DROP_TRAINING,
    )
    consumed += (event == Event.TAKE) - (event == Event.DROP_TRAINING)
    finished += event == Event.QUEUE
    if event == Event.BEGIN_CYCLE:
      consumed = counts.training
      admitted = (
        counts.in_flight + counts.grading + counts.queued + counts.training
      )
    assert counts.admitted_in_cycle == admitted
    assert counts.consumed_in_cycle == consumed
    assert counts.finished == finished
    # Surplus is the backlog, and what the trainer holds.
    assert counts.surplus == counts.queued + counts.training


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(list(Event)), max_size=40))
def test_int32_arrays_count_as_python_ints_do(events):
  traced = Counts(*[jnp.int32(0)] * len(Counts._fields))
  for event, counts in _fold(events):
    traced = apply(traced, event, jnp.int32(1))
    assert [int(c) for c in traced] == list(counts)
    assert {c.dtype for c in traced} == {jnp.dtype("int32")}


def test_rules_can_be_traced_and_batched():
  def two_samples(n):
    counts = apply(Counts(*[jnp.int32(0)] * 10), Event.OFFER, n)
    return apply(counts, Event.START, n)

  counts = jax.jit(jax.vmap(two_samples))(jnp.arange(3, dtype=jnp.int32))
  np.testing.assert_array_equal(counts.in_flight, [0, 1, 2])
  np.testing.assert_array_equal(counts.pending, [0, 0, 0])
  np.testing.assert_array_equal(imbalance(counts), [0, 0, 0])


@pytest.mark.parametrize(
  "counts",
  [
    Counts(offered=3, pending=2),
    Counts(offered=1, trained=1, training=1),
    Counts(offered=0, pending=1, in_flight=-1),
  ],
)
def test_broken_conservation_is_told_with_all_counts(counts):
  with pytest.raises(ConservationError, match="offered=.*trained="):
    check_conservation(counts)
