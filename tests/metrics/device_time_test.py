import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.metrics import (
  PRIORITY,
  DeviceState,
  Interval,
  Span,
  device_lanes,
  device_seconds,
  device_timelines,
  idle_ratio,
  idle_time_s,
  lane_timeline,
)

_T, _W, _S, _R, _I = PRIORITY


def test_x9_two_pauses_are_summed():
  assert idle_time_s([(1.0, 2.0), (4.0, 7.0)], 0.0, 10.0) == 4.0
  assert idle_ratio([(1.0, 2.0), (4.0, 7.0)], 0.0, 10.0) == 0.4


@pytest.mark.parametrize(
  ("pauses", "seconds"),
  [
    ([], 0.0),
    ([(0.0, 10.0)], 10.0),
    ([(-5.0, 1.0), (9.0, 20.0)], 2.0),  # reach beyond the window
    ([(2.0, 4.0), (3.0, 5.0)], 3.0),  # overlap counts once
    ([(2.0, 8.0), (3.0, 5.0)], 6.0),  # one inside another
    ([(4.0, 7.0), (1.0, 2.0)], 4.0),  # in any order
    ([(20.0, 30.0)], 0.0),
    ([(3.0, 3.0)], 0.0),
  ],
)
def test_x9_idle_time_of_any_pauses(pauses, seconds):
  assert idle_time_s(pauses, 0.0, 10.0) == seconds
  assert 0.0 <= idle_ratio(pauses, 0.0, 10.0) <= 1.0


@settings(deadline=None)
@given(
  st.lists(st.tuples(st.floats(-10, 20), st.floats(0, 20)), max_size=10),
  st.floats(-5, 15),
  st.floats(-5, 15),
)
def test_x9_idle_ratio_stays_in_the_unit_interval(pauses, start_s, end_s):
  spans = [(start, start + length) for start, length in pauses]
  assert 0.0 <= idle_ratio(spans, start_s, end_s) <= 1.0


def test_an_interval_that_ends_before_it_starts_is_refused():
  with pytest.raises(ValueError, match="ends at 1.0 s, before 2.0 s"):
    idle_time_s([(2.0, 1.0)], 0.0, 10.0)


def test_the_states_of_a_lane_by_hand():
  spans = [
    Span("h", _R, 1.0, 6.0),
    Span("l", _T, 5.0, 8.0),  # training wins over serving
    Span("l", _W, 8.0, 9.0),
  ]
  assert lane_timeline(spans, 0.0, 10.0) == [
    Interval(_I, 0.0, 1.0),
    Interval(_R, 1.0, 5.0),
    Interval(_T, 5.0, 8.0),
    Interval(_W, 8.0, 9.0),
    Interval(_I, 9.0, 10.0),
  ]


def test_neighbours_of_one_state_become_one_interval():
  spans = [Span("l", _T, 0.0, 2.0), Span("l", _T, 2.0, 4.0)]
  assert lane_timeline(spans, 0.0, 4.0) == [Interval(_T, 0.0, 4.0)]
  assert lane_timeline(spans, 4.0, 4.0) == []


def test_device_seconds_of_a_fleet_by_hand():
  lanes = device_lanes(
    standalone=["s0"], hybrid=["h0"], trainer_devices=2, devices_per_replica=1
  )
  assert lanes == {"learner": (0, 1), "h0": (0,), "s0": (2,)}
  spans = [
    Span("h0", _S, 0.0, 1.0),
    Span("h0", _R, 1.0, 3.0),
    Span("learner", _T, 4.0, 8.0),
    Span("s0", _R, 0.0, 7.0),
    Span("s0", _W, 7.0, 8.0),
    Span("driver", _W, 0.0, 8.0),  # no device
  ]
  totals = device_seconds(device_timelines(spans, lanes, 0.0, 8.0))
  # Device 0: 1 switching, 2 rollout, 1 idle, 4 train. Device 1: 4 idle, 4
  # train. Device 2: 7 rollout, 1 sync.
  assert totals == {_T: 8.0, _W: 1.0, _S: 1.0, _R: 9.0, _I: 5.0}


def test_replicas_of_several_devices():
  lanes = device_lanes(
    standalone=["s0"],
    hybrid=["h0", "h1"],
    trainer_devices=4,
    devices_per_replica=2,
  )
  assert lanes["h1"] == (2, 3)
  assert lanes["s0"] == (4, 5)
  with pytest.raises(ValueError, match="2 hybrid replicas of 2 devices"):
    device_lanes(
      standalone=[],
      hybrid=["h0", "h1"],
      trainer_devices=3,
      devices_per_replica=2,
    )


_SPANS = st.lists(
  st.builds(
    lambda state, start, length: Span("l", state, start, start + length),
    st.sampled_from(list(DeviceState)),
    st.integers(-5, 40),
    st.integers(0, 20),
  ),
  max_size=12,
)


@settings(deadline=None)
@given(_SPANS, st.integers(0, 1000))
def test_timelines_cover_the_window_and_equal_brute_force(spans, seed):
  timeline = lane_timeline(spans, 0, 30)
  assert timeline[0].start_s == 0
  assert timeline[-1].end_s == 30
  for left, right in zip(timeline, timeline[1:], strict=False):
    assert left.end_s == right.start_s
    assert left.state is not right.state
  for second in range(30):
    states = {s.state for s in spans if s.start_s <= second < s.end_s}
    right = next((s for s in PRIORITY if s in states), _I)
    at = [i for i in timeline if i.start_s <= second < i.end_s]
    assert [i.state for i in at] == [right]
  shuffled = spans.copy()
  random.Random(seed).shuffle(shuffled)
  assert lane_timeline(shuffled, 0, 30) == timeline
  assert sum(device_seconds({0: timeline}).values()) == 30


@settings(deadline=None)
@given(_SPANS.filter(bool), st.integers(0, 20))
def test_splitting_a_span_changes_nothing(spans, cut):
  first = spans[0]
  at = min(first.start_s + cut, first.end_s)
  split = [first._replace(end_s=at), first._replace(start_s=at), *spans[1:]]
  assert lane_timeline(split, 0, 30) == lane_timeline(spans, 0, 30)
