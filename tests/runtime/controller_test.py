"""Tests of controller.py: orders, partial lending, every failure."""

import asyncio

import pytest

from hybridrl.rollout.replica import ReplicaFailed, ReplicaState
from hybridrl.runtime.controller import FleetState
from hybridrl.testing.controlled_fleet import ControlledFleet, want
from hybridrl.testing.faults import Delay, Die, Hang, Raise
from hybridrl.testing.virtual_loop import run_virtual


def test_activation_and_reclaim_in_the_orders_of_the_design():
  async def main():
    fleet = await ControlledFleet(num_hybrid=1).start()
    hybrid = fleet.hybrid[0]
    order = []

    def record(name, function):
      def call(*args, **options):
        order.append(name)
        return function(*args, **options)

      return call

    fleet.balancer.add = record("register", fleet.balancer.add)
    fleet.balancer.remove = record("unroute", fleet.balancer.remove)
    fleet.client.rebalance = record("rebalance", fleet.client.rebalance)
    for name in ("wake_weights", "load_weights", "wake_kv_cache"):
      setattr(hybrid, name, record(name, getattr(hybrid, name)))
    for name in ("abort", "sleep"):
      setattr(hybrid, name, record(name, getattr(hybrid, name)))
    assert await fleet.controller.reconcile(want(1))
    assert order == [
      "wake_weights",
      "load_weights",
      "wake_kv_cache",
      "register",
      "rebalance",
    ]
    fleet.check_truth()
    order.clear()
    assert await fleet.controller.reconcile(want(0))
    assert order == ["unroute", "abort", "sleep"]
    fleet.check_truth()
    assert [s.kind for s in fleet.switches] == ["activate", "reclaim"]

  run_virtual(main())


def test_partial_lending_takes_the_lowest_healthy_indices():
  async def main():
    fleet = await ControlledFleet(num_hybrid=4).start()
    await fleet.controller.reconcile(want(2))
    assert fleet.controller.lent == ("hybrid-0", "hybrid-1")
    await fleet.controller.reconcile(want(3))
    assert fleet.controller.lent == ("hybrid-0", "hybrid-1", "hybrid-2")
    await fleet.controller.reconcile(want(1))
    assert fleet.controller.lent == ("hybrid-0",)
    fleet.replicas.fail("hybrid-0", RuntimeError("gone"))
    await fleet.controller.reconcile(want(2))
    assert fleet.controller.lent == ("hybrid-1", "hybrid-2")
    fleet.check_truth()
    # An unchanged wish does nothing.
    before = len(fleet.switches)
    await fleet.controller.reconcile(want(2))
    assert len(fleet.switches) == before

  run_virtual(main())


def test_responses_survive_lending_and_reclaiming():
  async def main():
    fleet = await ControlledFleet(num_hybrid=2).start()
    tasks = fleet.generate(12)
    await asyncio.sleep(0.1)
    await fleet.controller.reconcile(want(2))
    assert max(fleet.balancer.loads().values()) == 4
    await asyncio.sleep(0.3)
    await fleet.controller.reconcile(want(0))
    results = await asyncio.gather(*tasks)
    assert {len(r.token_ids) for r in results} == {100}
    assert {r.finish_reason for r in results} == {"stop"}
    activate, reclaim = fleet.switches
    assert activate.moved_requests == 8
    assert reclaim.interrupted_requests == 8
    assert fleet.client.counters.moved_attempts == 16
    spans = [s for s in fleet.reporter.spans if s.lane == "hybrid-0"]
    assert [s.name for s in spans] == [
      "load_weights",
      "activate",
      "rollout",
      "reclaim",
    ]

  run_virtual(main())


def test_b6_a_request_that_arrives_late_is_rejected_and_goes_elsewhere():
  async def main():
    fleet = await ControlledFleet(num_hybrid=1).start()
    await fleet.controller.reconcile(want(1))
    hybrid = fleet.hybrid[0]
    hybrid.faults.add("generate", Delay(0.05), nth=0)
    tasks = fleet.generate(2)
    await asyncio.sleep(0.01)  # one has a lease on the hybrid replica
    assert len(fleet.client.in_flight("hybrid-0")) == 1
    await fleet.controller.reconcile(want(0))
    results = await asyncio.gather(*tasks)
    assert [len(r.token_ids) for r in results] == [100, 100]
    assert fleet.client.counters.rejected_attempts == 1

  run_virtual(main())


