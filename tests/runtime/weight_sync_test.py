"""Tests of weight_sync.py."""

import asyncio

import pytest

from hybridrl.rollout.replica import ReplicaState
from hybridrl.runtime.replica_set import FleetLost
from hybridrl.testing.controlled_fleet import ControlledFleet, make_bundle, want
from hybridrl.testing.faults import Die, Raise
from hybridrl.testing.virtual_loop import run_virtual


def test_the_last_replica_to_fail_ends_the_run_with_its_cause():
  async def main():
    fleet = await ControlledFleet(num_standalone=1, num_hybrid=0).start()
    fleet.standalone[0].faults.add("load_weights", Raise(OSError("torn")))
    fleet.weights.published(make_bundle(2))
    with pytest.raises(FleetLost, match="standalone-0: torn") as caught:
      await fleet.weights.load_standalone()
    assert isinstance(caught.value.__cause__, OSError)
    assert fleet.balancer.routable() == ()

  run_virtual(main())


def test_a_failed_standalone_load_unroutes_that_replica_only():
  async def main():
    fleet = await ControlledFleet(num_standalone=2, num_hybrid=0).start()
    fleet.standalone[0].faults.add("load_weights.loaded", Die())
    fleet.weights.published(make_bundle(2))
    changes = fleet.replicas.changes
    await fleet.weights.load_standalone()
    assert fleet.balancer.routable() == ("standalone-1",)
    assert fleet.replicas.changes == changes + 1
    fleet.check_truth()
    await asyncio.sleep(1)
    assert fleet.standalone[0].state is ReplicaState.STOPPED

  run_virtual(main())


def test_woken_replicas_load_what_was_published_last():
  async def main():
    fleet = await ControlledFleet(num_hybrid=1).start()
    fleet.weights.published(make_bundle(2))
    await fleet.weights.load_standalone()
    await fleet.controller.reconcile(want(1))
    assert fleet.hybrid[0].version == 2
    fleet.check_truth()
    with pytest.raises(RuntimeError, match="version 2 after 2"):
      fleet.weights.published(make_bundle(2))

  run_virtual(main())


def test_requests_in_flight_survive_a_sync():
  async def main():
    fleet = await ControlledFleet(num_hybrid=0).start()
    tasks = fleet.generate(3)
    await asyncio.sleep(0.3)
    fleet.weights.published(make_bundle(2))
    await fleet.weights.load_standalone()
    results = await asyncio.gather(*tasks)
    assert all(set(r.versions) == {1, 2} for r in results)

  run_virtual(main())


def test_nothing_can_be_loaded_before_a_publication():
  async def main():
    fleet = ControlledFleet()
    with pytest.raises(RuntimeError, match="no weights"):
      _ = fleet.weights.bundle

  run_virtual(main())
