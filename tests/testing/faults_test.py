import asyncio

import pytest

from hybridrl.testing.faults import Delay, Die, FaultPlan, Hang, Raise, suffer
from hybridrl.testing.virtual_loop import run_virtual


def test_faults_strike_at_the_planned_visit():
  plan = FaultPlan(["a", "b"])
  plan.add("a", Hang(), nth=2)
  assert plan.pending == ("a",)
  assert [plan.visit("a") for _ in range(3)] == [None, Hang(), None]
  assert plan.visit("b") is None
  assert plan.pending == ()
  plan.add("a", Die("x"))  # from now on: the fourth visit
  assert plan.visit("a") == Die("x")


def test_a_standing_fault_gives_way_to_a_planned_one():
  plan = FaultPlan(["a"])
  plan.add("a", Delay(1.0), nth=0)
  plan.add("a", Hang(), nth=2)
  assert [plan.visit("a") for _ in range(3)] == [Delay(1.0), Hang(), Delay(1.0)]
  plan.clear()
  assert plan.visit("a") is None


def test_unknown_points_are_refused():
  plan = FaultPlan(["a"])
  with pytest.raises(ValueError, match="no point 'c'"):
    plan.add("c", Hang())
  with pytest.raises(ValueError, match="no point 'c'"):
    plan.visit("c")


def test_acting_out():
  async def main():
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    await suffer(Delay(3.0), ended)
    assert loop.time() == pytest.approx(3)
    with pytest.raises(KeyError, match="why"):
      await suffer(Raise(KeyError("why")), ended)
    loop.call_later(4, ended.set)
    await suffer(Hang(), ended)
    assert loop.time() == pytest.approx(7)
    await suffer(None, ended)

  run_virtual(main())
