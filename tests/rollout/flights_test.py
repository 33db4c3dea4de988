import asyncio

import pytest

from hybridrl.rollout.balancer import Lease
from hybridrl.rollout.flights import Flight, Flights
from hybridrl.testing.virtual_loop import run_virtual


def _flight(i, replica="a", *, prefix=10, started_s=0.0, budget=100):
  return Flight(
    request_id=f"{i}/0",
    key=str(i),
    lease=Lease(replica, 0, i),
    prefix_tokens=prefix,
    max_new_tokens=budget,
    started_s=started_s,
  )


def test_usage_sums_time_over_attempts():
  flights = Flights()
  first, second = _flight(0, started_s=1.0), _flight(1, started_s=3.0)
  flights.begin(first)
  flights.begin(second)
  flights.end(first, 4.0, num_tokens=6, finished=True)
  usage = flights.usage("a", 5.0)
  assert (usage.num_in_flight, usage.finished_responses) == (1, 1)
  assert usage.busy_s == pytest.approx(4.0)  # 1 to 5
  assert usage.request_s == pytest.approx(3.0 + 2.0)
  flights.end(second, 6.0, num_tokens=2, finished=False)
  usage = flights.usage("a", 100.0)
  assert usage.busy_s == pytest.approx(5.0)
  assert usage.request_s == pytest.approx(3.0 + 3.0)
  assert usage.generated_tokens == 8
  assert usage.finished_responses == 1
  assert len(flights) == 0


def test_usage_of_an_unknown_replica_is_nothing():
  usage = Flights().usage("a", 7.0)
  assert (usage.num_in_flight, usage.busy_s, usage.request_s) == (0, 0.0, 0.0)


def test_movable_estimates_what_was_sampled():
  flights = Flights()
  done = _flight(0)
  flights.begin(done)
  flights.end(done, 10.0, num_tokens=20, finished=True)  # 0.5 s a token
  flights.begin(_flight(1, started_s=10.0))
  flights.begin(_flight(2, started_s=14.0))
  flights.begin(_flight(3, started_s=0.0, budget=3))
  costs = {m.request_id: m.prefix_tokens for m in flights.movable(15.0)}
  assert costs == pytest.approx({"1/0": 20.0, "2/0": 12.0, "3/0": 13.0})


def test_movable_before_any_speed_is_known_orders_by_prefix_then_age():
  flights = Flights()
  flights.begin(_flight(0, started_s=0.0))
  flights.begin(_flight(1, started_s=5.0))
  flights.begin(_flight(2, started_s=0.0, prefix=9))
  order = sorted(flights.movable(6.0), key=lambda m: m.prefix_tokens)
  assert [m.request_id for m in order] == ["2/0", "1/0", "0/0"]


def test_wait_idle_and_iteration():
  async def main():
    flights = Flights()
    await flights.wait_idle("a")
    flight, other = _flight(0), _flight(1, "b")
    flights.begin(flight)
    flights.begin(other)
    assert set(flights) == {flight, other}
    assert flights.on("b") == (other,)
    asyncio.get_running_loop().call_later(
      3, lambda: flights.end(flight, 3.0, num_tokens=0, finished=False)
    )
    await flights.wait_idle("a")
    assert asyncio.get_running_loop().time() == pytest.approx(3)

  run_virtual(main())
