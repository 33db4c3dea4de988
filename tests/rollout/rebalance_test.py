"""GenerationClient.rebalance: the plan itself is tested in routing_test.py."""

import asyncio

import numpy as np
import pytest

from hybridrl.rollout.client import CONTROL_TIMEOUT_S
from hybridrl.rollout.replica import ReplicaFailed
from hybridrl.testing import scripted_text
from hybridrl.testing.faults import Hang, Raise
from hybridrl.testing.scripted_fleet import (
  SAMPLING,
  scripted_fleet,
  scripted_prompt,
  started,
)
from hybridrl.testing.scripted_replica import ScriptedTimes
from hybridrl.testing.virtual_loop import run_virtual

LONG = scripted_text.fixed_length(1000)
# Nothing finishes while new replicas start.
SLOW = ScriptedTimes(step_s=lambda n: 0.1)


async def _busy_fleet(num_old, num_new, num_requests, **options):
  """Old replicas full of requests, and new ones that were just woken."""
  options = {"times": SLOW} | options
  fleet = await scripted_fleet(num_old, lengths=LONG, **options)
  tasks = [asyncio.create_task(fleet.generate(i)) for i in range(num_requests)]
  await asyncio.sleep(1.0)
  new = []
  for i in range(num_new):
    replica = await started(f"h{i}", lengths=LONG)
    fleet.replicas[replica.name] = replica
    fleet.balancer.add(replica.name)
    new.append(replica.name)
  return fleet, tasks, new


@pytest.mark.parametrize(
  ("num_old", "num_new", "num_requests", "moved"),
  [(1, 1, 10, 5), (1, 1, 11, 5), (2, 1, 12, 4), (2, 2, 3, 1), (1, 3, 64, 48)],
)
def test_moves_only_the_surplus(num_old, num_new, num_requests, moved):
  async def main():
    fleet, tasks, new = await _busy_fleet(num_old, num_new, num_requests)
    result = await fleet.client.rebalance(new)
    assert result.moved == moved
    await asyncio.sleep(0)
    loads = fleet.balancer.loads().values()
    assert max(loads) - min(loads) <= 1
    assert sum(loads) == num_requests
    await asyncio.gather(*tasks)
    counters = fleet.client.counters
    assert counters.aborted_attempts == counters.moved_attempts == moved
    assert counters.discarded_tokens == 0

  run_virtual(main())


def test_moves_what_is_cheapest_to_move():
  async def main():
    fleet = await scripted_fleet(1, lengths=LONG)
    tasks = []
    for i, length in enumerate((900, 5, 700, 300, 100, 500)):
      prompt = scripted_prompt(i, length)
      tasks.append(
        asyncio.create_task(fleet.client.generate(prompt, 50, SAMPLING, str(i)))
      )
    await asyncio.sleep(0.1)
    fleet.replicas["h0"] = await started("h0", lengths=LONG)
    fleet.balancer.add("h0")
    before = {f.key for f in fleet.client.in_flight("s0")}
    result = await fleet.client.rebalance(["h0"])
    await asyncio.sleep(0)
    moved = before - {f.key for f in fleet.client.in_flight("s0")}
    assert moved <= {"1", "4", "3"}
    assert result.prefix_tokens < 5 + 100 + 300 + 3 * 50
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

  run_virtual(main())


def test_the_youngest_move_when_prompts_are_alike():
  """They have sampled least, so least has to be prefilled again."""

  async def main():
    fleet = await scripted_fleet(1, lengths=LONG, times=SLOW)
    tasks = []
    for i in range(6):
      tasks.append(asyncio.create_task(fleet.generate(i)))
      await asyncio.sleep(1.0)
    fleet.replicas["h0"] = await started("h0", lengths=LONG)
    fleet.balancer.add("h0")
    await fleet.client.rebalance(["h0"])
    await asyncio.sleep(0)
    assert {f.key for f in fleet.client.in_flight("h0")} == {"3", "4", "5"}
    await asyncio.gather(*tasks)

  run_virtual(main())


