import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.rollout import routing
from hybridrl.rollout.routing import Movable

CHOICES = (
  # loads, last_chosen, sticky, expected
  ((0,), (0,), None, 0),
  ((3, 1, 2), (0, 0, 0), None, 1),
  ((1, 1, 1), (5, 3, 4), None, 1),
  ((1, 1), (2, 2), None, 0),
  ((2, 0), (0, 0), 0, 0),
  ((3, 0), (0, 0), 0, 1),
  ((0, 9), (0, 0), 1, 0),
)


@pytest.mark.parametrize(("loads", "last", "sticky", "expected"), CHOICES)
def test_choose(loads, last, sticky, expected):
  assert routing.choose(loads, last, sticky, slack=2) == expected


def test_choose_of_nothing_is_an_error():
  with pytest.raises(ValueError, match="no replica"):
    routing.choose([], [])


@given(st.data())
def test_choose_is_least_loaded_and_sticky_within_its_slack(data):
  loads = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
  size = len(loads)
  last = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
  sticky = data.draw(st.none() | st.integers(0, size - 1))
  slack = data.draw(st.integers(0, 4))
  chosen = routing.choose(loads, last, sticky, slack)
  assert loads[chosen] <= min(loads) + slack
  if sticky is not None and loads[sticky] <= min(loads) + slack:
    assert chosen == sticky
  else:
    assert loads[chosen] == min(loads)
    ties = [last[i] for i in range(size) if loads[i] == min(loads)]
    assert last[chosen] == min(ties)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=7), st.randoms())
def test_quotas_level_and_keep_the_sum(loads, random):
  order = random.sample(range(len(loads)), len(loads))
  result = routing.quotas(loads, order)
  assert sum(result) == sum(loads)
  assert max(result) - min(result) <= 1


def _level_after(requests, moves, names):
  loads = {name: 0 for name in names}
  for request in requests:
    if request.replica in loads and request not in moves:
      loads[request.replica] += 1
  for request in moves:
    if request.replica not in loads:
      return False
    target = min(loads, key=lambda name: loads[name])
    loads[target] += 1
  return max(loads.values()) - min(loads.values()) <= 1


def _brute_force(requests, names):
  """Size and cost of the cheapest of the smallest levelling sets."""
  for size in range(len(requests) + 1):
    costs = [
      sum(r.prefix_tokens for r in moves)
      for moves in itertools.combinations(requests, size)
      if _level_after(requests, moves, names)
    ]
    if costs:
      return size, min(costs)
  raise AssertionError("no set of moves levels the loads")


@settings(max_examples=200, deadline=None)
@given(
  st.lists(st.tuples(st.sampled_from("abcx"), st.integers(1, 9)), max_size=9),
  st.integers(1, 3),
)
def test_plan_rebalance_is_smallest_then_cheapest(placed, num_routable):
  names = "abc"[:num_routable]
  requests = [
    Movable(str(i), name, tokens) for i, (name, tokens) in enumerate(placed)
  ]
  moves = routing.plan_rebalance(requests, names)
  assert _level_after(requests, moves, names)
  on_routable = [r for r in requests if r.replica in names]
  size, cost = _brute_force(on_routable, names)
  assert len(moves) == size
  assert sum(r.prefix_tokens for r in moves) == cost
  prefixes = [r.prefix_tokens for r in moves]
  assert prefixes == sorted(prefixes)


@pytest.mark.parametrize("swapped", [False, True])
def test_plan_rebalance_lets_the_dearest_be_the_odd_one_out(swapped):
  """Two replicas are over the level, one of them may keep a request more."""
  dear, cheap = ("b", "a") if swapped else ("a", "b")
  requests = [
    Movable("0", dear, 9),
    Movable("1", dear, 8),
    Movable("2", cheap, 9),
    Movable("3", cheap, 1),
  ]
  moves = routing.plan_rebalance(requests, ["a", "b", "c"])
  assert [move.request_id for move in moves] == ["3"]


def test_plan_rebalance_moves_half_to_one_new_replica():
  requests = [Movable(str(i), "old", 100 - i) for i in range(10)]
  moves = routing.plan_rebalance(requests, ["old", "new"])
  assert [move.request_id for move in moves] == ["9", "8", "7", "6", "5"]


def test_plan_rebalance_without_replicas_or_requests_moves_nothing():
  assert routing.plan_rebalance([Movable("0", "a", 1)], []) == []
  assert routing.plan_rebalance([], ["a", "b"]) == []
