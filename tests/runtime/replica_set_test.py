"""Tests of replica_set.py."""

import asyncio

import pytest

from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.replica import ReplicaState
from hybridrl.runtime.replica_set import FleetLost, ReplicaSet
from hybridrl.runtime.waiting import Waits
from hybridrl.testing.controlled_fleet import ControlledFleet, want
from hybridrl.testing.faults import Raise
from hybridrl.testing.scripted_replica import ScriptedReplica
from hybridrl.testing.virtual_loop import run_virtual


def test_a_replica_that_cannot_be_stopped_ends_the_run():
  async def main():
    fleet = await ControlledFleet(num_hybrid=1).start()
    await fleet.controller.reconcile(want(1))
    fleet.hybrid[0].faults.add("sleep", Raise(OSError("stuck")))
    fleet.hybrid[0].faults.add("stop", Raise(OSError("zombie")))
    with pytest.raises(FleetLost, match="hybrid-0 .*stuck.*zombie"):
      await fleet.controller.reconcile(want(0))

  run_virtual(main())


def test_replicas_that_share_a_name_are_refused():
  async def main():
    with pytest.raises(ValueError, match="share a name: a, a"):
      ReplicaSet(
        [ScriptedReplica("a")],
        [ScriptedReplica("a")],
        balancer=LoadBalancer(),
        waits=Waits(asyncio.get_running_loop().time),
        stop_s=1.0,
        on_event=lambda *args, **fields: None,
      )

  run_virtual(main())


def test_failing_is_idempotent_and_stops_the_replica():
  async def main():
    fleet = await ControlledFleet(num_standalone=2, num_hybrid=1).start()
    for _ in range(2):
      fleet.replicas.fail("standalone-0", OSError("gone"))
    assert fleet.replicas.healthy_standalone == ("standalone-1",)
    assert fleet.balancer.routable() == ("standalone-1",)
    assert fleet.replicas.changes == 1
    assert fleet.reporter.kinds() == ["replica_failed"]
    await asyncio.sleep(1)
    assert fleet.standalone[0].state is ReplicaState.STOPPED
    fleet.replicas.check_alive()

  run_virtual(main())


def test_stop_all_tells_what_it_could_not_stop():
  async def main():
    fleet = await ControlledFleet(num_standalone=1, num_hybrid=2).start()
    fleet.hybrid[1].faults.add("stop", Raise(OSError("zombie")))
    fleet.replicas.fail("hybrid-0", OSError("gone"))
    (problem,) = await fleet.replicas.stop_all()
    assert "hybrid-1" in problem and "zombie" in problem
    assert fleet.standalone[0].state is ReplicaState.STOPPED
    assert fleet.hybrid[0].state is ReplicaState.STOPPED

  run_virtual(main())