def test_draining_lets_requests_finish_for_so_long():
  async def main(drain_s):
    fleet = await ControlledFleet(num_standalone=0, num_hybrid=2).start()
    await fleet.controller.reconcile(want(1))
    tasks = fleet.generate(1)  # takes about a second
    await asyncio.sleep(0.1)
    began_s = asyncio.get_running_loop().time()
    await fleet.controller.reconcile(want(0, drain_s=drain_s))
    took_s = asyncio.get_running_loop().time() - began_s
    for task in tasks:
      task.cancel()
    return took_s, fleet.switches[-1].interrupted_requests

  took_s, interrupted = run_virtual(main(10.0))
  assert 0.5 < took_s < 2.0 and interrupted == 0
  took_s, interrupted = run_virtual(main(0.2))
  assert 0.2 < took_s < 0.5 and interrupted == 1


ACTIVATION_POINTS = [
  "wake_weights",
  "load_weights",
  "load_weights.paused",
  "load_weights.loaded",
  "wake_kv_cache",
  "stats",
]
RECLAIM_POINTS = ["abort", "abort.return", "sleep", "sleep.aborted", "stats"]
FAULTS = {
  "raise": lambda: Raise(ReplicaFailed("injected")),
  "other": lambda: Raise(OSError("injected")),
  "hang": Hang,
  "die": Die,
}


@pytest.mark.parametrize("point", ACTIVATION_POINTS)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_o13_a_failed_activation_rolls_back_to_a_true_state(point, fault):
  async def main():
    fleet = await ControlledFleet(num_hybrid=2).start()
    tasks = fleet.generate(6)
    fleet.hybrid[0].faults.add(point, FAULTS[fault]())
    complete = await fleet.controller.reconcile(want(2))
    assert not complete
    fleet.check_truth()
    assert fleet.controller.lent == ("hybrid-1",)
    assert fleet.switches[-1].failed == ("hybrid-0",)
    assert "activate_failed" in fleet.reporter.kinds()
    # Until it returns or is out of use, it is tried again.
    await fleet.controller.reconcile(want(2))
    fleet.check_truth()
    await fleet.controller.reconcile(want(0))
    fleet.check_truth()
    assert [len(r.token_ids) for r in await asyncio.gather(*tasks)] == [100] * 6

  run_virtual(main())


@pytest.mark.parametrize("point", RECLAIM_POINTS)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_o13_a_failed_reclaim_returns_the_devices_all_the_same(point, fault):
  async def main():
    fleet = await ControlledFleet(num_hybrid=2).start()
    await fleet.controller.reconcile(want(2))
    tasks = fleet.generate(6)
    await asyncio.sleep(0.1)
    fleet.hybrid[0].faults.add(point, FAULTS[fault]())
    await fleet.controller.reconcile(want(0))
    fleet.check_truth()
    assert fleet.controller.state is FleetState.STANDALONE_ONLY
    assert fleet.hybrid[0].state is ReplicaState.STOPPED
    assert fleet.hybrid[1].state is ReplicaState.ASLEEP
    assert fleet.switches[-1].failed == ("hybrid-0",)
    assert [len(r.token_ids) for r in await asyncio.gather(*tasks)] == [100] * 6

  run_virtual(main())


def test_an_activation_that_keeps_failing_ends_the_use_of_the_replica():
  async def main():
    fleet = await ControlledFleet(num_hybrid=1).start()
    error = Raise(OSError("out of memory"))
    fleet.hybrid[0].faults.add("wake_weights", error, nth=0)
    for _ in range(3):
      assert not await fleet.controller.reconcile(want(1))
      fleet.check_truth()
    assert fleet.replicas.healthy_hybrid == ()
    assert not await fleet.controller.reconcile(want(1))
    assert fleet.hybrid[0].state is ReplicaState.STOPPED
    assert fleet.reporter.kinds().count("activate_failed") == 3

  run_virtual(main())


def test_no_rebalance_if_it_is_disabled_or_not_asked_for():
  async def moved(enable, ask):
    fleet = await ControlledFleet(num_hybrid=1, enable_rebalance=enable).start()
    fleet.generate(8)
    await asyncio.sleep(0.1)
    await fleet.controller.reconcile(want(1, rebalance=ask))
    return fleet.switches[-1].moved_requests

  assert run_virtual(moved(True, True)) == 4
  assert run_virtual(moved(True, False)) == 0
  assert run_virtual(moved(False, True)) == 0


def test_a_policys_own_rebalance_replaces_the_usual_one():
  handles = []

  async def own(handle):
    handles.append(handle)
    handle.clear_sticky()
    handle.move()

  async def main():
    fleet = await ControlledFleet(num_hybrid=1, custom_rebalance=own).start()
    fleet.generate(8)
    await asyncio.sleep(0.1)
    await fleet.controller.reconcile(want(1))
    assert len(handles) == 1
    assert fleet.switches[-1].moved_requests == 4

  run_virtual(main())