@pytest.mark.parametrize("arrivals_per_s", [0, 10, 1000])
def test_b5_a_rebalance_does_not_wait_for_arrivals(arrivals_per_s):
  """Clients, multi-turn agents and new samples keep the load above 0."""

  async def main():
    loop = asyncio.get_running_loop()
    fleet, tasks, new = await _busy_fleet(
      2, 2, 40, times=ScriptedTimes(step_s=lambda n: 0.05, abort_s=0.02)
    )
    for name in new:  # routable again below, at once before the rebalance
      fleet.balancer.remove(name)
    ends = False

    async def agent(i):
      turn = 0
      while not ends:
        await fleet.client.generate(
          scripted_prompt(i), 3 + turn % 5, SAMPLING, f"agent-{i}"
        )
        turn += 1

    async def admit():
      i = 1000
      while not ends:
        tasks.append(asyncio.create_task(fleet.generate(i)))
        i += 1
        await asyncio.sleep(1 / arrivals_per_s if arrivals_per_s else 1.0)

    background = [asyncio.create_task(agent(i)) for i in range(20)]
    if arrivals_per_s:
      background.append(asyncio.create_task(admit()))
    await asyncio.sleep(0.05)
    for name in new:
      fleet.balancer.add(name)
    began_s = loop.time()
    result = await fleet.client.rebalance(new)
    assert result.moved >= 20
    assert loop.time() - began_s <= 0.02 + 1e-9  # its aborts
    await asyncio.sleep(0)
    loads = fleet.balancer.loads().values()
    assert max(loads) - min(loads) <= 3
    ends = True
    await asyncio.gather(*background, *tasks)

  run_virtual(main())


def test_requests_on_a_leaving_replica_are_left_alone():
  async def main():
    fleet, tasks, new = await _busy_fleet(2, 1, 8)
    fleet.balancer.remove("s0")  # drains
    result = await fleet.client.rebalance(new)
    assert result.moved == 2
    assert fleet.balancer.loads() == {"s1": 2, "h0": 2}
    assert len(fleet.client.in_flight("s0")) == 4
    await asyncio.gather(*tasks)

  run_virtual(main())


def test_nothing_moves_when_the_new_replicas_are_gone_again():
  async def main():
    fleet, tasks, new = await _busy_fleet(1, 1, 6)
    fleet.balancer.remove(new[0])
    assert (await fleet.client.rebalance(new)).moved == 0
    assert (await fleet.client.rebalance()).moved == 0  # one replica is level
    await asyncio.gather(*tasks)
    assert fleet.client.counters.aborted_attempts == 0

  run_virtual(main())


def test_an_abort_that_hangs_is_the_failure_of_its_replica():
  async def main():
    loop = asyncio.get_running_loop()
    fleet, tasks, new = await _busy_fleet(1, 1, 6)
    fleet.replicas["s0"].faults.add("abort", Hang())
    began_s = loop.time()
    await fleet.client.rebalance(new)
    assert loop.time() - began_s == pytest.approx(CONTROL_TIMEOUT_S)
    assert fleet.balancer.routable() == ("h0",)
    ((name, error),) = fleet.failed
    assert name == "s0"
    assert "abort not done within 20 s" in str(error)
    results = await asyncio.gather(*tasks)
    assert all(len(r.token_ids) == 1000 for r in results)
    assert fleet.client.counters.failed_attempts == 6

  run_virtual(main())


def test_a_replica_that_fails_under_its_abort_is_reported():
  async def main():
    fleet, tasks, new = await _busy_fleet(2, 1, 9)
    fleet.replicas["s0"].faults.add("abort", Raise(ReplicaFailed("broken")))
    await fleet.client.rebalance(new)
    assert "s0" not in fleet.balancer.routable()
    assert [name for name, _ in fleet.failed] == ["s0"]
    results = await asyncio.gather(*tasks)
    assert all(np.all(r.versions == 0) for r in results)

  run_virtual(main())


def test_other_errors_of_an_abort_surface():
  async def main():
    fleet, tasks, new = await _busy_fleet(1, 1, 6)
    fleet.replicas["s0"].faults.add("abort", Raise(OSError("no route")))
    with pytest.raises(OSError, match="no route"):
      await fleet.client.rebalance(new)
    await asyncio.gather(*tasks)

  run_virtual(main())
